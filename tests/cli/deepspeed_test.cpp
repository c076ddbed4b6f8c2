// Files made for DeepSpeed: they train as they are, or say in one message why not.
#include "cli/support.h"

namespace onefold {
namespace {

class CliDeepSpeed : public Cli {
 protected:
  Outcome train_file(const std::string& text, const Arguments& more = {}) const {
    folder_.write("ds.json", text);
    Arguments arguments = {"train", "ds.json"};
    for (const char* key : {"model=gpt2-tiny", "data.train=book.txt", "data.sequence_length=16",
                            "run.steps=2", "run.threads=1"})
      arguments.insert(arguments.end(), {"--set", key});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return onefold(arguments);
  }
};

TEST_F(CliDeepSpeed, AFileForATrainerTrainsAndThePlanSaysHowItWasRead) {
  const Outcome outcome = train_file(R"({  # for all stages
    "fp16": {"enabled": "auto", "loss_scale_window": 500},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "round_robin_gradients": true,
                          "stage3_max_live_parameters": 1e9,},
    "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": true,
  })");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(
      outcome.err,
      {"auto     ", "gradient_clipping 1.0", "zero_optimization.reduce_bucket_size ",
       "train_micro_batch_size_per_gpu 8", "note     fp16 left to \"auto\": fp32",
       "of no consequence here: ", "zero_allow_untested_optimizer",
       "zero_optimization.round_robin_gradients", "zero_optimization.stage3_max_live_parameters"});
}

TEST_F(CliDeepSpeed, OneFileServesAllStages) {
  const char* file = R"({"train_batch_size": 4, "zero_optimization": {
      "stage": 3, "stage3_prefetch_bucket_size": 1000, "allgather_bucket_size": 1000}})";
  const Outcome whole = train_file(file, {"--json", "--quiet"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  for (const char* stage : {"0", "1", "2"}) {
    const Outcome other = train_file(
        file, {"--json", "--quiet", "--set", fmt::format("zero_optimization.stage={}", stage)});
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_EQ(Json::parse(other.out)["loss"], Json::parse(whole.out)["loss"]);
  }
}

TEST_F(CliDeepSpeed, MonitorsWriteWhatTheyAreAskedFor) {
  const Outcome outcome = train_file(R"({"train_batch_size": 4,
      "tensorboard": {"enabled": true, "output_path": "logs", "job_name": "tb"},
      "csv_monitor": {"enabled": true, "output_path": "logs", "job_name": "csv"}})",
                                     {"--ranks", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(std::filesystem::is_empty(folder_.path("logs/tb")));
  const std::string rates = read("logs/csv/Train_Samples_lr.csv");
  EXPECT_EQ(rates, "step,lr\n4,0.001\n8,0.001\n") << "once, not for each rank";
}

TEST_F(CliDeepSpeed, ARefusalListsEveryReason) {
  const Outcome outcome = train_file(R"({"amp": {"enabled": true}, "steps_per_prnt": 5,
      "zero_optimization": {"stage": 3, "mics_shard_size": 2}})");
  expect_error(outcome, 1,
               {"ds.json: 3 problems", "unknown:", "did you mean \"steps_per_print\"?",
                "not there yet:", "amp.enabled is true", "zero_optimization.mics_shard_size"});
}

}  // namespace
}  // namespace onefold

// Training end to end: what a run prints and leaves behind, and how it stops.
#include "cli/support.h"
#include "config/config.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

TEST_F(Cli, ARunReadsBackFromItsFolderBitForBit) {
  const Outcome first = train({"data.validation_fraction=0.2", "run.eval_every=2",
                               "run.tensorboard=true", "run.threads=2"});
  ASSERT_EQ(first.code, 0) << first.err;
  for (const char* name : {"config.json", "model.json", "tokenizer.json", "metrics.jsonl",
                           "weights.safetensors", "tensorboard"})
    EXPECT_TRUE(exists(std::string("run/") + name)) << name;

  // On one thread, not two: the bits do not depend on it.
  const Outcome second =
      onefold({"train", "run/config.json", "--quiet", "--set", "run.output=again", "--set",
               "run.tensorboard=false", "--set", "run.threads=1"});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(read("run/weights.safetensors"), read("again/weights.safetensors"));
  EXPECT_EQ(read("run/model.json"), read("again/model.json"));
  EXPECT_FALSE(exists("again/tensorboard"));
  const auto one = lines("run/metrics.jsonl"), other = lines("again/metrics.jsonl");
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]["loss"], other[i]["loss"]);
}

TEST_F(Cli, MetricsHaveALineForEachStepAndEvaluation) {
  const Outcome outcome = train({"data.validation_fraction=0.2", "run.eval_every=2",
                                 "run.tensorboard=true", "wall_clock_breakdown=true"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> events;
  for (const Json& line : lines("run/metrics.jsonl")) {
    events.push_back(line["event"].get<std::string>() + std::to_string(line["step"].get<int>()));
    EXPECT_GT(line["loss"].get<double>(), 0);
    if (line["event"] == "evaluation") {
      expect_keys(line, {"event", "step", "loss"});
      continue;
    }
    expect_keys(line, {"event", "step", "loss", "gradient_norm", "loss_scale", "skipped_steps",
                       "learning_rate", "tokens_per_second", "gemm_fraction", "seconds",
                       "clip_factor", "clipped_gradients", "clamped_values", "wall_clock"});
    expect_keys(line["wall_clock"], {"forward", "backward", "norm", "step", "communication"});
    EXPECT_EQ(line["learning_rate"], 1e-3);
  }
  // Every second step, and the last one.
  EXPECT_EQ(events,
            (std::vector<std::string>{"step1", "step2", "evaluation2", "step3", "evaluation3"}));

  const auto files = std::filesystem::directory_iterator(folder_.path("run/tensorboard"));
  const std::string board = read_file(files->path().string());
  expect_in(board, {"train/loss", "train/gradient_norm", "train/learning_rate",
                    "speed/tokens_per_second", "validation/loss"});
}

TEST_F(Cli, JsonIsOneDocumentAloneOnStandardOutput) {
  const Outcome outcome = train({"data.validation_fraction=0.2"}, {"--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json summary = Json::parse(outcome.out);
  expect_keys(summary, {"steps",
                        "new_steps",
                        "resumed_from_step",
                        "passed_over",
                        "interrupted",
                        "loss",
                        "validation_loss",
                        "seconds",
                        "tokens",
                        "tokens_per_second",
                        "step_seconds",
                        "predicted_step_seconds",
                        "gemm_gflops",
                        "ranks",
                        "planned_peak_bytes",
                        "ledger_peak_bytes",
                        "mapped_bytes",
                        "driver_bytes",
                        "peak_rss_bytes",
                        "communication",
                        "checkpoint_stall_seconds",
                        "output"});
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_EQ(summary["interrupted"], false);
  EXPECT_EQ(summary["tokens"], 3 * 4 * 32);
  EXPECT_EQ(summary["output"], "run");
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_GT(summary["peak_rss_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_EQ(summary["driver_bytes"], 0);  // of a card
  EXPECT_EQ(summary["loss"], lines("run/metrics.jsonl")[2]["loss"]);
}

TEST_F(Cli, ProgressAndPlanGoToStandardError) {
  const Outcome outcome = train({"steps_per_print=2"}, {});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  expect_in(
      outcome.err,
      {"gpt2-tiny: 67.6K parameters, 3 layers", "vocabulary 263 (the data has 257)",
       "0 held out, 1 document, ended by <|endoftext|> (256, by its name);",
       "4 sequences of 32 tokens = 2 micro x 2 accumulated x 1 rank\n", "3 steps = 384 tokens",
       " planned: parameters ", "\nstep 2/3  loss ", "\nstep 3/3  loss ", "3 steps in ",
       "saved to run; try it with: onefold generate run"});
  EXPECT_EQ(outcome.err.find("step 1/3"), std::string::npos);
  EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos);  // no terminal, no escapes
}

TEST_F(Cli, TheConfigurationIsPrintedBeforeARunIfAskedFor) {
  EXPECT_EQ(train({}, {}).err.find("configuration in force"), std::string::npos);
  for (const char* flag : {"-v", "--verbose"})
    expect_in(train({}, {flag, "--overwrite"}).err,
              {"configuration in force:", "\"lr\": 0.001", "gpt2-tiny: 67.6K parameters"});
  expect_error(train({}, {"-v", "--quiet"}), 2, {"--verbose", "excludes", "--quiet"});
}

TEST_F(Cli, QuietPrintsNothing) {
  const Outcome outcome = train({});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out + outcome.err, "");
}

TEST_F(Cli, WithoutAnOutputNothingIsWritten) {
  const std::string text = read("config.json");
  folder_.write("config.json",
                std::string(text).replace(text.find("\"output\": \"run\","), 16, ""));
  const int64_t before = folder_.files();
  const Outcome outcome = train({}, {});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(folder_.files(), before);
  expect_in(outcome.err, {"nothing was saved"});
}

TEST_F(Cli, PlanOnlyIsAResultAndTouchesNothing) {
  const int64_t before = folder_.files();
  const Outcome text = train({"run.steps=7"}, {"--plan-only"});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.err, "");
  expect_in(text.out, {"configuration in force:", "7 steps = 896 tokens", "planned: parameters"});

  const Outcome json = train({"run.steps=7"}, {"--plan-only", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.err, "");
  const Json plan = Json::parse(json.out);
  expect_keys(plan, {"configuration",
                     "parameters",
                     "vocab_size",
                     "train_tokens",
                     "validation_tokens",
                     "validation_sequences",
                     "auto",
                     "notes",
                     "of_no_consequence",
                     "documents",
                     "end_of_text",
                     "targets",
                     "skipped_lines",
                     "steps",
                     "tokens",
                     "epochs",
                     "threads",
                     "accumulate",
                     "ranks",
                     "planned_peak_bytes",
                     "context_bytes",
                     "planned_peak_at",
                     "planned_bytes",
                     "planned_traffic_per_step",
                     "planned_host_bytes",
                     "planned_disk_bytes",
                     "planned_fetched_bytes_per_step",
                     "planned_spilled_bytes_per_step"});
  EXPECT_EQ(plan["steps"], 7);
  EXPECT_EQ(Config::from_json(plan["configuration"]).effective(), plan["configuration"]);
  int64_t sum = 0;
  for (const auto& [kind, bytes] : plan["planned_bytes"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(plan["planned_peak_bytes"], sum);
  EXPECT_EQ(folder_.files(), before);
}

TEST_F(Cli, ATrainedModelIsReplacedOnlyWithOverwrite) {
  make_run("run");
  const std::string weights = read("run/weights.safetensors");
  folder_.write("run/tokenizer.json", "of the run before");
  make_folders(folder_.path("run/tensorboard"));
  // Refused before anything else, even before the data is read.
  expect_error(train({"data.train=missing.txt"}), 1,
               {"run.output: run already holds a trained model", "--resume"});
  EXPECT_EQ(read("run/weights.safetensors"), weights);

  ASSERT_EQ(onefold({"tokenize", "encode", "book.txt", "--output", "book.tokens"}).code, 0);
  const Outcome again = train({"data.train=book.tokens"}, {"--quiet", "--overwrite"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(read("run/weights.safetensors"), weights);
  EXPECT_FALSE(exists("run/tokenizer.json"));  // a token file has none: not even the old one's
  EXPECT_FALSE(exists("run/tensorboard"));
}

TEST_F(Cli, AFolderWithAModelOfAnotherProgramIsNotWrittenTo) {
  make_folders(folder_.path("run"));
  folder_.write("run/config.json", "{\"model_type\": \"gpt2\"}");
  expect_error(train({}, {"--quiet", "--overwrite"}), 1, {"run.output", "no run has written"});
  EXPECT_EQ(read("run/config.json"), "{\"model_type\": \"gpt2\"}");
  EXPECT_FALSE(exists("run/run.lock"));
}

TEST_F(Cli, JsonLinesTrain) {
  folder_.write("docs.jsonl", "{\"body\": \"" + std::string(200, 'a') + "\"}\n{\"body\": \"" +
                                  std::string(200, 'b') + "\"}\n");
  const Outcome outcome =
      train({"data.train=docs.jsonl", "data.field=body", "data.documents=separated"}, {"--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Cli, IsolatedDocumentsLearnSomethingElseThanPackedOnes) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += fmt::format("{{\"text\": \"document {} ends\"}}\n", i * i);
  folder_.write("docs.jsonl", lines);
  const auto loss = [&](const std::string& documents) {
    const Outcome outcome =
        train({"data.train=docs.jsonl", "data.documents=" + documents, "run.output=" + documents},
              {"--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json summary = Json::parse(outcome.out);
    EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
    return summary["loss"].get<double>();
  };
  EXPECT_NE(loss("isolated"), loss("packed"));
}

// Stops a long run by a signal as soon as it is under way.
class StoppedBy : public Cli, public ::testing::WithParamInterface<int> {
 protected:
  Outcome stop(const Arguments& flags) const {
    const Process process(
        folder_.path(""),
        train_arguments({"run.steps=1000000", "data.validation_fraction=0.2"}, flags), {});
    EXPECT_TRUE(eventually([&] {
      const std::string metrics = exists("run/metrics.jsonl") ? read("run/metrics.jsonl") : "";
      return std::count(metrics.begin(), metrics.end(), '\n') >= 3;
    }));
    process.send(GetParam());
    return process.wait();
  }
};

TEST_P(StoppedBy, FinishesTheStepAndSavesLoadableWeights) {
  const Outcome outcome = stop({});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  expect_in(outcome.err, {"interrupted after ", "saved to run"});
  const int64_t steps = lines("run/metrics.jsonl").back()["step"].get<int64_t>();
  const SafetensorsFile weights(folder_.path("run/weights.safetensors"));
  EXPECT_EQ(weights.metadata().at("step"), std::to_string(steps));
  EXPECT_FALSE(exists("run/weights.safetensors.onefold-tmp"));
  const Outcome text = onefold({"generate", "run", "--prompt", "Number", "--tokens", "4"});
  EXPECT_EQ(text.code, 0) << text.err;
}

TEST_P(StoppedBy, SaysSoInItsSummary) {
  const Outcome outcome = stop({"--json"});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["interrupted"], true);
}

INSTANTIATE_TEST_SUITE_P(Cli, StoppedBy, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& test) { return std::string(::sigabbrev_np(test.param)); });

TEST_F(Cli, DivergenceNamesStepAndUnitAndWhatIsSaved) {
  expect_error(train({"optimizer.params.lr=1e30"}), 3,
               {"diverged", "step 2", "unit ", "Lower the learning rate"});
  EXPECT_FALSE(exists("run/weights.safetensors"));
  // Nothing of value is there yet: no --overwrite is needed to try again.
  expect_error(train({"optimizer.params.lr=1e30", "run.save_every=1"}), 3,
               {"step 2", "run has a checkpoint of step 1"});
  EXPECT_EQ(lines("run/metrics.jsonl").size(), 1u);
}

TEST_F(Cli, DivergenceOnRanksKeepsTheCheckpointThatIsBeingWritten) {
  const Arguments keys = {"optimizer.params.lr=1e30", "run.save_every=1"};
  expect_error(train(keys, {"--quiet", "--ranks", "2"}), 3,
               {"onefold: diverged: step 2", "rank ", "run has a checkpoint of step 1"});
  EXPECT_TRUE(exists("run/checkpoints/step-00000001/manifest.json"));
}

TEST_F(Cli, AFullDiskLeavesNoHalfWrittenWeights) {
  const Outcome outcome = onefold(train_arguments({}, {"--quiet"}), {.file_limit = 100'000});
  expect_error(outcome, 1,
               {"warning: the checkpoint of step 3 could not be written", "cannot write",
                "rank-00000.safetensors", "the last checkpoint, of step 3", "nothing was saved"});
  EXPECT_FALSE(exists("run/weights.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("run/checkpoints")));
}

TEST_F(Cli, AMemoryLimitIsKeptOrSaysWhatWouldFit) {
  const Json plan = Json::parse(train({}, {"--plan-only", "--json"}).out);
  const auto peak = plan["planned_peak_bytes"].get<int64_t>();
  const Outcome exact = train({"run.memory=" + std::to_string(peak)});
  EXPECT_EQ(exact.code, 0) << exact.err;
  expect_error(train({"run.output=other", "run.memory=" + std::to_string(peak - 1)}), 1,
               {"run.memory", "what would fit:", "train_micro_batch_size_per_gpu 1",
                "run.recompute", "activations"});
  expect_error(train({"run.output=other", "run.memory=1KiB"}), 1,
               {"allows 1.00 KiB", "what would fit:", "raise run.memory"});
  EXPECT_FALSE(exists("other"));
}

TEST_F(Cli, WithoutAMemoryLimitTheMachineIsTheLimit) {
  expect_error(train({"train_batch_size=2e7", "gradient_accumulation_steps=1"}), 1,
               {"this run needs", "the machine has", "set run.memory"});
}

}  // namespace
}  // namespace onefold

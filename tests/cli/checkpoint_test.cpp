// A checkpoint is a model: what reads run folders reads checkpoints, of any number of ranks.
#include "cli/support.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

const char* const kCheckpoint = "run/checkpoints/step-00000003";

class CliCheckpoint : public Cli {
 protected:
  // On three ranks, so that tensors lie in pieces. `ended` has the weights of the run's end, `run`
  // is the same run as if it had been killed before them.
  CliCheckpoint() {
    const Outcome outcome =
        train({"run.save_every=2", "train_batch_size=12", "zero_optimization.stage=3",
               "zero_optimization.stage3_param_persistence_threshold=0"},
              {"--quiet", "--ranks", "3"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    fs::copy(folder_.path("run"), folder_.path("ended"), fs::copy_options::recursive);
    fs::remove(folder_.path("run/weights.safetensors"));
  }
};

TEST_F(CliCheckpoint, ExportsLikeTheRunsWeights) {
  ASSERT_EQ(onefold({"export", "ended", "a"}).code, 0);
  for (const char* source : {"run", kCheckpoint, "run/checkpoints/step-00000003/"}) {
    const Outcome outcome = onefold({"export", source, "b", "--overwrite"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const auto& entry : fs::directory_iterator(folder_.path("a"))) {
      const std::string name = entry.path().filename().string();
      EXPECT_EQ(read("b/" + name), read("a/" + name)) << source << " " << name;
    }
  }
  // Away from its run it has no tokenizer, and is a model all the same.
  fs::create_directories(folder_.path("x/y"));
  fs::copy(folder_.path(kCheckpoint), folder_.path("x/y/moved"));
  ASSERT_EQ(onefold({"export", "x/y/moved", "c"}).code, 0);
  EXPECT_EQ(read("c/model.safetensors"), read("a/model.safetensors"));
  EXPECT_FALSE(exists("c/tokenizer.json"));
}

TEST_F(CliCheckpoint, IsDescribedByWholeTensors) {
  const Outcome text = onefold({"inspect", kCheckpoint});
  ASSERT_EQ(text.code, 0) << text.err;
  expect_in(text.out, {"a checkpoint of Onefold's", "saved    after step 3 by 3 ranks at stage 3",
                       "state    moment1, moment2 of the optimizer", "all values are finite",
                       "embedding", "F32 [263, 39]"});
  const Json run = Json::parse(onefold({"inspect", "run", "--json"}).out);
  const Json ended = Json::parse(onefold({"inspect", "ended", "--json"}).out);
  EXPECT_EQ(run["kind"], "checkpoint");
  EXPECT_EQ(ended["kind"], "run");
  EXPECT_FALSE(ended.contains("checkpoint"));
  EXPECT_EQ(run["tensors"], ended["tensors"]);
  EXPECT_EQ(run["model"], ended["model"]);
  EXPECT_EQ(run["files"].size(), 3);
  EXPECT_EQ(run["checkpoint"]["step"], 3);
  EXPECT_EQ(run["checkpoint"]["optimizer_values"], 2 * run["parameters"].get<int64_t>());
}

TEST_F(CliCheckpoint, IsComparedWithRunsAndCheckpoints) {
  expect_in(onefold({"diff", kCheckpoint, "ended"}).out, {"equal: all", "parameters"});
  EXPECT_EQ(onefold({"diff", "run", kCheckpoint}).code, 0);
  const Outcome outcome = onefold({"diff", kCheckpoint, "run/checkpoints/step-00000002"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  expect_in(outcome.out, {"different: "});
  expect_error(onefold({"diff", kCheckpoint, "ended/weights.safetensors"}), 1,
               {"is a checkpoint", "name a folder"});
}

TEST_F(CliCheckpoint, GeneratesLikeTheRunsWeights) {
  const Arguments flags = {"--prompt", "Number", "--tokens", "8", "--greedy", "--threads", "1"};
  const auto text = [&](const std::string& folder) {
    Arguments arguments = {"generate", folder};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(text("run"), text("ended"));
  EXPECT_EQ(text(kCheckpoint), text("ended"));
}

TEST_F(CliCheckpoint, DamageIsNamedByAllThatReadIt) {
  const std::string file = std::string(kCheckpoint) + "/rank-00001.safetensors";
  std::string bytes = read(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder_.write(file, bytes);
  for (const Arguments& arguments :
       {Arguments{"inspect", kCheckpoint}, Arguments{"export", kCheckpoint, "a"},
        Arguments{"diff", kCheckpoint, "ended"}, Arguments{"generate", kCheckpoint}})
    expect_error(onefold(arguments), 1, {"rank-00001.safetensors", "damaged"});
  // The run's folder still has the one before.
  const Json run = Json::parse(onefold({"inspect", "run", "--json"}).out);
  EXPECT_EQ(run["checkpoint"]["step"], 2);
}

}  // namespace
}  // namespace onefold

// Configurations that are written for the user: they must train as they are.
#include "cli/support.h"

namespace onefold {
namespace {

class CliInit : public Cli {
 protected:
  CliInit() { std::filesystem::remove(folder_.path("config.json")); }

  Json init(const std::string& model, Arguments more = {}) const {
    Arguments arguments = {"init", model, "--data", "book.txt", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  }
  // One short run of the file as it is.
  Outcome try_out(const std::string& file) const {
    return onefold({"train", file, "--json", "--set", "run.threads=1"});
  }
};

TEST_F(CliInit, ANewModelTrainsAsItIs) {
  const Json result = init("gpt2-tiny");
  expect_keys(result,
              {"output", "parameters", "tokens", "steps", "planned_peak_bytes", "configuration"});
  EXPECT_EQ(result["output"], "config.json");
  const Json& configuration = result["configuration"];
  EXPECT_EQ(configuration["model"]["vocab_size"], 257);  // the bytes', not the preset's
  EXPECT_EQ(configuration["data"]["train"], Json({"book.txt"}));
  EXPECT_EQ(configuration["optimizer"]["params"]["lr"], 3e-3);
  EXPECT_EQ(configuration["run"]["output"], "runs/gpt2-tiny-book");

  const Outcome trained = try_out("config.json");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json summary = Json::parse(trained.out);
  EXPECT_EQ(summary["steps"], result["steps"]);
  EXPECT_EQ(summary["output"], "runs/gpt2-tiny-book");
  EXPECT_TRUE(exists("runs/gpt2-tiny-book/weights.safetensors"));
}

TEST_F(CliInit, ThePlanInTheFileIsTheRuns) {
  const Json result = init("gpt2-tiny");
  const Outcome plan = onefold({"train", "config.json", "--plan-only", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(Json::parse(plan.out)["planned_peak_bytes"], result["planned_peak_bytes"]);
}

TEST_F(CliInit, EveryLineThatSaysSomethingHasAComment) {
  init("demo");
  std::istringstream file(read("config.json"));
  for (std::string line; std::getline(file, line);) {
    const bool says = line.find(": ") != std::string::npos && !line.ends_with("{");
    EXPECT_TRUE(!says || line.find("// ") != std::string::npos) << line;
  }
}

TEST_F(CliInit, AFileThatIsThereStays) {
  folder_.write("config.json", "mine");
  expect_error(onefold({"init", "gpt2-tiny", "--data", "book.txt"}), 1,
               {"--output: config.json already exists", "another file"});
  EXPECT_EQ(read("config.json"), "mine");
  expect_error(onefold({"init", "gpt2-tiny", "--data", "book.txt", "--output", "book.txt"}), 1,
               {"the input"});
}

TEST_F(CliInit, LessMemoryTakesSmallerMicroBatchesThenRecomputation) {
  std::string text;  // enough for steps of several sequences
  for (int copy = 0; copy < 10; ++copy) text += read("book.txt");
  folder_.write("book.txt", text);
  const auto with = [&](const std::string& memory, const std::string& file) {
    return init("gpt2-tiny", {"--memory", memory, "--output", file});
  };
  const Json plenty = with("1GiB", "plenty.json")["configuration"];
  const int64_t whole = init("gpt2-tiny", {"--output", "whole.json"})["planned_peak_bytes"];
  const Json some = with(std::to_string(whole - 1), "some.json");
  EXPECT_LT(some["planned_peak_bytes"].get<int64_t>(), whole);
  EXPECT_LT(some["configuration"]["train_micro_batch_size_per_gpu"],
            plenty["train_micro_batch_size_per_gpu"]);
  EXPECT_EQ(some["configuration"]["train_batch_size"], plenty["train_batch_size"]);
  EXPECT_EQ(some["configuration"]["run"]["memory"], whole - 1);
  const Outcome trained =
      onefold({"train", "some.json", "--quiet", "--set", "run.steps=2", "--set", "scheduler=null"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  // A sequence at a time is the least without recomputation.
  const Outcome least = onefold({"train", "some.json", "--plan-only", "--json", "--set",
                                 "train_micro_batch_size_per_gpu=1", "--set", "run.memory=null"});
  const int64_t single = Json::parse(least.out)["planned_peak_bytes"];
  EXPECT_EQ(with(std::to_string(single - 1), "less.json")["configuration"]["run"]["recompute"],
            true);
  expect_error(onefold({"init", "gpt2-tiny", "--data", "book.txt", "--memory", "100KiB", "--output",
                        "none.json"}),
               1, {"does not fit", "--memory"});
  EXPECT_FALSE(exists("none.json"));
}

TEST_F(CliInit, ARunsWeightsAreWhereTrainingBegins) {
  init("gpt2-tiny", {"--output", "first.json"});
  ASSERT_EQ(try_out("first.json").code, 0);
  const Json result = init("runs/gpt2-tiny-book", {"--output", "second.json"});
  EXPECT_EQ(result["configuration"]["model"]["weights"], "runs/gpt2-tiny-book");
  EXPECT_EQ(result["configuration"]["optimizer"]["params"]["lr"], 3e-4);
  const Outcome second = onefold({"train", "second.json", "--set", "run.threads=1", "--quiet"});
  ASSERT_EQ(second.code, 0) << second.err;
  // Its first loss is that of a model that has learned already.
  const std::string run = result["configuration"]["run"]["output"];
  EXPECT_LT(lines(run + "/metrics.jsonl").front()["loss"].get<double>(),
            lines("runs/gpt2-tiny-book/metrics.jsonl").front()["loss"].get<double>() - 0.5);
}

TEST_F(CliInit, AHuggingFaceFolderIsTuned) {
  make_run("run", "llama-tiny");
  ASSERT_EQ(onefold({"export", "run", "hf"}).code, 0);
  const Json result = init("hf");
  EXPECT_EQ(result["configuration"]["model"]["weights"], "hf");
  const Outcome trained = try_out("config.json");
  EXPECT_EQ(trained.code, 0) << trained.err;
}

TEST_F(CliInit, WhatIsNotThereIsNamed) {
  expect_error(onefold({"init", "gtp2", "--data", "book.txt"}), 1, {"gtp2", "did you mean"});
  expect_error(onefold({"init", "gpt2-tiny", "--data", "no.txt"}), 1, {"--data", "no.txt"});
  expect_error(onefold({"init", "gpt2-tiny"}), 2, {"--data is required"});
}

}  // namespace
}  // namespace onefold

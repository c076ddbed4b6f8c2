// Continuing a prompt from a run's weights.
#include "cli/support.h"

namespace onefold {
namespace {

class Generate : public Cli {
 protected:
  Generate() { make_run("run"); }

  Json generated(Arguments arguments) const {
    arguments.insert(arguments.begin(),
                     {"generate", "run", "--tokens", "20", "--threads", "1", "--json"});
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  Outcome error(const Arguments& arguments = {}) const {
    Arguments all = {"generate", "run", "--prompt", "a"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return onefold(all);
  }
};

TEST_F(Generate, GreedyIsDeterministicAndBeginsWithThePrompt) {
  const Arguments command = {"generate", "run",      "--prompt", "The fox",
                             "--greedy", "--tokens", "10",       "--threads"};
  const auto on_threads = [&](const char* threads) {
    Arguments all = command;
    all.emplace_back(threads);
    return onefold(all);
  };
  const Outcome one = on_threads("1"), two = on_threads("2");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(one.out.starts_with("The fox") && one.out.ends_with("\n")) << one.out;
  EXPECT_EQ(one.out, two.out);
}

TEST_F(Generate, JsonHasTextAndTokens) {
  const Json result = generated({"--prompt", "The fox", "--greedy"});
  expect_keys(result, {"prompt", "text", "tokens", "prompt_tokens", "passed_over", "seconds"});
  EXPECT_EQ(result["prompt"], "The fox");
  EXPECT_EQ(result["prompt_tokens"], 7);
  EXPECT_LE(result["tokens"].size(), 20u);
}

TEST_F(Generate, TheSeedDecides) {
  const Json one = generated({"--prompt", "a", "--seed", "1"});
  EXPECT_EQ(one["tokens"], generated({"--prompt", "a"})["tokens"]);  // 1 is the default
  EXPECT_NE(one["tokens"], generated({"--prompt", "a", "--seed", "2"})["tokens"]);
}

TEST_F(Generate, ThePromptMayComeFromAFileOrBeMissing) {
  folder_.write("prompt.txt", "The fox");
  EXPECT_EQ(generated({"--prompt-file", "prompt.txt", "--greedy"})["tokens"],
            generated({"--prompt", "The fox", "--greedy"})["tokens"]);
  EXPECT_EQ(generated({"--greedy"})["prompt_tokens"], 1);  // a document begins
}

TEST_F(Generate, BeamSearchIsDeterministic) {
  EXPECT_EQ(generated({"--prompt", "a", "--beams", "3"})["tokens"],
            generated({"--prompt", "a", "--beams", "3"})["tokens"]);
  EXPECT_GT(generated({"--prompt", "a", "--beams", "2", "--length-penalty", "2"})["tokens"].size(),
            0u);
}

// gpt2-tiny has 263 tokens and bytes are 257: untrained weights draw the others too.
TEST_F(Generate, TokensThatTheTokenizerDoesNotHaveAreNoError) {
  Arguments command = {"generate", "run", "--prompt", "a", "--tokens", "66", "--threads", "1"};
  const Outcome text = onefold(command);
  command.emplace_back("--json");
  const Outcome json = onefold(command);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(json.code, 0) << json.err;
  const auto tokens = Json::parse(json.out)["tokens"].get<std::vector<int>>();
  EXPECT_GE(*std::max_element(tokens.begin(), tokens.end()), 257);
  expect_in(text.out, {"\uFFFD"});
}

TEST_F(Generate, TheModelsLastPositionEndsTheTextWithANote) {
  const Outcome outcome =
      onefold({"generate", "run", "--prompt", "a", "--greedy", "--tokens", "999"});
  EXPECT_EQ(outcome.code, 0);
  expect_in(outcome.err, {"stopped at the model's 67 positions"});
}

TEST_F(Generate, APromptThatIsTooLongIsNotPrinted) {
  expect_error(onefold({"generate", "run", "--prompt-file", "book.txt"}), 1,
               {"the prompt has ", " tokens; the model has 67 positions"});
}

TEST_F(Generate, SamplingOptionsOutOfRangeSayTheirRange) {
  expect_error(error({"--top-p", "3"}), 1, {"top-p is 3", "above 0 and at most 1"});
  expect_error(error({"--top-k", "-1"}), 1, {"top-k is -1"});
  expect_error(error({"--temperature", "-1"}), 1, {"temperature is -1", "0 (greedy)"});
  expect_error(error({"--repetition-penalty", "0"}), 1, {"repetition penalty is 0"});
  expect_error(onefold({"generate", "run", "--prompt-file", "missing"}), 1,
               {"cannot open missing"});
}

TEST_F(Generate, WhatIsNoRunFolderIsNamed) {
  expect_error(onefold({"generate", "missing"}), 1, {"missing", "there is no such folder"});
  expect_error(onefold({"generate", "book.txt"}), 1, {"book.txt is a file", "run.output"});
  expect_error(onefold({"generate", "."}), 1, {"not the folder of a run", "model.json"});
  std::filesystem::remove(folder_.path("run/weights.safetensors"));
  expect_error(error(), 1, {"has no weights yet"});
}

TEST_F(Generate, DamagedWeightsAreNamed) {
  const std::string weights = read("run/weights.safetensors");
  const auto damage = [&](const std::string& content) {
    folder_.write("run/weights.safetensors", content);
    return error();
  };
  expect_error(damage(weights.substr(0, weights.size() - 4)), 1,
               {"run/weights.safetensors", "the file is cut off"});
  expect_error(damage(weights.substr(0, 100)), 1, {"its header should have", "cut off"});
  expect_error(damage(""), 1, {"it has 0 bytes"});
  expect_error(damage("this is not a safetensors file"), 1, {"run/weights.safetensors"});
}

TEST_F(Generate, WeightsOfAnotherModelAreRefused) {
  make_run("llama", "llama-tiny");
  std::filesystem::copy_file(folder_.path("llama/weights.safetensors"),
                             folder_.path("run/weights.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  expect_error(error(), 1, {"run/weights.safetensors", "tensor"});
}

TEST_F(Generate, ADamagedModelOrTokenizerIsNamed) {
  folder_.write("run/tokenizer.json", "{");
  expect_error(error(), 1, {"run/tokenizer.json"});
  std::filesystem::remove(folder_.path("run/tokenizer.json"));
  expect_error(error(), 1, {"run has no tokenizer.json", "data.tokenizer"});
  make_run("other");
  folder_.write("other/model.json", "{\"hidden\": 3}");
  expect_error(onefold({"generate", "other"}), 1,
               {"other/model.json: model.hidden is not a known key"});
}

}  // namespace
}  // namespace onefold

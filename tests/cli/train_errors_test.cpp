// What a user is told when a configuration, its data or its output folder is wrong.
#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, AConfigurationThatCannotBeReadIsNamed) {
  expect_error(onefold({"train", "missing.json"}), 1, {"cannot open missing.json", "No such file"});
  expect_error(onefold({"train", "."}), 1, {"it is a folder"});
  folder_.write("bad.json", "{\n  \"model\" 3\n}");
  expect_error(onefold({"train", "bad.json"}), 1, {"bad.json:2:11", "not valid JSON"});
  folder_.write("bad.json", "{\"model\": \"gpt2-tiny\", \"model\": \"demo\"}");
  expect_error(onefold({"train", "bad.json"}), 1, {"\"model\" appears twice"});
  folder_.write("bad.json", "[1]");
  expect_error(onefold({"train", "bad.json"}), 1, {"bad.json", "must be an object"});
}

TEST_F(Cli, WrongKeysAreErrorsWithAWayOut) {
  struct Case {
    std::string key;
    std::vector<std::string_view> words;
  };
  const std::vector<Case> cases = {
      {"run.stepz=3", {"config.json: run.stepz is not a known key", "did you mean \"steps\"?"}},
      {"optimiser.type=SGD", {"optimiser is not a known key", "\"optimizer\""}},
      {"run.steps=many", {"run.steps must be an integer, not a string (\"many\")"}},
      {"run.steps=0", {"run.steps must be at least 1"}},
      {"run.epochs=2", {"run.steps, run.epochs and run.tokens exclude each other"}},
      {"optimizer.params.momentum=0.5", {"optimizer.params.momentum has no effect", "SGD"}},
      {"run.eval_every=5", {"run.eval_every has no effect", "data.validation_fraction"}},
      {"gradient_accumulation_steps=3", {"train_batch_size is 4, not a multiple"}},
      {"train_micro_batch_size_per_gpu=3", {"train_batch_size is 4", "3"}},
      {"data.sequence_length=100", {"data.sequence_length is 100", "max_sequence_length is 67"}},
      {"run.memory=lots", {"run.memory: \"lots\" is not a size", "24GiB"}},
      {"model=gpt2-tin", {"\"gpt2-tin\" is neither a preset nor a file", "\"gpt2-tiny\""}},
      {"model.dropout=0.1", {"--set model.dropout=0.1", "{\"preset\": ...}"}},
      {"scheduler.type=cosin", {"scheduler.type must be one of", "\"cosine\""}},
      {"zero_optimization.stage=4", {"zero_optimization.stage", "must be 0, 1, 2 or 3"}},
      {"run.steps", {"--set run.steps: write it as path=value"}},
  };
  for (const Case& wrong : cases) {
    const Outcome outcome = train({wrong.key});
    expect_error(outcome, 1, {"onefold: error: "});
    for (const std::string_view words : wrong.words) expect_in(outcome.err, {words});
  }
  EXPECT_FALSE(exists("run"));
}

TEST_F(Cli, DataThatCannotBeTrainedOnIsNamed) {
  expect_error(train({"data.train=missing.txt"}), 1, {"cannot open missing.txt"});
  folder_.write("empty.txt", "");
  expect_error(train({"data.train=empty.txt"}), 1, {"empty.txt is empty"});
  folder_.write("short.txt", "hello");
  expect_error(train({"data.train=short.txt"}), 1,
               {"the training data has 6 tokens, and one sequence of 32 needs 33"});
  expect_error(train({"data.train=book.txt", "data.validation_fraction=0.001"}), 1,
               {"the validation data has"});
  expect_error(train({"data.format=tokens"}), 1, {"book.txt is not a token file", "tokenize"});
  expect_error(train({"data.tokenizer=missing.json"}), 1, {"cannot open missing.json"});
  EXPECT_FALSE(exists("run"));
}

TEST_F(Cli, ABadLineOfJsonlIsNamedWithItsNumber) {
  folder_.write("docs.jsonl", "{\"text\": \"good\"}\n{\"text\": \n");
  expect_error(train({"data.train=docs.jsonl"}), 1, {"docs.jsonl:2", "not JSON"});
  folder_.write("docs.jsonl", "{\"text\": \"good\"}\n\n{\"body\": \"no\"}\n");
  expect_error(train({"data.train=docs.jsonl"}), 1,
               {"docs.jsonl:3", "no field \"text\"", "\"body\""});
  folder_.write("docs.jsonl", "{\"text\": 3}\n");
  expect_error(train({"data.train=docs.jsonl"}), 1, {"docs.jsonl:1", "a string is needed"});
}

TEST_F(Cli, AVocabularyThatIsTooSmallSaysHowToRaiseIt) {
  ASSERT_EQ(
      onefold({"tokenize", "train", "book.txt", "--vocab-size", "290", "--output", "t.json"}).code,
      0);
  expect_error(train({"data.tokenizer=t.json"}), 1,
               {"gpt2-tiny", "vocabulary of 263", "290", "model.vocab_size",
                "{\"preset\": \"name\", \"vocab_size\": 290}"});
  // The advice works.
  const Outcome outcome =
      train({"data.tokenizer=t.json", "model={\"preset\": \"gpt2-tiny\", \"vocab_size\": 290}"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Cli, AnOutputFolderThatCannotBeMadeIsNamed) {
  expect_error(train({"run.output=book.txt/run"}), 1,
               {"cannot create the folder book.txt/run", "Not a directory"});
  expect_error(train({"run.output=/proc/run"}), 1, {"cannot create the folder /proc/run"});
  expect_error(train({"run.output=book.txt"}), 1, {"book.txt", "Not a directory"});
}

}  // namespace
}  // namespace onefold

// A model's loss and accuracies, from every kind of folder and on any number of ranks.
#include <cmath>
#include <cstdlib>

#include "cli/support.h"

namespace onefold {
namespace {

class Eval : public Cli {
 protected:
  Eval() { make_run("run"); }

  Outcome eval(Arguments arguments) const {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--threads", "1", "--json"});
    return onefold(arguments);
  }
  Json evaluated(const Arguments& arguments) const {
    const Outcome outcome = eval(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json::object();
  }
  void write_choices() const {
    folder_.write("choices.jsonl",
                  R"({"prompt": "The quick", "choices": ["brown fox", "lazy dog", "x"], "answer": 2}
{"question": "Number 3", "choices": ["of the", "jumps over a lazy dog and more"], "answer": "A"}
{"context": "Over a", "choices": ["lazy", "q", "dog"], "answer": "lazy"}
)");
  }
};

TEST_F(Eval, LossPerplexityAndBitsPerByteBelongTogether) {
  const Json result = evaluated({"run", "--data", "book.txt"});
  expect_keys(result, {"model", "task", "data", "loss", "perplexity", "bits_per_byte", "tokens",
                       "bytes", "sequences", "sequence_length", "ranks", "passed_over", "seconds"});
  const auto bytes = static_cast<int64_t>(read("book.txt").size());
  EXPECT_EQ(result["task"], "loss");
  EXPECT_EQ(result["tokens"], bytes);       // all but the first, and the end of the text
  EXPECT_EQ(result["bytes"], bytes - 1);    // an end has none
  EXPECT_EQ(result["sequence_length"], 8);  // the run's
  const auto loss = result["loss"].get<double>();
  EXPECT_NEAR(result["perplexity"].get<double>(), std::exp(loss), 1e-6);
  EXPECT_NEAR(result["bits_per_byte"].get<double>(),
              loss / std::log(2) * static_cast<double>(bytes) / static_cast<double>(bytes - 1),
              1e-9);
  const Outcome text = onefold({"eval", "run", "--data", "book.txt", "--threads", "1"});
  EXPECT_EQ(text.code, 0);
  expect_in(text.out, {"loss            ", "perplexity      ", "bits per byte   ", "on 1 rank"});
}

TEST_F(Eval, IsTheSameForRunsCheckpointsExportsAndTokenFiles) {
  ASSERT_EQ(train({"run.output=trained"}).code, 0);
  ASSERT_EQ(onefold({"export", "trained", "exported"}).code, 0);
  ASSERT_EQ(onefold({"tokenize", "encode", "book.txt", "--output", "book.tokens"}).code, 0);
  const auto loss = [&](const char* model, const char* data) {
    return evaluated({model, "--data", data, "--sequence", "16"})["loss"];
  };
  const Json wanted = loss("trained", "book.txt");
  EXPECT_EQ(loss("trained/checkpoints/step-00000003", "book.txt"), wanted);
  EXPECT_EQ(loss("exported", "book.txt"), wanted);
  EXPECT_EQ(loss("trained", "book.tokens"), wanted);
  folder_.write("book.jsonl", Json({{"body", read("book.txt")}}).dump());
  EXPECT_EQ(
      evaluated({"trained", "--data", "book.jsonl", "--field", "body", "--sequence", "16"})["loss"],
      wanted);
}

TEST_F(Eval, IsTheValidationLossOfTheTraining) {
  folder_.write("held_out.txt", read("book.txt").substr(0, 777));
  for (const char* limit : {"0", "5"}) {
    const Arguments keys = {"run.output=trained", "data.validation=held_out.txt",
                            std::string("run.eval_sequences=") + limit};
    ASSERT_EQ(train(keys, {"--quiet", "--overwrite"}).code, 0);
    double trained = 0;
    for (const Json& line : lines("trained/metrics.jsonl"))
      if (line["event"] == "evaluation") trained = line["loss"];
    const Json result =
        evaluated({"trained", "--data", "held_out.txt", "--batch", "2", "--limit", limit});
    EXPECT_DOUBLE_EQ(result["loss"].get<double>(), trained) << limit;
  }
}

TEST_F(Eval, IsTheSameOnAnyNumberOfRanks) {
  write_choices();
  for (const char* data : {"book.txt", "choices.jsonl"}) {
    Json wanted = evaluated({"run", "--data", data, "--limit", "9", "--batch", "2"});
    for (const Arguments& flags :
         std::vector<Arguments>{{"--ranks", "2"}, {"--ranks", "3", "--shard"}, {"--ranks", "6"}}) {
      Arguments all = {"run", "--data", data, "--limit", "9", "--batch", "2"};
      all.insert(all.end(), flags.begin(), flags.end());
      Json result = evaluated(all);
      for (const char* differs : {"ranks", "seconds"}) result[differs] = wanted[differs];
      EXPECT_EQ(result, wanted) << flags[1];
    }
  }
}

TEST_F(Eval, RanksMayBeProcesses) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI's own, at its end
  const Arguments command = {"eval", "run", "--data", "book.txt", "--limit", "9", "--json"};
  const Outcome outcome = onefold(command, {.launcher = {"mpirun", "--oversubscribe", "-n", "2"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["ranks"], 2);
  EXPECT_EQ(result["loss"], evaluated({"run", "--data", "book.txt", "--limit", "9"})["loss"]);
}

TEST_F(Eval, ChoicesAreToldByTheirFieldAndScored) {
  write_choices();
  const Json result = evaluated({"run", "--data", "choices.jsonl"});
  expect_keys(result, {"model", "task", "data", "accuracy", "accuracy_error", "accuracy_normalised",
                       "accuracy_normalised_error", "questions", "texts", "truncated", "ranks",
                       "passed_over", "seconds"});
  EXPECT_EQ(result["task"], "choices");
  EXPECT_EQ(result["questions"], 3);
  EXPECT_EQ(result["texts"], 8);
  // Without training every byte has about the same probability: the shortest choice wins, which is
  // right once, and wrong twice.
  EXPECT_NEAR(result["accuracy"].get<double>(), 2.0 / 3, 1e-9);
  const Outcome text = onefold({"eval", "run", "--data", "choices.jsonl", "--limit", "2"});
  expect_in(text.out, {"accuracy        100.00 %", "normalised ", "questions       2"});
}

// A model that has learnt the book by heart knows how its lines end. Texts are no longer than the
// sequences it was trained on.
TEST_F(Eval, LastWordsAreKnownToAModelThatHasLearntThem) {
  ASSERT_EQ(train({"run.output=trained", "run.steps=300", "optimizer.params.lr=5e-3"}).code, 0);
  folder_.write("lambada.jsonl",
                "{\"text\": \"foxes jumps over a lazy dog.\"}\n"
                "{\"text\": \"brown foxes jumps over a lazy\"}\n"
                "{\"text\": \"foxes jumps over a crazy\"}\n");
  const Json result = evaluated({"trained", "--data", "lambada.jsonl", "--task", "last-word"});
  expect_keys(result, {"model", "task", "data", "accuracy", "accuracy_error", "perplexity",
                       "questions", "truncated", "ranks", "passed_over", "seconds"});
  EXPECT_NEAR(result["accuracy"].get<double>(), 2.0 / 3, 1e-9);
  // The same file is text too.
  EXPECT_EQ(evaluated({"trained", "--data", "lambada.jsonl"})["task"], "loss");
}

TEST_F(Eval, TextsThatDoNotFitLoseTheirBeginningWithANote) {
  folder_.write("long.jsonl", "{\"text\": \"" + std::string(90, 'a') + " end\"}\n");
  const Outcome outcome = eval({"run", "--data", "long.jsonl", "--task", "last-word"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["truncated"], 1);
  expect_in(outcome.err, {"of 1 of 1 texts the beginning is left out, to fit 67 tokens"});
}

TEST_F(Eval, WhatIsWrongIsNamed) {
  write_choices();
  folder_.write("bad.jsonl", "{\"prompt\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": 7}\n");
  expect_error(eval({"run", "--data", "bad.jsonl"}), 1,
               {"bad.jsonl:1", "\"answer\" is 7", "none of the 2 choices"});
  expect_error(eval({"run", "--data", "choices.jsonl", "--task", "loss"}), 1,
               {"choices.jsonl:1", "no field \"text\""});
  expect_error(eval({"run", "--data", "choices.jsonl", "--task", "last-word"}), 1,
               {"choices.jsonl:1", "no field \"text\""});
  expect_error(eval({"run", "--data", "book.txt", "--task", "choices"}), 1,
               {"--task choices needs lines of JSON", "--format jsonl"});
  expect_error(eval({"run", "--data", "book.txt", "--task", "acc"}), 1,
               {"--task", "loss, choices, last-word"});
  expect_error(eval({"run", "--data", "book.txt", "--sequence", "68"}), 1,
               {"--sequence is 68", "67 positions"});
  expect_error(eval({"run", "--data", "book.txt", "--shard"}), 1, {"--shard has no effect"});
  expect_error(eval({"run", "--data", "missing.txt"}), 1, {"cannot open missing.txt"});
  expect_error(eval({"missing", "--data", "book.txt"}), 1, {"missing", "no such folder"});
  expect_error(eval({"run", "--data", "choices.jsonl", "--documents", "packed"}), 1,
               {"--documents has no effect"});
}

}  // namespace
}  // namespace onefold

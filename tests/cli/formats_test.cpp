// Data from the command line: pipes, compressed files, patterns, weights, conversations, and token
// files of other trainers.
#include "cli/support.h"

namespace onefold {
namespace {

class CliFormats : public Cli {
 protected:
  CliFormats() {
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "{} + {}"}}, {{"role": "assistant", "content": "{}"}}]}})"
          "\n",
          i, i, 2 * i);
    folder_.write("chat.jsonl", lines);
  }
  double loss_of(const Arguments& keys) const {
    const Outcome outcome = train(keys, {"--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["loss"].get<double>() : 0;
  }
  const std::string markers_ =
      R"(data.chat={"user": ["Q: ", "\n"], "assistant": ["A: ", "<|endoftext|>"]})";
};

TEST_F(CliFormats, TrainsOnPipesAndCompressedFilesAsOnTheText) {
  const double plain = loss_of({"run.output="});
  const Outcome piped = shell(
      "cat book.txt | $onefold train config.json --set data.train=- --set run.output=piped --json");
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(Json::parse(piped.out)["loss"], plain);
  const Json files = Json::parse(read("piped/run.json"))["data"]["files"];
  EXPECT_EQ(files[0]["path"], "-");
  EXPECT_TRUE(files[0]["bytes"].is_null());
  const Outcome fifo = shell(
      "mkfifo pipe; gzip -c book.txt > pipe & $onefold train config.json --set data.train=pipe "
      "--set run.output=x --json");
  ASSERT_EQ(fifo.code, 0) << fifo.err;
  EXPECT_EQ(Json::parse(fifo.out)["loss"], plain);
  ASSERT_EQ(shell("gzip -k book.txt").code, 0);
  EXPECT_EQ(loss_of({"data.train=book.txt.gz", "run.output="}), plain);
  const std::string whole = read("book.txt.gz");
  folder_.write("short.txt.gz", whole.substr(0, whole.size() - 9));
  expect_error(train({"data.train=short.txt.gz"}), 1, {"short.txt.gz is cut short"});
}

TEST_F(CliFormats, EncodesStandardInputAndChecksIt) {
  const Outcome encoded =
      shell("cat book.txt | $onefold tokenize encode - --document-unit line --output a.tokens");
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  expect_in(encoded.out, {"in 40 documents, ended by <|endoftext|> (256, by its name)"});
  const Outcome checked = shell(
      "cat book.txt book.txt | $onefold data check config.json --set data.train=- --set "
      "data.document_unit=line");
  EXPECT_EQ(checked.code, 5) << checked.err;
  expect_in(checked.out, {"40 of 80 training documents", " of the files is document "});
}

TEST_F(CliFormats, SpecialTokensInTextBecomeTheirIdsWhereAskedFor) {
  EXPECT_EQ(Json::parse(onefold({"tokenize", "show", "a<|endoftext|>", "--special", "--json"}).out),
            (Json{{"text", "a<|endoftext|>"}, {"tokens", {97, 256}}}));
  EXPECT_EQ(
      Json::parse(onefold({"tokenize", "show", "a<|endoftext|>", "--json"}).out)["tokens"].size(),
      14u);
  folder_.write("s.txt", "one<|endoftext|>two");
  const auto tokens = [&](const Arguments& more) {
    Arguments words = {"tokenize", "encode",      "s.txt", "--output",
                       "s.tokens", "--overwrite", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(onefold(words).out)["tokens"].get<int>();
  };
  EXPECT_EQ(tokens({}), 20);
  EXPECT_EQ(tokens({"--special"}), 8);
}

TEST_F(CliFormats, BadLinesAreNamedOrSkipped) {
  folder_.write("bad.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"\\ud800\"}\n{}\n");
  const Arguments encode = {"tokenize", "encode", "bad.jsonl", "--output", "b.tokens"};
  expect_error(onefold(encode), 1, {"bad.jsonl:2"});
  Arguments skipping = encode;
  skipping.push_back("--skip-bad");
  const Outcome skipped = onefold(skipping);
  EXPECT_EQ(skipped.code, 0);
  expect_in(skipped.err, {"2 lines were skipped, the first because bad.jsonl:2"});
  expect_error(train({"data.train=bad.jsonl", "data.sequence_length=4"}), 1, {"bad.jsonl:2"});
  expect_in(train({"data.train=bad.jsonl", "data.sequence_length=4", "data.skip_bad=true"},
                  {"--plan-only"})
                .out,
            {"2 lines skipped, the first because bad.jsonl:2"});
  expect_error(train({"data.skip_bad=true"}), 1, {"data.skip_bad", "no effect"});
  expect_error(onefold({"tokenize", "encode", "book.txt", "--skip-bad", "--output", "x"}), 1,
               {"--skip-bad has no effect"});
}

TEST_F(CliFormats, ConversationsAreTrainedOnTheirAnswers) {
  const Arguments fields = {"data.train=chat.jsonl", "data.format=chat", markers_, "run.output="};
  const Outcome plan = train(fields, {"--plan-only", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const Json planned = Json::parse(plan.out);
  EXPECT_EQ(planned["documents"], 40);
  // Answers of one digit or two, each with its end; the data's end may fill no sequence.
  EXPECT_NEAR(planned["targets"].get<double>(), 5 * 2 + 35 * 3, 8);
  expect_in(train(fields, {"--plan-only"}).out, {"loss on the answers alone: 1"});
  EXPECT_EQ(Config::from_json(planned["configuration"]).effective(), planned["configuration"]);
  const double loss = loss_of(fields);
  EXPECT_GT(loss, 0);

  // A token file keeps the mask: the same loss, to the bit.
  const std::string markers = markers_.substr(markers_.find('=') + 1);
  const Outcome encoded = onefold({"tokenize", "encode", "chat.jsonl", "--format", "chat", "--chat",
                                   markers, "--output", "chat.tokens"});
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  expect_in(encoded.out, {"loss on the answers alone"});
  EXPECT_EQ(loss_of({"data.train=chat.tokens", "run.output="}), loss);

  expect_error(
      train({"data.train=chat.jsonl", "data.format=chat", R"(data.chat={"user": ["", ""]})"}), 1,
      {"data.chat.assistant is missing"});
  expect_error(
      train({"data.train=chat.jsonl", "data.format=chat", R"(data.chat={"assistant": "A"})"}), 1,
      {"data.chat.assistant must be a list of two strings"});
  expect_error(onefold({"tokenize", "encode", "book.txt", "--chat", "{}", "--output", "x"}), 1,
               {"--chat has no effect"});
  expect_error(train({"data.train=chat.jsonl"}), 1, {"set the format to \"chat\""});
  expect_error(train({"data.train=chat.jsonl", "data.format=chat"}), 1, {"data.chat"});
  for (const char* mode : {"packed", "isolated", "separated"}) {
    Arguments here = fields;
    here.push_back(std::string("data.documents=") + mode);
    EXPECT_GT(loss_of(here), 0) << mode;
  }
}

TEST_F(CliFormats, PatternsAndWeightsMixFiles) {
  std::string text = read("book.txt");
  for (char& c : text) c = static_cast<char>(std::toupper(c));
  folder_.write("loud1.txt", text);
  folder_.write("loud2.txt", text);
  const auto plan = [&](const std::string& files) {
    return train({"data.train=" + files, "run.output=", "run.steps=null", "run.epochs=1"},
                 {"--plan-only", "--json"});
  };
  const auto steps = [&](const std::string& files) {
    const Outcome outcome = plan(files);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["steps"].get<double>();
  };
  const double one = steps("book.txt");
  EXPECT_NEAR(steps("loud*.txt"), 2 * one, 1);
  const std::string mix =
      R"([{"path": "loud*.txt", "weight": 0.5}, {"path": "book.txt", "weight": 3}])";
  EXPECT_NEAR(steps(mix), 4 * one, 2);
  EXPECT_NEAR(steps(R"(["book.txt", {"path": "loud1.txt", "weight": 2}])"), 3 * one, 2);
  const Json configuration = Json::parse(plan(mix).out)["configuration"];
  EXPECT_EQ(Config::from_json(configuration).effective(), configuration);
  expect_error(plan("none*.txt"), 1, {"no file matches none*.txt"});
  expect_error(plan(R"([{"path": "book.txt", "weight": 0}])"), 1, {"data.train[0].weight"});
  expect_error(train({"data.train=" + mix, "data.validation_fraction=0.1"}), 1,
               {"data.validation_fraction", "weights"});
  // Stopped and resumed, a weighted run draws the same samples.
  const double whole = loss_of({"data.train=" + mix, "run.output=", "run.steps=6"});
  ASSERT_EQ(train({"data.train=" + mix, "run.steps=6", "run.save_every=2"}).code, 0);
  const Outcome resumed =
      onefold({"train", "config.json", "--set", "data.train=" + mix, "--set", "run.steps=6",
               "--set", "run.output=again", "--resume", "run/checkpoints/step-00000004", "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(Json::parse(resumed.out)["loss"], whole);
}

TEST_F(CliFormats, ReadsTokenFilesOfOtherTrainers) {
  std::string ids;
  for (const char c : read("book.txt")) ids += std::string{c, '\0'};
  folder_.write("train.bin", ids);
  const Arguments fields = {"data.train=train.bin", "data.tokenizer=bytes", "run.output="};
  const double loss = loss_of(fields);
  // The text has an end-of-text at its end, which fills no sequence.
  EXPECT_EQ(loss, loss_of({"run.output="}));
  EXPECT_EQ(loss_of({"data.train=train.bin", "run.output=nano"}),
            loss);  // by the model's vocabulary
  const Json file = Json::parse(read("nano/run.json"))["data"]["files"][0];
  EXPECT_EQ(file["tokens"], read("book.txt").size());
  folder_.write("train.bin", ids + "x");
  expect_error(train(fields), 1, {"train.bin", "no multiple of 2"});
}

}  // namespace
}  // namespace onefold

// Learning a vocabulary, encoding with it, and training on what comes out.
#include "cli/support.h"

namespace onefold {
namespace {

class Tokenize : public Cli {
 protected:
  Outcome learn(const Arguments& more = {}) const {
    Arguments arguments = {"tokenize", "train",    "book.txt",      "--vocab-size",
                           "280",      "--output", "tokenizer.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return onefold(arguments);
  }
  Json json(Arguments arguments) const {
    arguments.insert(arguments.begin(), "tokenize");
    arguments.emplace_back("--json");
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
};

TEST_F(Tokenize, LearnsEncodesAndTrains) {
  const Outcome learnt = learn();
  EXPECT_EQ(learnt.code, 0) << learnt.err;
  expect_in(learnt.out, {"tokenizer.json: 280 tokens learnt from"});

  const Outcome encoded = onefold({"tokenize", "encode", "book.txt", "--tokenizer",
                                   "tokenizer.json", "--output", "book.tokens"});
  EXPECT_EQ(encoded.code, 0) << encoded.err;
  expect_in(encoded.out,
            {"book.tokens: ",
             " tokens of 2 bytes in 1 document, ended by <|endoftext|> (256, by its name);"});

  const Arguments keys = {"data.tokenizer=tokenizer.json",
                          "model={\"preset\": \"gpt2-tiny\", \"vocab_size\": 280}"};
  Arguments from_tokens = keys;
  from_tokens.insert(from_tokens.end(), {"data.train=book.tokens", "run.output=tokens"});
  ASSERT_EQ(train(keys).code, 0);
  ASSERT_EQ(train(from_tokens).code, 0);
  EXPECT_EQ(read("run/weights.safetensors"), read("tokens/weights.safetensors"));
  EXPECT_EQ(read("run/tokenizer.json"), read("tokenizer.json"));
  const Outcome text = onefold({"generate", "tokens", "--prompt", "The quick", "--tokens", "4"});
  EXPECT_EQ(text.code, 0) << text.err;
}

TEST_F(Tokenize, JsonOfEachCommand) {
  const Json learnt =
      json({"train", "book.txt", "--vocab-size", "280", "--output", "tokenizer.json"});
  expect_keys(learnt, {"output", "vocab_size", "text_bytes", "skipped_lines", "seconds"});
  EXPECT_EQ(learnt["vocab_size"], 280);
  EXPECT_EQ(learnt["text_bytes"], read("book.txt").size());

  const Json encoded = json({"encode", "book.txt", "--document-unit", "line", "--tokenizer",
                             "tokenizer.json", "--output", "book.tokens"});
  expect_keys(encoded, {"output", "tokens", "documents", "vocab_size", "token_bytes", "end_of_text",
                        "masked", "skipped_lines", "peak_rss_bytes", "seconds"});
  EXPECT_EQ(encoded["documents"], 40);
  EXPECT_EQ(encoded["token_bytes"], 2);

  const Json shown = json({"show", "a fox"});
  EXPECT_EQ(shown, (Json{{"text", "a fox"}, {"tokens", {97, 32, 102, 111, 120}}}));
}

TEST_F(Tokenize, ShowsEachTokenWithItsText) {
  ASSERT_EQ(learn().code, 0);
  const Outcome outcome =
      onefold({"tokenize", "show", "quick\n\xff", "--tokenizer", "tokenizer.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.out, {"  10  \"\\n\"\n", " 255  \"\\xff\"\n"});
}

TEST_F(Tokenize, BytesThatAreNoUtf8AreNoErrorInJson) {
  EXPECT_EQ(json({"show", "a\xff"})["tokens"], (Json{97, 255}));
}

TEST_F(Tokenize, SpecialTokensAreAddedWhenAskedFor) {
  const std::string llama = std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json";
  Arguments arguments = {"encode",      "book.txt", "--document-unit", "line",
                         "--tokenizer", llama,      "--output",        "book.tokens"};
  const int64_t plain = json(arguments)["tokens"].get<int64_t>();
  arguments.emplace_back("--overwrite");
  arguments.emplace_back("--add-special-tokens");
  EXPECT_EQ(json(arguments)["tokens"].get<int64_t>(), plain + 40);  // a <s> for each line
  expect_error(onefold({"tokenize", "encode", "book.txt", "--add-special-tokens", "--output", "x"}),
               1, {"--add-special-tokens has no effect", "bytes"});
  EXPECT_FALSE(exists("x"));
}

TEST_F(Tokenize, ATextWithFewPairsIsNoted) {
  folder_.write("book.txt", "abab");
  const Outcome outcome = learn();
  EXPECT_EQ(outcome.code, 0);
  expect_in(outcome.err, {"no more pairs to merge", "280"});
}

TEST_F(Tokenize, AWrongTokenizerForATokenFileIsRefused) {
  ASSERT_EQ(learn().code, 0);
  ASSERT_EQ(json({"encode", "book.txt", "--output", "book.tokens"})["vocab_size"], 257);
  expect_error(train({"data.train=book.tokens", "data.tokenizer=tokenizer.json"}), 1,
               {"book.tokens was made with another tokenizer"});
}

TEST_F(Tokenize, ATrainedModelWithoutATokenizerSaysWhy) {
  ASSERT_EQ(json({"encode", "book.txt", "--output", "book.tokens"})["documents"], 1);
  ASSERT_EQ(train({"data.train=book.tokens"}).code, 0);
  expect_error(onefold({"generate", "run"}), 1, {"no tokenizer.json", "data.tokenizer"});
}

TEST_F(Tokenize, BenchMeasuresATokenizer) {
  const Outcome outcome = onefold({"bench", "tokenizer", "book.txt", "--rounds", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  expect_keys(bench, {"input", "tokenizer", "bytes", "tokens", "encode_mb_per_s", "decode_mb_per_s",
                      "encode_seconds", "decode_seconds"});
  EXPECT_EQ(bench["bytes"], read("book.txt").size());
  EXPECT_EQ(bench["tokens"], bench["bytes"]);  // each byte is one
  EXPECT_EQ(bench["encode_seconds"].size(), 2u);
  EXPECT_GT(bench["encode_mb_per_s"], 0.0);
  folder_.write("empty.txt", "");
  expect_error(onefold({"bench", "tokenizer", "empty.txt"}), 1, {"empty.txt is empty"});
}

TEST_F(Tokenize, WrongInputsAreNamed) {
  const auto encode = [&](Arguments arguments) {
    arguments.insert(arguments.begin(), {"tokenize", "encode"});
    arguments.insert(arguments.end(), {"--output", "x.tokens"});
    return onefold(arguments);
  };
  folder_.write("empty.txt", "");
  folder_.write("book.tokens", "ONEFTOK");
  folder_.write("docs.jsonl", "{\"text\": \"a\"}\n");
  expect_error(encode({"missing.txt"}), 1, {"cannot open missing.txt"});
  expect_error(encode({"empty.txt"}), 1, {"empty.txt is empty"});
  expect_error(encode({"book.tokens"}), 1, {"book.tokens", "holds no text"});
  expect_error(encode({"book.txt", "docs.jsonl"}), 1, {"different formats", "--format"});
  expect_error(encode({"book.txt", "--field", "body"}), 1, {"--field has no effect", "JSONL"});
  expect_error(encode({"docs.jsonl", "--document-unit", "line"}), 1, {"--document-unit has no"});
  expect_error(encode({"book.txt", "--document-unit", "lines"}), 1, {"\"line\"?"});
  expect_error(encode({"book.txt", "--format", "josnl"}), 1, {"\"jsonl\"?"});
  EXPECT_FALSE(exists("x.tokens"));
  expect_error(onefold({"tokenize", "train", "book.txt", "--output", "no/t.json"}), 1,
               {"cannot create no/t.json"});
  expect_error(
      onefold({"tokenize", "train", "book.txt", "--vocab-size", "30", "--output", "t.json"}), 2,
      {"--vocab-size", "257"});
}

}  // namespace
}  // namespace onefold

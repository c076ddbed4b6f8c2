#include "cli/support.h"
#include "data/token_file.h"

namespace onefold {
namespace {

// "check" in this folder, on the data section given.
Outcome check(const ScratchFolder& folder, const Json& data, Arguments more = {}) {
  const Json config = {{"model", "gpt2-tiny"}, {"train_batch_size", 2}, {"data", data}};
  folder.write("config.json", config.dump());
  Arguments arguments = {"data", "check", "config.json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Process(folder.path("."), arguments, {}).wait();
}

std::string jsonl(const std::vector<std::string>& documents) {
  std::string lines;
  for (const std::string& document : documents) lines += Json{{"text", document}}.dump() + "\n";
  return lines;
}

const std::vector<std::string> kTrain = {"the quick brown fox jumps over the lazy dog",
                                         "pack my box with five dozen liquor jugs",
                                         "sphinx of black quartz, judge my vow"};

TEST(DataCheck, CleanDataEndsWithZero) {
  const ScratchFolder folder;
  folder.write("train.jsonl", jsonl(kTrain));
  folder.write("held_out.jsonl", jsonl({"how vexingly quick daft zebras jump"}));
  const Outcome outcome =
      check(folder, {{"train", "train.jsonl"}, {"validation", "held_out.jsonl"}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.out,
            {"0 of 3 training documents", "0 of 1 validation windows", "nothing was found"});
}

TEST(DataCheck, PlantedFindingsEndWithFive) {
  const ScratchFolder folder;
  std::vector<std::string> train = kTrain;
  train.push_back(kTrain[0]);
  folder.write("train.jsonl", jsonl(train));
  folder.write("held_out.jsonl", jsonl({"nothing of the kind here", kTrain[1] + " today"}));
  const Json data = {{"train", "train.jsonl"}, {"validation", "held_out.jsonl"}};
  const Outcome text = check(folder, data);
  EXPECT_EQ(text.code, 5) << text.err;
  expect_in(text.out, {"1 of 4 training documents repeat", "is train.jsonl at byte 0",
                       "1 of 2 validation windows", "held_out.jsonl at byte"});
  const Outcome outcome = check(folder, data, {"--json"});
  EXPECT_EQ(outcome.code, 5);
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["clean"], false);
  EXPECT_EQ(result["duplicates"]["in_train"], 1);
  EXPECT_EQ(result["overlap"]["contaminated"], 1);
  EXPECT_GT(result["overlap"]["worst"][0]["share"], 0.8);
}

TEST(DataCheck, ReadsTextAndTokenFiles) {
  const ScratchFolder folder;
  folder.write("train.txt", kTrain[0] + "\n" + kTrain[1] + "\n" + kTrain[0] + "\n");
  EXPECT_EQ(check(folder, {{"train", "train.txt"}, {"document_unit", "line"}}).code, 5);
  EXPECT_EQ(check(folder, {{"train", "train.txt"}}).code, 0);  // one document
  for (const char* name : {"train.tokens", "held_out.tokens"}) {
    TokenFileWriter writer(folder.path(name), 100, 0, 0);
    std::vector<int32_t> tokens;
    for (int32_t i = 1; i < 60; ++i) tokens.push_back(i);
    writer.add(tokens);
    writer.finish();
  }
  const Outcome tokens =
      check(folder, {{"train", "train.tokens"}, {"validation", "held_out.tokens"}});
  EXPECT_EQ(tokens.code, 5);
  expect_in(tokens.out, {"held_out.tokens, document 0 is train.tokens, document 0"});
}

}  // namespace
}  // namespace onefold

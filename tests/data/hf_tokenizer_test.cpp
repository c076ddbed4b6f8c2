// Tokenizers of Hugging Face folders: vocab.json with merges.txt gives what tokenizer.json gives,
// and the token that ends a text is the one that the files name.
#include "data/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/scratch.h"

namespace onefold {
namespace {

using nlohmann::json;

std::string golden_file(const std::string& name) {
  return read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/" + name);
}

json small_tokenizer() { return json::parse(golden_file("tokenizer_small.json")); }

// The same vocabulary as the files of a slow tokenizer.
void write_vocabulary(const ScratchFolder& folder, const json& file) {
  folder.write("vocab.json", file["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const json& merge : file["model"]["merges"])
    merges +=
        (merge.is_string() ? merge.get<std::string>()
                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>()) +
        "\n";
  folder.write("merges.txt", merges);
}

json decoder_of(const json& file) {
  json table;
  for (json token : file["added_tokens"]) {
    const std::string id = std::to_string(token["id"].get<int>());
    token.erase("id");
    table[id] = token;
  }
  return table;
}

void expect_same(const Tokenizer& ours, const Tokenizer& theirs) {
  const std::string text = golden_file("tokenizer_torture.txt") + " 12345 <|pad|> e\u0301 <tool>";
  for (const auto specials : {Tokenizer::Specials::kAsText, Tokenizer::Specials::kMatch})
    EXPECT_EQ(ours.encode(text, specials), theirs.encode(text, specials));
  EXPECT_EQ(ours.vocab_size(), theirs.vocab_size());
  EXPECT_EQ(ours.decode(ours.encode(text)), theirs.decode(theirs.encode(text)));
}

TEST(HfTokenizer, VocabularyAndMergesGiveWhatTokenizerJsonGives) {
  const ScratchFolder folder;
  json file = small_tokenizer();
  write_vocabulary(folder, file);
  json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"added_tokens_decoder", decoder_of(file)}};
  folder.write("tokenizer_config.json", config.dump());
  expect_same(load_tokenizer(folder.path("")), Tokenizer::parse(file.dump(), "gpt2"));

  config["tokenizer_class"] = "Qwen2TokenizerFast";
  folder.write("tokenizer_config.json", config.dump());
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kQwen2Pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  json last = file["pre_tokenizer"];
  last["use_regex"] = false;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, last}}};
  file["normalizer"] = {{"type", "NFC"}};
  expect_same(load_tokenizer(folder.path("")), Tokenizer::parse(file.dump(), "qwen2"));
}

// Older folders: the class by the model, and added tokens in files of their own.
TEST(HfTokenizer, AddedTokensComeFromOlderFilesToo) {
  const ScratchFolder folder;
  const json file = small_tokenizer();
  write_vocabulary(folder, file);
  folder.write("config.json", R"({"model_type": "gpt2", "eos_token_id": 0})");
  folder.write("added_tokens.json", R"({"<tool>": 700})");
  folder.write("special_tokens_map.json",
               R"({"pad_token": {"content": "<|pad|>"}, "additional_special_tokens": ["<new>"]})");
  const Tokenizer tokenizer = load_tokenizer(folder.path(""));
  const std::vector<int32_t> ids =
      tokenizer.encode("<|endoftext|><|pad|><tool><new>", Tokenizer::Specials::kMatch);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 700, 701}));
  EXPECT_EQ(tokenizer.encode("<tool>"), (std::vector<int32_t>{700}));  // added, and not special
  EXPECT_GT(tokenizer.encode("<new>").size(), 1u);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
}

TEST(HfTokenizer, WhatCannotBeReadIsRefusedWithAWayOut) {
  const ScratchFolder folder;
  const auto error = [&] { return user_error_of([&] { load_tokenizer(folder.path("")); }); };
  expect_in(error(), {"has no tokenizer", "data.tokenizer"});
  folder.write("tokenizer.model", "\n\x0e");
  expect_in(error(), {"tokenizer.model is not a model of SentencePiece"});
  write_vocabulary(folder, small_tokenizer());
  expect_in(error(), {"tokenizer_class", "save_pretrained()"});
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  expect_in(error(), {"\"RobertaTokenizer\"", "GPT2Tokenizer and Qwen2Tokenizer"});
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(load_tokenizer(folder.path("")).vocab_size(), 700);
  folder.write("merges.txt", "#version: 0.2\na b\nthree words here\n");
  expect_in(error(), {"merges.txt:3", "two tokens"});
  folder.write("merges.txt", "a zzzz\n");
  expect_in(error(), {"vocab.json", "model.merges[0]"});
  folder.write("vocab.json", "{\"a\": 0");
  expect_in(error(), {"vocab.json is not a vocabulary"});
  folder.write("vocab.json", "[1]");
  expect_in(error(), {"vocab.json is not a vocabulary"});
}

class EndOfText : public testing::Test {
 protected:
  EndOfText() {
    json file = small_tokenizer();
    for (const char* text : {"<|im_start|>", "<|im_end|>"})
      file["added_tokens"].push_back({{"id", next_++},
                                      {"content", text},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    folder_.write("tokenizer.json", file.dump());
  }
  Tokenizer load() const { return load_tokenizer(folder_.path("tokenizer.json")); }
  std::string found() const { return describe_end_of_text(load().end_of_text(), &tokenizer()); }
  const Tokenizer& tokenizer() const {
    kept_.emplace(load());
    return *kept_;
  }

  int next_ = 701;
  ScratchFolder folder_;
  mutable std::optional<Tokenizer> kept_;
};

TEST_F(EndOfText, IsTheOneThatTheFilesName) {
  EXPECT_EQ(found(), "ended by <|endoftext|> (0, by its name)");
  folder_.write("config.json", R"({"eos_token_id": 702})");  // not a model's: no model_type
  EXPECT_EQ(load().end_of_text(), 0);
  folder_.write("config.json", R"({"model_type": "qwen2", "eos_token_id": 702})");
  EXPECT_EQ(found(), "ended by <|im_end|> (702, by config.json)");
  folder_.write("generation_config.json", R"({"eos_token_id": [701, 702]})");
  EXPECT_EQ(found(), "ended by <|im_start|> (701, by generation_config.json)");
  folder_.write("special_tokens_map.json", R"({"eos_token": {"content": "<|pad|>"}})");
  EXPECT_EQ(found(), "ended by <|pad|> (1, by special_tokens_map.json)");
  folder_.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(found(), "ended by <|im_end|> (702, by tokenizer_config.json)");
  folder_.write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(load().end_of_text(), 1);
  EXPECT_EQ(describe_end_of_text(-1, nullptr), "ended by no token");
}

TEST_F(EndOfText, MustBeATokenThatThereIs) {
  const auto error = [&] { return user_error_of([&] { load(); }); };
  folder_.write("config.json", R"({"model_type": "qwen2", "eos_token_id": 70000})");
  expect_in(error(), {"config.json: eos_token_id is 70000"});
  folder_.write("generation_config.json", R"({"eos_token_id": ["x"]})");
  expect_in(error(), {"generation_config.json", "neither an id nor a list"});
  folder_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  expect_in(error(), {"tokenizer_config.json: eos_token is \"</s>\""});
  folder_.write("tokenizer_config.json", R"({"eos_token": 5})");
  expect_in(error(), {"tokenizer_config.json: eos_token is 5"});
}

TEST_F(EndOfText, CompanionsAreTheFilesBesideATokenizer) {
  folder_.write("vocab.json", "{}");  // alone: anything
  folder_.write("chat_template.jinja", "template");
  EXPECT_EQ(tokenizer_companions(folder_.path("tokenizer.json")).size(), 2u);
  folder_.write("tokenizer_config.json", "{}");
  const auto files = tokenizer_companions(folder_.path("tokenizer.json"));
  EXPECT_EQ(files.size(), 4u);
  EXPECT_EQ(files.at("tokenizer.json"), read_file(folder_.path("tokenizer.json")));
  EXPECT_EQ(files.at("chat_template.jinja"), "template");
  EXPECT_TRUE(tokenizer_companions("bytes").empty());
}

// Models that SentencePiece has made, and its ids (tests/golden/make_sentencepiece_goldens.py).
TEST(HfTokenizer, ReadsSentencePiecesOwnFiles) {
  const std::string golden = std::string(ONEFOLD_GOLDEN_DIR) + "/sentencepiece/";
  const auto cases = nlohmann::json::parse(read_file(golden + "cases.json"));
  for (const auto& [kind, texts] : cases.items()) {
    const ScratchFolder folder;
    folder.write("tokenizer.model", read_file(golden + kind + ".model"));
    EXPECT_EQ(tokenizer_in_folder(folder.path("")), folder.path(""));
    const Tokenizer tokenizer = load_tokenizer(folder.path(""));
    EXPECT_EQ(tokenizer.added_tokens().size(), 4u);  // <unk>, <s>, </s>, <tool>
    EXPECT_EQ(tokenizer.hash(), load_tokenizer(folder.path("tokenizer.model")).hash());
    EXPECT_GT(texts.size(), 20u);
    for (const auto& item : texts)
      EXPECT_EQ(tokenizer.encode(item[0].get<std::string>()), item[1].get<std::vector<int32_t>>())
          << kind << " " << item[0];
    folder.write("added_tokens.json", R"({"<more>": 480})");
    expect_in(user_error_of([&] { load_tokenizer(folder.path("")); }),
              {"<more>", "tokenizer.model"});
    folder.write("tokenizer.model", read_file(golden + kind + ".model").substr(0, 1000));
    expect_in(user_error_of([&] { load_tokenizer(folder.path("")); }), {"tokenizer.model"});
  }
}

}  // namespace
}  // namespace onefold

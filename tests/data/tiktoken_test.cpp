// Tokens with ranks: tiktoken's files and tekken.json give tiktoken's ids. tests/golden/README.md
// says how the golden files were made.
#include "data/tiktoken.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "data/hf_tokenizer.h"
#include "data/scratch.h"
#include "error_text.h"

namespace onefold {
namespace {

std::string tiktoken_golden(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/tiktoken/" + name;
}

TEST(Tiktoken, EveryTextHasTheIdsOfTiktoken) {
  const Json cases = read_json(tiktoken_golden("cases.json"));
  for (const auto& [name, ids] : cases["ids"].items()) {
    const Tokenizer tokenizer = load_tokenizer(tiktoken_golden(name));
    const Tokenizer again = Tokenizer::parse(tokenizer.to_json(), "saved");
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto text = cases["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer.encode(text), ids[i].get<std::vector<int32_t>>()) << name << ": " << text;
      EXPECT_EQ(again.encode(text), tokenizer.encode(text)) << name << ": " << text;
      if (name != "qwen.tiktoken") {
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
      }
    }
  }
}

TEST(Tiktoken, SpecialTokensFollowFromTheName) {
  const Tokenizer qwen = load_tokenizer(tiktoken_golden("qwen.tiktoken"));
  EXPECT_EQ(qwen.vocab_size(), 1500 + 3 + 205);
  EXPECT_EQ(qwen.encode("<|im_end|>", Tokenizer::Specials::kMatch), std::vector<int32_t>{1502});
  EXPECT_GT(qwen.encode("<|im_end|>").size(), 1u);
  EXPECT_EQ(qwen.end_of_text(), 1500);
  const Tokenizer llama = load_tokenizer(tiktoken_golden("tokenizer.model"));
  EXPECT_EQ(llama.vocab_size(), 1500 + 256);
  EXPECT_EQ(llama.template_before(), std::vector<int32_t>{1500});
  EXPECT_EQ(llama.encode("<|eot_id|>", Tokenizer::Specials::kMatch), std::vector<int32_t>{1509});
  EXPECT_EQ(llama.encode("<|reserved_special_token_247|>", Tokenizer::Specials::kMatch),
            std::vector<int32_t>{1755});
  const Tokenizer tekken = load_tokenizer(tiktoken_golden("tekken.json"));
  EXPECT_EQ(tekken.vocab_size(), 1500 - 7 + 20) << "no more than the model has";
  EXPECT_EQ(tekken.template_before(), std::vector<int32_t>{1});
  EXPECT_EQ(tekken.encode("[/INST]", Tokenizer::Specials::kMatch), std::vector<int32_t>{4});
}

TEST(Tiktoken, AFolderHasOneFile) {
  const ScratchFolder folder;
  const std::string ranks = read_file(tiktoken_golden("qwen.tiktoken"));
  folder.write("qwen.tiktoken", ranks);
  const std::string path = folder.path("");
  EXPECT_TRUE(tokenizer_in_folder(path).ends_with("qwen.tiktoken"));
  EXPECT_EQ(load_tokenizer(path).vocab_size(), 1708);
  EXPECT_FALSE(tokenizer_companions(path).contains("tokenizer.json")) << "it is none";
  folder.write("other.tiktoken", ranks);
  EXPECT_ERROR(load_tokenizer(path), "has no tokenizer", "one file of .tiktoken");
  folder.write("tekken.json", read_file(tiktoken_golden("tekken.json")));
  EXPECT_EQ(load_tokenizer(path).vocab_size(), 1513);
}

TEST(Tiktoken, WhatIsNoSuchFileIsRefused) {
  const auto ranks = [](std::string_view content, const std::string& name = "qwen.tiktoken") {
    return tokenizer_json_of_tiktoken(content, name, "here");
  };
  EXPECT_ERROR(ranks("IQ== 0\n", "mine.tiktoken"), "\"mine\" is no name that does", "cl100k_base");
  EXPECT_ERROR(ranks("IQ== 0\nIg==\n"), "here:2", "base64");
  EXPECT_ERROR(ranks("IQ== 0\n??? 1\n"), "here:2", "base64");
  EXPECT_ERROR(ranks("IQ== 0\nIg== x\n"), "here:2", "rank");
  EXPECT_ERROR(ranks("IQ== 0\nIg== 0\n"), "here:2", "twice");
  EXPECT_ERROR(ranks("IQ== 99999999999\n"), "here:1", "too large");
  EXPECT_ERROR(ranks(""), "no tokens");
  EXPECT_ERROR(Tokenizer::parse(ranks("IQ== 0\n"), "here"), "no token for byte");
  EXPECT_TRUE(is_tiktoken("IQ== 0\n"));
  EXPECT_FALSE(is_tiktoken("\n\x0D\x0A\x05<unk>"));
  EXPECT_ERROR(tokenizer_json_of_tekken("{}", "here"), "here is not a tekken.json");
  EXPECT_ERROR(tokenizer_json_of_tekken(R"({"config": {}, "vocab": []})", "here"),
               "default_vocab_size");
  EXPECT_ERROR(tokenizer_json_of_tekken(R"({"config": {"default_vocab_size": 5, "pattern": "a",
      "default_num_special_tokens": 9}, "vocab": []})",
                                        "here"),
               "more special tokens");
}

}  // namespace
}  // namespace onefold

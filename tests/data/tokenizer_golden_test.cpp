// Ids and texts made by Hugging Face's `tokenizers` (tests/golden/make_tokenizer_goldens.py): ours
// must be the same, for every family, every line of the torture text and every variation of a part.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "data/byte_level.h"
#include "data/scratch.h"
#include "data/tokenizer.h"

namespace onefold {
namespace {

using nlohmann::json;

std::string golden_path(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/" + name;
}

const json& cases() {
  // The script's --fuzz writes other cases than those in the repository.
  static const json kCases = [] {
    const char* const other = std::getenv("ONEFOLD_TOKENIZER_CASES");
    return json::parse(read_file(other ? other : golden_path("tokenizer_cases.json")));
  }();
  return kCases;
}

// As file_of() in the script.
json file_of(const json& variant) {
  json file = json::parse(
      read_file(golden_path("tokenizer_" + variant["base"].get<std::string>() + ".json")));
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    if (variant.contains(key)) file[key] = variant[key];
  }
  if (variant.contains("model")) file["model"].update(variant["model"]);
  json& tokens = file["added_tokens"];
  json& vocab = file["model"]["vocab"];
  if (variant.value("special_normalized", false)) {
    for (json& token : tokens) token["normalized"] = true;
  }
  if (variant.value("empty_token", false)) {
    for (json& token : tokens)
      token["id"] = token["id"].get<int>() + (vocab.contains(token["content"]) ? 0 : 1);
    vocab[""] = vocab.size();
  }
  if (variant.value("crossing", false)) {
    const std::pair<std::string, std::string> pairs[] = {
        {"e", "▁"}, {".", "▁"}, {"s▁", "t"}, {"s", "▁"}, {"é", "▁"}};
    json& merges = file["model"]["merges"];
    for (const auto& [left, right] : pairs) {
      for (const std::string& piece : {left, right, left + right}) {
        if (!vocab.contains(piece)) vocab[piece] = vocab.size();
      }
      merges.insert(merges.begin(), json{left, right});
    }
  }
  size_t next = vocab.size();
  for (const json& token : tokens) next = std::max(next, token["id"].get<size_t>() + 1);
  for (json token : variant.value("added", json::array())) {
    token["id"] = next++;
    tokens.push_back(token);
  }
  return file;
}

std::string hash_of(const std::vector<int32_t>& ids, const std::string& text) {
  std::vector<std::string> words;
  for (const int32_t id : ids) words.push_back(std::to_string(id));
  return fmt::format("{:016x}", fnv1a64(join(words, " ") + "|" + text));
}

class TokenizerGolden : public testing::TestWithParam<size_t> {
 protected:
  TokenizerGolden()
      : variant_(cases()["variants"][GetParam()]),
        tokenizer_(Tokenizer::parse(file_of(variant_).dump(), variant_["name"])) {}

  std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) const {
    return tokenizer.encode(text, variant_.value("match_special", false)
                                      ? Tokenizer::Specials::kMatch
                                      : Tokenizer::Specials::kAsText);
  }
  // Ids and decoded texts, those of the golden file as hashes.
  void compare(const Tokenizer& tokenizer) const {
    const json& texts = cases()["texts"];
    for (size_t i = 0; i < variant_["ids"].size(); ++i) {
      const std::string text = texts[i].get<std::string>();
      const std::vector<int32_t> ids = encode(tokenizer, text);
      EXPECT_EQ(ids, variant_["ids"][i].get<std::vector<int32_t>>()) << texts[i];
      const json& decoded = variant_["decoded"][i];
      EXPECT_EQ(tokenizer.decode_text(ids), decoded.is_null() ? text : decoded.get<std::string>());
    }
    json hashed = variant_["ids"].empty() ? texts : json::array();
    for (const json& text : cases()["random_texts"]) hashed.push_back(text);
    ASSERT_EQ(hashed.size(), variant_["hashes"].size());
    for (size_t i = 0; i < hashed.size(); ++i) {
      const std::vector<int32_t> ids = encode(tokenizer, hashed[i].get<std::string>());
      EXPECT_EQ(hash_of(ids, tokenizer.decode_text(ids)), variant_["hashes"][i].get<std::string>())
          << hashed[i];
    }
  }

  const json variant_;
  const Tokenizer tokenizer_;
};

TEST_P(TokenizerGolden, EncodesAndDecodesAsHuggingFaceDoes) { compare(tokenizer_); }

TEST_P(TokenizerGolden, StaysTheSameWhenSaved) {
  const Tokenizer again = Tokenizer::parse(tokenizer_.to_json(), "saved");
  EXPECT_EQ(again.hash(), tokenizer_.hash());
  compare(again);
}

TEST_P(TokenizerGolden, DecodesAnyIdsAsHuggingFaceDoes) {
  const json& random = variant_["random_ids"];
  for (size_t i = 0; i < random.size(); ++i) {
    const auto ids = random[i].get<std::vector<int32_t>>();
    EXPECT_EQ(hash_of(ids, tokenizer_.decode_text(ids, i % 2 == 1)),
              variant_["random_hashes"][i].get<std::string>())
        << random[i];
  }
}

TEST_P(TokenizerGolden, KnowsWhatTheTemplateAdds) {
  std::vector<int32_t> ids = tokenizer_.template_before();
  const std::vector<int32_t> text = tokenizer_.encode("A program.");
  ids.insert(ids.end(), text.begin(), text.end());
  ids.insert(ids.end(), tokenizer_.template_after().begin(), tokenizer_.template_after().end());
  EXPECT_EQ(ids, variant_["with_template"].get<std::vector<int32_t>>());
}

TEST_P(TokenizerGolden, CutsCannotBeSeen) {
  WordCache cache;
  const auto specials = variant_.value("match_special", false) ? Tokenizer::Specials::kMatch
                                                               : Tokenizer::Specials::kAsText;
  for (const json& item : cases()["random_texts"]) {
    const std::string text = "It is " + item.get<std::string>() + " so  it's done ";
    const size_t cut = tokenizer_.safe_cut(text, text.size() / 3);
    std::vector<int32_t> ids;
    tokenizer_.encode(std::string_view(text).substr(0, cut), specials, cache, ids);
    tokenizer_.encode(std::string_view(text).substr(cut), specials, cache, ids,
                      Tokenizer::Place::kContinue);
    EXPECT_EQ(ids, encode(tokenizer_, text)) << item << " at " << cut;
  }
}

std::string name_of(const testing::TestParamInfo<size_t>& info) {
  std::string name = cases()["variants"][info.param]["name"].get<std::string>();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Variants, TokenizerGolden,
                         testing::Range<size_t>(0, cases()["variants"].size()), name_of);

}  // namespace
}  // namespace onefold

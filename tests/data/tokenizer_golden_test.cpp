// Ids made by Hugging Face's `tokenizers` (tests/golden/make_tokenizer_goldens.py): ours must be
// the same.
#include <nlohmann/json.hpp>

#include "data/scratch.h"
#include "data/tokenizer.h"

namespace onefold {
namespace {

nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/" + name));
}

TEST(TokenizerGolden, EncodesAsHuggingFaceDoes) {
  const nlohmann::json cases = golden("tokenizer_cases.json");
  const nlohmann::json& texts = cases["texts"];
  for (const nlohmann::json& variant : cases["variants"]) {
    nlohmann::json file = golden("tokenizer_small.json");
    file["pre_tokenizer"] = variant["pre_tokenizer"];
    file["model"]["ignore_merges"] = variant.value("ignore_merges", false);
    const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "golden");
    const bool match = variant.value("match_special", false);
    ASSERT_EQ(texts.size(), variant["ids"].size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i].get<std::string>();
      EXPECT_EQ(tokenizer.encode(
                    text, match ? Tokenizer::Specials::kMatch : Tokenizer::Specials::kAsText),
                variant["ids"][i].get<std::vector<int32_t>>())
          << variant["name"] << ": " << texts[i];
    }
  }
}

}  // namespace
}  // namespace onefold

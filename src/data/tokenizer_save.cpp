// tokenizer.json, written by hand, one token to a line: tokens in order of id, which a sorted JSON
// object would lose.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer.h"

namespace onefold {
namespace {

using nlohmann::json;

std::string json_string(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string added_json(const AddedToken& token) {
  return fmt::format(
      "    {{\"id\": {}, \"content\": {}, \"single_word\": {}, \"lstrip\": {}, \"rstrip\": {}, "
      "\"normalized\": {}, "
      "\"special\": {}}}",
      token.id, json_string(token.text), token.single_word, token.lstrip, token.rstrip,
      token.normalized, token.special);
}

// Spelt as the reader gives JSON back, so that a tokenizer has the same hash after it was saved and
// loaded.
constexpr std::string_view kByteLevelJson =
    R"({"add_prefix_space":false,"trim_offsets":true,"type":"ByteLevel","use_regex":true})";

std::string or_default(const std::string& json_text, std::string_view otherwise) {
  return json_text.empty() ? std::string(otherwise) : json_text;
}

bool holds_space(const std::string& text) { return text.find(' ') != std::string::npos; }

using AddedById = std::vector<const AddedToken*>;

std::string string_or_null(const std::string& text) {
  return text.empty() ? "null" : json_string(text);
}

// {"text": id, ...} of the tokens that are not only added.
std::string vocabulary_json(const TokenizerParts& parts, const AddedById& added) {
  std::string out = "    \"vocab\": {";
  const char* separator = "\n";
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const bool empty = static_cast<int64_t>(id) == parts.empty_token;
    if ((parts.spellings[id].empty() && !empty) || (added[id] && !added[id]->in_vocabulary))
      continue;
    out += fmt::format("{}      {}: {}", separator, json_string(parts.spellings[id]), id);
    separator = ",\n";
  }
  return out + "\n    }";
}

std::string merges_json(const TokenizerParts& parts) {
  std::string out = "    \"merges\": [";
  // "a b", the form that every version of `tokenizers` reads, or ["a", "b"] where a space would be
  // ambiguous; it does not read a mixture.
  const auto spelling = [&](int32_t id) { return parts.spellings[static_cast<size_t>(id)]; };
  const bool pairs = std::any_of(
      parts.merges.begin(), parts.merges.end(), [&](const TokenizerParts::Merge& merge) {
        return holds_space(spelling(merge.left)) || holds_space(spelling(merge.right));
      });
  const char* separator = "\n";
  for (const auto& [left, right, merged] : parts.merges) {
    out += separator;
    out += pairs ? fmt::format("      [{}, {}]", json_string(spelling(left)),
                               json_string(spelling(right)))
                 : "      " + json_string(spelling(left) + " " + spelling(right));
    separator = ",\n";
  }
  return out + "\n    ]";
}

std::string bpe_json(const TokenizerParts& parts, const AddedById& added) {
  return fmt::format(
             "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n    "
             "\"continuing_subword_prefix\": {},\n    \"end_of_word_suffix\": {},\n    "
             "\"fuse_unk\": {},\n    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n",
             string_or_null(parts.unknown_token), string_or_null(parts.piece_prefix),
             string_or_null(parts.word_suffix), parts.fuse_unknown, parts.byte_fallback,
             parts.ignore_merges) +
         vocabulary_json(parts, added) + ",\n" + merges_json(parts);
}

std::string unigram_json(const TokenizerParts& parts) {
  const auto unknown =
      std::find(parts.spellings.begin(), parts.spellings.end(), parts.unknown_token);
  std::string out = fmt::format(
      "    \"type\": \"Unigram\",\n    \"unk_id\": {},\n    \"byte_fallback\": {},\n    "
      "\"vocab\": [",
      parts.unknown_token.empty() ? "null" : std::to_string(unknown - parts.spellings.begin()),
      parts.byte_fallback);
  for (size_t id = 0; id < parts.scores.size(); ++id)
    out += fmt::format("{}      [{}, {}]", id == 0 ? "\n" : ",\n", json_string(parts.spellings[id]),
                       json(parts.scores[id]).dump());
  return out + "\n    ]";
}

std::string model_json(const TokenizerParts& parts, const AddedById& added) {
  switch (parts.model) {
    case TokenizerParts::Model::kBpe:
      return bpe_json(parts, added);
    case TokenizerParts::Model::kUnigram:
      return unigram_json(parts);
    case TokenizerParts::Model::kWordPiece:
      return fmt::format(
                 "    \"type\": \"WordPiece\",\n    \"unk_token\": {},\n    "
                 "\"continuing_subword_prefix\": {},\n    \"max_input_chars_per_word\": {},\n",
                 json_string(parts.unknown_token), json_string(parts.piece_prefix),
                 parts.most_characters) +
             vocabulary_json(parts, added);
    case TokenizerParts::Model::kWordLevel:
      return fmt::format("    \"type\": \"WordLevel\",\n    \"unk_token\": {},\n",
                         json_string(parts.unknown_token)) +
             vocabulary_json(parts, added);
  }
  internal_error("no model {}", static_cast<int>(parts.model));
}

}  // namespace

std::string Tokenizer::to_json() const {
  const TokenizerParts& parts = *parts_;
  std::vector<const AddedToken*> added_by_id(parts.tokens.size());
  std::string out =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  "
      "\"added_tokens\": [";
  for (const AddedToken& token : parts.added) {
    added_by_id[static_cast<size_t>(token.id)] = &token;
    out += (&token == parts.added.data() ? "\n" : ",\n") + added_json(token);
  }
  out += "\n  ],\n  \"normalizer\": " + parts.normalizer_json;
  out += ",\n  \"pre_tokenizer\": " + or_default(parts.pretokenizer_json, kByteLevelJson);
  out += ",\n  \"post_processor\": " + or_default(parts.post_processor_json, "null");
  out += ",\n  \"decoder\": " + or_default(parts.decoder_json, kByteLevelJson);
  out += ",\n  \"model\": {\n" + model_json(parts, added_by_id) + "\n  }\n}\n";
  return out;
}

}  // namespace onefold

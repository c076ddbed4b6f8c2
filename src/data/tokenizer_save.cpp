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
  out += fmt::format(
      ",\n  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    "
      "\"fuse_unk\": {},\n    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n    \"vocab\": "
      "{{",
      parts.unknown_token.empty() ? "null" : json_string(parts.unknown_token), parts.fuse_unknown,
      parts.byte_fallback, parts.ignore_merges);
  const char* separator = "\n";
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const AddedToken* const added = added_by_id[id];
    if (parts.spellings[id].empty() || (added && !added->in_vocabulary)) continue;
    out += fmt::format("{}      {}: {}", separator, json_string(parts.spellings[id]), id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  // "a b", the form that every version of `tokenizers` reads, or ["a", "b"] where a space would be
  // ambiguous; it does not read a mixture.
  const auto spelling = [&](int32_t id) { return parts.spellings[static_cast<size_t>(id)]; };
  const bool pairs = std::any_of(
      parts.merges.begin(), parts.merges.end(), [&](const TokenizerParts::Merge& merge) {
        return holds_space(spelling(merge.left)) || holds_space(spelling(merge.right));
      });
  separator = "\n";
  for (const auto& [left, right, merged] : parts.merges) {
    out += separator;
    out += pairs ? fmt::format("      [{}, {}]", json_string(spelling(left)),
                               json_string(spelling(right)))
                 : "      " + json_string(spelling(left) + " " + spelling(right));
    separator = ",\n";
  }
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace onefold

#include "data/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/byte_level.h"
#include "data/precompiled.h"
#include "data/pretokenizer.h"

namespace onefold {
namespace {

using nlohmann::json;

constexpr size_t kMostTokens = size_t{1} << 20;
constexpr size_t kLongestToken = 1024;

struct Special {
  int64_t id;
  std::string text;
};

// What the files of a name are encoded with.
struct Ranked {
  std::vector<std::string> tokens;  // by rank, as bytes; "": none of this rank
  int64_t first_id = 0;             // of rank 0
  std::string pattern;              // "": GPT-2's
  bool composes = false;            // NFC
  std::vector<Special> specials;
  std::string begins;  // the token that begins a text; "": none
};

constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";

void add_llama3_specials(Ranked& ranked) {
  static constexpr std::array<std::string_view, 11> kNames = {"<|begin_of_text|>",
                                                              "<|end_of_text|>",
                                                              "<|reserved_special_token_0|>",
                                                              "<|reserved_special_token_1|>",
                                                              "<|finetune_right_pad_id|>",
                                                              "<|reserved_special_token_2|>",
                                                              "<|start_header_id|>",
                                                              "<|end_header_id|>",
                                                              "<|eom_id|>",
                                                              "<|eot_id|>",
                                                              "<|python_tag|>"};
  const auto first = static_cast<int64_t>(ranked.tokens.size());
  for (int64_t i = 0; i < 256; ++i) {
    const auto at = static_cast<size_t>(i);
    ranked.specials.push_back(
        {first + i, at < kNames.size() ? std::string(kNames[at])
                                       : fmt::format("<|reserved_special_token_{}|>", i - 8)});
  }
  ranked.begins = "<|begin_of_text|>";
}

// Pattern and special tokens by the file's name.
void describe(const std::string& name, const std::string& source, Ranked& ranked) {
  const std::string stem = name.substr(0, name.rfind('.'));
  const auto after = static_cast<int64_t>(ranked.tokens.size());
  if (stem == "cl100k_base") {
    ranked.pattern = kLlama3Pattern;
    ranked.specials = {{100257, "<|endoftext|>"},
                       {100258, "<|fim_prefix|>"},
                       {100259, "<|fim_middle|>"},
                       {100260, "<|fim_suffix|>"},
                       {100276, "<|endofprompt|>"}};
  } else if (stem == "o200k_base") {
    ranked.pattern = kO200kPattern;
    ranked.specials = {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
  } else if (stem == "r50k_base" || stem == "p50k_base") {
    ranked.specials = {{50256, "<|endoftext|>"}};
  } else if (stem == "qwen") {
    ranked.pattern = kQwen2Pattern;
    ranked.composes = true;
    ranked.specials = {
        {after, "<|endoftext|>"}, {after + 1, "<|im_start|>"}, {after + 2, "<|im_end|>"}};
    for (int64_t i = 0; i < 205; ++i)
      ranked.specials.push_back({after + 3 + i, fmt::format("<|extra_{}|>", i)});
  } else if (name == "tokenizer.model") {
    ranked.pattern = kLlama3Pattern;
    add_llama3_specials(ranked);
  } else {
    user_error(
        "{}: a tiktoken file does not say how words are cut, and \"{}\" is no name that does: "
        "cl100k_base, o200k_base, p50k_base, r50k_base and qwen do",
        source, stem);
  }
}

void place(std::string token, uint64_t rank, const std::string& where, Ranked& ranked) {
  if (rank >= kMostTokens) user_error("{}: the rank {} is too large", where, rank);
  if (token.empty() || token.size() > kLongestToken)
    user_error("{}: a token has {} bytes", where, token.size());
  if (rank >= ranked.tokens.size()) ranked.tokens.resize(rank + 1);
  if (!ranked.tokens[rank].empty()) user_error("{}: the rank {} is there twice", where, rank);
  ranked.tokens[rank] = std::move(token);
}

// "IQ== 0" on each line.
void read_ranks(std::string_view content, const std::string& source, Ranked& ranked) {
  for (int64_t line = 1; !content.empty(); ++line) {
    const size_t end = std::min(content.find('\n'), content.size());
    std::string_view text = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    const std::string where = fmt::format("{}:{}", source, line);
    const size_t space = text.find(' ');
    std::string token;
    uint64_t rank = 0;
    const char* const last = text.data() + text.size();
    if (space == text.npos || !from_base64(std::string(text.substr(0, space)), token) ||
        std::from_chars(text.data() + space + 1, last, rank).ptr != last || text.ends_with(' '))
      user_error("{}: a line of tiktoken's is a token in base64, a space and its rank", where);
    place(std::move(token), rank, where, ranked);
  }
  if (ranked.tokens.empty()) user_error("{} has no tokens", source);
}

// Every way to put a token together of two of lower ranks, in order of ranks.
json merges_of(const Ranked& ranked, const std::vector<std::string>& letters) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < ranked.tokens.size(); ++rank)
    if (!ranked.tokens[rank].empty()) ranks.emplace(ranked.tokens[rank], rank);
  json merges = json::array();
  std::vector<std::pair<size_t, size_t>> ways;
  for (size_t rank = 0; rank < ranked.tokens.size(); ++rank) {
    const std::string_view token = ranked.tokens[rank];
    ways.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      const auto left = ranks.find(token.substr(0, at)), right = ranks.find(token.substr(at));
      if (left == ranks.end() || right == ranks.end()) continue;
      ways.emplace_back(left->second, right->second);
    }
    std::sort(ways.begin(), ways.end());
    for (const auto& [left, right] : ways) merges.push_back({letters[left], letters[right]});
  }
  return merges;
}

json byte_level_stage(bool cuts) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", cuts}};
}

std::string json_of(const Ranked& ranked, const std::string& source) {
  std::vector<std::string> letters;
  json vocab = json::object(), added = json::array();
  const auto add = [&](const std::string& text, int64_t id) {
    if (!vocab.emplace(text, id).second) user_error("{} has the token \"{}\" twice", source, text);
  };
  for (size_t rank = 0; rank < ranked.tokens.size(); ++rank) {
    letters.push_back(to_byte_alphabet(ranked.tokens[rank]));
    if (!letters.back().empty()) add(letters.back(), ranked.first_id + static_cast<int64_t>(rank));
  }
  json specials = json::object();
  for (const Special& special : ranked.specials) {
    add(special.text, special.id);
    added.push_back(
        {{"id", special.id}, {"content", special.text}, {"special", true}, {"normalized", false}});
    if (special.text == ranked.begins)
      specials[special.text] = {
          {"id", special.text}, {"ids", {special.id}}, {"tokens", {special.text}}};
  }
  json root = {{"version", "1.0"}, {"added_tokens", added}, {"decoder", byte_level_stage(true)}};
  root["pre_tokenizer"] = byte_level_stage(true);
  if (!ranked.pattern.empty())
    root["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", ranked.pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               byte_level_stage(false)}}};
  if (ranked.composes) root["normalizer"] = {{"type", "NFC"}};
  if (!specials.empty())
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single",
                               {{{"SpecialToken", {{"id", ranked.begins}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                              {"pair", json::array()},
                              {"special_tokens", specials}};
  root["model"] = {{"type", "BPE"},
                   {"ignore_merges", true},
                   {"vocab", std::move(vocab)},
                   {"merges", merges_of(ranked, letters)}};
  return root.dump();
}

// Of files that do not list them.
std::vector<Special> tekken_specials() {
  static constexpr std::array<std::string_view, 20> kNames = {"<unk>",
                                                              "<s>",
                                                              "</s>",
                                                              "[INST]",
                                                              "[/INST]",
                                                              "[AVAILABLE_TOOLS]",
                                                              "[/AVAILABLE_TOOLS]",
                                                              "[TOOL_RESULTS]",
                                                              "[/TOOL_RESULTS]",
                                                              "[TOOL_CALLS]",
                                                              "[IMG]",
                                                              "<pad>",
                                                              "[IMG_BREAK]",
                                                              "[IMG_END]",
                                                              "[PREFIX]",
                                                              "[MIDDLE]",
                                                              "[SUFFIX]",
                                                              "[SYSTEM_PROMPT]",
                                                              "[/SYSTEM_PROMPT]",
                                                              "[TOOL_CONTENT]"};
  std::vector<Special> specials;
  for (size_t i = 0; i < kNames.size(); ++i)
    specials.push_back({static_cast<int64_t>(i), std::string(kNames[i])});
  return specials;
}

int64_t tekken_integer(const json& object, const char* key, const std::string& source) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || *found > kMostTokens)
    user_error("{}: {} is no number of tokens: it is not a tekken.json", source, key);
  return found->get<int64_t>();
}

std::string tekken_text(const json& object, const char* key, const std::string& source) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string())
    user_error("{}: {} is no text: it is not a tekken.json", source, key);
  return found->get<std::string>();
}

}  // namespace

bool is_tiktoken(std::string_view content) {
  const std::string_view line = content.substr(0, std::min(content.find('\n'), size_t{2000}));
  const size_t space = line.find(' ');
  std::string token;
  return space != line.npos && space > 0 && space + 1 < line.size() &&
         from_base64(std::string(line.substr(0, space)), token) &&
         std::ranges::all_of(line.substr(space + 1),
                             [](char c) { return (c >= '0' && c <= '9') || c == '\r'; });
}

std::string tokenizer_json_of_tiktoken(std::string_view content, const std::string& name,
                                       const std::string& source) {
  Ranked ranked;
  read_ranks(content, source, ranked);
  describe(name, source, ranked);
  return json_of(ranked, source);
}

std::string tokenizer_json_of_tekken(std::string_view content, const std::string& source) {
  const json root = json::parse(content, nullptr, false);
  if (!root.is_object() || !root.contains("config") || !root["config"].is_object() ||
      !root.contains("vocab") || !root["vocab"].is_array())
    user_error("{} is not a tekken.json: it has no \"config\" and \"vocab\"", source);
  const json& config = root["config"];
  const int64_t size = tekken_integer(config, "default_vocab_size", source);
  const int64_t special_count = tekken_integer(config, "default_num_special_tokens", source);
  if (special_count > size) user_error("{}: more special tokens than tokens", source);
  Ranked ranked;
  ranked.first_id = special_count;
  ranked.pattern = tekken_text(config, "pattern", source);
  for (const json& entry : root["vocab"]) {
    std::string bytes;
    if (!from_base64(tekken_text(entry, "token_bytes", source), bytes))
      user_error("{}: token_bytes is not base64", source);
    const int64_t rank = tekken_integer(entry, "rank", source);
    if (rank >= size - special_count) continue;  // more than the model has
    place(std::move(bytes), static_cast<uint64_t>(rank), source, ranked);
  }
  if (const auto listed = root.find("special_tokens"); listed != root.end() && listed->is_array())
    for (const json& entry : *listed)
      ranked.specials.push_back(
          {tekken_integer(entry, "rank", source), tekken_text(entry, "token_str", source)});
  else
    ranked.specials = tekken_specials();
  for (const Special& special : ranked.specials)
    if (special.id >= special_count)
      user_error("{}: the special token {} is not among the first {}", source, special.text,
                 special_count);
  ranked.begins = "<s>";
  return json_of(ranked, source);
}

}  // namespace onefold

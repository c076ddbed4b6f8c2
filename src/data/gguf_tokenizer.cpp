#include "data/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/sentencepiece.h"

namespace onefold {
namespace {

using nlohmann::json;

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMergeList = "tokenizer.ggml.merges";
constexpr const char* kAddBegin = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEnd = "tokenizer.ggml.add_eos_token";
constexpr const char* kAddSpace = "tokenizer.ggml.add_space_prefix";
constexpr const char* kBegin = "tokenizer.ggml.bos_token_id";
constexpr const char* kEnd = "tokenizer.ggml.eos_token_id";
constexpr const char* kTemplateValue = "tokenizer.chat_template";
constexpr const char* kToolsTemplateValue = "tokenizer.chat_template.tool_use";

// Mistral's, of Nemo and later.
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek's, from V3 on: digits by threes and runs of Chinese and Japanese are cut off before.
// Line ends are characters in its files, not escapes.
constexpr std::array<std::string_view, 2> kDeepSeekBefore = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"};
constexpr std::string_view kDeepSeekPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+"
    R"(|\s+(?!\S)|\s+)";

// What llama.cpp calls a way of cutting words.
struct Cut {
  std::string_view name;
  std::string_view pattern;  // "": GPT-2's, by ByteLevel itself
  bool digits = false;       // every digit alone, before that
  bool whole_words = false;  // a word that is a token is taken as it is
  bool begins = false;       // texts begin with a token unless the file says otherwise
  std::array<std::string_view, 2> before = {};  // cut one after the other, before `pattern`
};
// The first that fits is what a tokenizer.json becomes.
constexpr std::array<Cut, 13> kCuts = {{
    {"gpt-2", ""},
    {"llama-bpe", kLlama3Pattern, false, true, true},
    {"llama3", kLlama3Pattern, false, true, true},
    {"llama-v3", kLlama3Pattern, false, true, true},
    {"dbrx", kLlama3Pattern},
    {"smaug-bpe", kLlama3Pattern},
    {"qwen2", kQwen2Pattern},
    {"deepseek-r1-qwen", kQwen2Pattern},
    {"tekken", kTekkenPattern, false, true, true},
    {"deepseek-v3", kDeepSeekPattern, false, false, false, kDeepSeekBefore},
    {"smollm", "", true},
    {"starcoder", "", true},
    {"refact", "", true},
}};

// A list of values that are all texts, or all numbers.
const Json& list(const GgufFile& file, const char* key) {
  const auto found = file.values().find(key);
  if (found == file.values().end() || !found->is_array())
    user_error("{} has no list {}", file.path(), key);
  return *found;
}

std::vector<std::string> texts(const GgufFile& file, const char* key) {
  std::vector<std::string> result;
  for (const Json& text : list(file, key)) {
    if (!text.is_string()) user_error("{}: {} holds what is no text", file.path(), key);
    result.push_back(text.get<std::string>());
    if (result.back().empty() || utf8_prefix(result.back()) != result.back().size())
      user_error("{}: {} holds a text that is empty or not UTF-8", file.path(), key);
  }
  return result;
}

// One number for each token, or none.
std::vector<double> numbers(const GgufFile& file, const char* key, size_t count) {
  std::vector<double> result;
  if (!file.has(key)) return result;
  for (const Json& number : list(file, key)) {
    if (!number.is_number()) user_error("{}: {} holds what is no number", file.path(), key);
    result.push_back(number.get<double>());
  }
  if (result.size() != count)
    user_error("{}: {} has {} entries for {} tokens", file.path(), key, result.size(), count);
  return result;
}

std::vector<uint64_t> types_of(const GgufFile& file, size_t count) {
  std::vector<uint64_t> types(count, SentencePiece::kNormal);
  const std::vector<double> given = numbers(file, kTypes, count);
  for (size_t i = 0; i < given.size(); ++i)
    types[i] = given[i] >= 1 && given[i] <= 6 ? static_cast<uint64_t>(given[i])
                                              : uint64_t{SentencePiece::kNormal};
  return types;
}

bool flag(const GgufFile& file, const char* key, bool otherwise) {
  const Json value = file.values().value(key, Json(otherwise));
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// A template that puts the named tokens around a text; null if there are none.
json surrounding(const GgufFile& file, const std::vector<std::string>& tokens, bool begin,
                 bool end) {
  json single = json::array(), specials = json::object();
  const auto add = [&](const char* key) {
    if (!file.has(key)) return;
    const int64_t id = file.integer(key);
    if (id < 0 || id >= static_cast<int64_t>(tokens.size()))
      user_error("{}: {} is {}, and there are {} tokens", file.path(), key, id, tokens.size());
    const std::string& text = tokens[static_cast<size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    specials[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  if (begin) add(kBegin);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (end) add(kEnd);
  if (specials.empty()) return nullptr;
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", json::array()},
          {"special_tokens", specials}};
}

json byte_level(bool cuts) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", cuts}};
}

json cutter_of(const Cut& cut) {
  json stages = json::array();
  if (cut.digits) stages.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const std::string_view pattern : {cut.before[0], cut.before[1], cut.pattern})
    if (!pattern.empty())
      stages.push_back({{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}});
  stages.push_back(byte_level(cut.pattern.empty()));
  if (stages.size() == 1) return stages[0];
  return {{"type", "Sequence"}, {"pretokenizers", stages}};
}

const Cut& cut_of(const GgufFile& file) {
  const std::string name = file.has(kPre) ? file.text(kPre) : "";
  const auto found = std::ranges::find(kCuts, name, &Cut::name);
  if (found != kCuts.end()) return *found;
  std::vector<std::string> known;
  for (const Cut& cut : kCuts) known.emplace_back(cut.name);
  user_error(
      "{}: {} is {}, a way of cutting words that is not known ({} are). Name the model's own "
      "tokenizer.json in data.tokenizer",
      file.path(), kPre, brief_json(Json(name)), fmt::join(known, ", "));
}

std::string byte_level_json(const GgufFile& file) {
  const Cut& cut = cut_of(file);
  const std::vector<std::string> tokens = texts(file, kTokens);
  const std::vector<uint64_t> types = types_of(file, tokens.size());
  json vocab = json::object(), added = json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!vocab.emplace(tokens[id], id).second)
      user_error("{}: {} has \"{}\" twice", file.path(), kTokens, tokens[id]);
    if (types[id] == SentencePiece::kControl || types[id] == SentencePiece::kUser ||
        types[id] == SentencePiece::kUnknown)
      added.push_back({{"id", id},
                       {"content", tokens[id]},
                       {"special", types[id] != SentencePiece::kUser},
                       {"normalized", false}});
  }
  json root = {{"version", "1.0"},
               {"added_tokens", added},
               {"pre_tokenizer", cutter_of(cut)},
               {"decoder", byte_level(true)},
               {"post_processor", surrounding(file, tokens, flag(file, kAddBegin, cut.begins),
                                              flag(file, kAddEnd, false))}};
  if (cut.pattern == kQwen2Pattern) root["normalizer"] = {{"type", "NFC"}};
  root["model"] = {{"type", "BPE"},
                   {"ignore_merges", cut.whole_words},
                   {"vocab", std::move(vocab)},
                   {"merges", texts(file, kMergeList)}};
  return root.dump();
}

std::string sentencepiece_json(const GgufFile& file) {
  SentencePieceModel model;
  model.type = SentencePieceModel::kBpe;
  model.add_dummy_prefix = flag(file, kAddSpace, true);
  const std::vector<std::string> tokens = texts(file, kTokens);
  const std::vector<uint64_t> types = types_of(file, tokens.size());
  const std::vector<double> scores = numbers(file, kScores, tokens.size());
  if (scores.empty()) user_error("{} has no {}", file.path(), kScores);
  for (size_t id = 0; id < tokens.size(); ++id) {
    model.pieces.push_back({tokens[id], static_cast<float>(scores[id]), types[id]});
    model.byte_fallback |= types[id] == SentencePiece::kByte;
  }
  json root = json::parse(tokenizer_json_of_sentencepiece(model, file.path()));
  root["post_processor"] =
      surrounding(file, tokens, flag(file, kAddBegin, true), flag(file, kAddEnd, false));
  return root.dump();
}

void add_chat_template(const GgufFile& file, Tokenizer& tokenizer) {
  if (!file.has(kTemplateValue)) return;
  ChatTemplateText text{file.text(kTemplateValue), file.path() + " (template)", Json::object()};
  if (utf8_prefix(text.text) != text.text.size()) return;  // which no template is
  if (file.has(kToolsTemplateValue)) text.tools_text = file.text(kToolsTemplateValue);
  for (const auto& [id, name] : {std::pair(kBegin, "bos_token"), std::pair(kEnd, "eos_token")}) {
    const int64_t token = file.has(id) ? file.integer(id) : -1;
    if (token >= 0 && token < tokenizer.vocab_size())
      text.variables[name] = tokenizer.token_text(static_cast<int32_t>(token));
  }
  tokenizer.set_chat_template(std::move(text));
}

// What a tokenizer.json says, as far as llama.cpp has words for it.
class Writer {
 public:
  Writer(const json& root, const std::string& text, int64_t vocab_size)
      : root_(root), tokenizer_(Tokenizer::parse(text, "tokenizer.json")), size_(vocab_size) {}

  // Why it cannot be said.
  std::string obstacle() {
    if (tokenizer_.vocab_size() > size_)
      return fmt::format("it has {} tokens, and the model {}", tokenizer_.vocab_size(), size_);
    const json& model = root_.at("model");
    if (model.value("type", "BPE") != "BPE")
      return fmt::format("{} is not written", model.value("type", ""));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (model.contains(key) && model[key].is_string() && model[key] != "")
        return fmt::format("it has {}", key);
    if (!is_byte_level()) return sentencepiece_obstacle(model);
    cut_ = find_cut(model);
    return cut_ ? ""
                : "its words are cut in a way that llama.cpp has no name for, or none known "
                  "here";
  }

  void add(const Json& ids, GgufHeader& header) const {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    list_tokens(tokens, types);
    header.add(kModel, cut_ ? "gpt2" : "llama");
    header.add(kPre, cut_ ? cut_->name : std::string_view("default"));
    header.add(kTokens, std::span<const std::string>(tokens));
    if (!cut_) header.add(kScores, std::span<const float>(scores(tokens)));
    header.add(kTypes, std::span<const int32_t>(types));
    if (cut_) header.add(kMergeList, std::span<const std::string>(merges()));
    add_ids(ids, header);
    if (!cut_) header.add(kAddSpace, prepends_);
  }

 private:
  bool is_byte_level() const {
    const std::string cutter = root_.value("pre_tokenizer", json()).dump();
    return cutter.find("\"ByteLevel\"") != std::string::npos;
  }

  // By what it does: what is not part of a cut must be absent.
  const Cut* find_cut(const json& model) const {
    json normalizer = root_.value("normalizer", json());
    if (normalizer == json{{"type", "Sequence"}, {"normalizers", json::array()}})
      normalizer = json();
    json cutter = root_.value("pre_tokenizer", json());
    const auto plain = [](json stage) {  // offsets are not ours to move
      if (stage.is_object()) stage.erase("trim_offsets");
      return stage;
    };
    const auto stages_of = [&](const json& one) {
      json stages = json::array();
      if (one.value("type", "") == "Sequence")
        for (const json& stage : one["pretokenizers"]) stages.push_back(plain(stage));
      else
        stages.push_back(plain(one));
      return stages;
    };
    for (const Cut& cut : kCuts) {
      const bool nfc = cut.pattern == kQwen2Pattern;
      if (normalizer != (nfc ? json{{"type", "NFC"}} : json())) continue;
      if (model.value("ignore_merges", false) != cut.whole_words) continue;
      json stages = stages_of(cutter);
      if (!stages.empty() && !stages.back().contains("use_regex"))
        stages.back()["use_regex"] = true;
      if (stages == stages_of(cutter_of(cut))) return &cut;
    }
    return nullptr;
  }

  // llama.cpp puts any two neighbours together that make a piece, the best score first; merges do
  // so only if they have every way to put each piece together.
  std::string sentencepiece_obstacle(const json& model) {
    if (!model.value("byte_fallback", false)) return "it has neither bytes nor byte_fallback";
    const std::string rest = normalization_obstacle();
    if (!rest.empty()) return rest;
    std::unordered_map<std::string, int64_t> ways;
    const json& vocab = model["vocab"];
    for (const std::string& merge : merges()) ++ways[joined(merge)];
    for (const auto& [piece, count] : ways) {
      int64_t possible = 0;
      for (size_t at = utf8_sequence(piece); at > 0 && at < piece.size();
           at += utf8_sequence(std::string_view(piece).substr(at)))
        possible += vocab.contains(piece.substr(0, at)) && vocab.contains(piece.substr(at));
      if (possible != count) return "its merges are not those of SentencePiece";
    }
    return "";
  }

  // A normalizer that does nothing but put marks for spaces, or a Metaspace that does.
  std::string normalization_obstacle() {
    prepends_ = false;
    json normalizer = root_.value("normalizer", json()),
         cutter = root_.value("pre_tokenizer", json());
    json steps = normalizer.is_object() && normalizer.value("type", "") == "Sequence"
                     ? normalizer["normalizers"]
                 : normalizer.is_null() ? json::array()
                                        : json::array({normalizer});
    for (const json& step : steps) {
      const std::string type = step.value("type", "");
      if (type == "Prepend" && step.value("prepend", "") == kMark)
        prepends_ = true;
      else if (type != "Replace" || step.value("content", "") != kMark ||
               step["pattern"] != json{{"String", " "}})
        return fmt::format("its normalizer has a {}", type);
    }
    if (cutter.is_null()) return "";
    if (cutter.value("type", "") != "Metaspace" || cutter.value("replacement", "") != kMark)
      return fmt::format("its pre_tokenizer is {}", cutter.value("type", ""));
    if (cutter.value("split", true)) return "its Metaspace splits";
    prepends_ = cutter.value("prepend_scheme", "always") != "never";
    return "";
  }

  // "a b", whichever way the file has it.
  std::vector<std::string> merges() const {
    std::vector<std::string> list;
    for (const json& merge : root_["model"]["merges"])
      list.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    return list;
  }
  static std::string joined(std::string merge) {
    merge.erase(std::min(merge.find(' '), merge.size() - 1), 1);
    return merge;
  }

  // Better where a merge comes earlier.
  std::vector<float> scores(const std::vector<std::string>& tokens) const {
    std::unordered_map<std::string, float> ranks;
    float rank = 0;
    for (const std::string& merge : merges()) ranks.emplace(joined(merge), -(rank++));
    std::vector<float> list;
    for (const std::string& token : tokens)
      list.push_back(ranks.contains(token) ? ranks[token] : -(rank + 1));
    return list;
  }

  void list_tokens(std::vector<std::string>& tokens, std::vector<int32_t>& types) const {
    tokens.assign(static_cast<size_t>(size_), "");
    types.assign(tokens.size(), SentencePiece::kUnused);
    const json& model = root_["model"];
    for (const auto& [text, id] : model["vocab"].items()) {
      tokens[id.get<size_t>()] = text;
      types[id.get<size_t>()] = SentencePiece::kNormal;
      if (!cut_ && text.size() == 6 && text.starts_with("<0x") && text.ends_with(">"))
        types[id.get<size_t>()] = SentencePiece::kByte;
    }
    for (const AddedToken& token : tokenizer_.added_tokens()) {
      const auto at = static_cast<size_t>(token.id);
      tokens[at] = token.text;
      types[at] = token.special ? SentencePiece::kControl : SentencePiece::kUser;
      if (!cut_ && model.value("unk_token", json()) == json(token.text))
        types[at] = SentencePiece::kUnknown;
    }
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i].empty()) tokens[i] = fmt::format("[PAD{}]", i);
  }

  void add_ids(const Json& ids, GgufHeader& header) const {
    const auto id_of = [&](const char* key) -> std::optional<uint32_t> {
      const Json value = ids.value(key, Json());
      const Json& one = value.is_array() && !value.empty() ? value[0] : value;
      if (!one.is_number_integer() || one < 0 || one >= size_) return std::nullopt;
      return one.get<uint32_t>();
    };
    std::optional<uint32_t> begin = id_of("bos_token_id"), end = id_of("eos_token_id");
    const std::vector<int32_t>& before = tokenizer_.template_before();
    const std::vector<int32_t>& after = tokenizer_.template_after();
    if (before.size() == 1) begin = static_cast<uint32_t>(before[0]);
    if (after.size() == 1 && !end) end = static_cast<uint32_t>(after[0]);
    if (!end && tokenizer_.end_of_text() >= 0)
      end = static_cast<uint32_t>(tokenizer_.end_of_text());
    if (begin) header.add(kBegin, *begin);
    if (end) header.add(kEnd, *end);
    if (const auto pad = id_of("pad_token_id")) header.add("tokenizer.ggml.padding_token_id", *pad);
    header.add(kAddBegin, before.size() == 1);
    header.add(kAddEnd, after.size() == 1 && end == static_cast<uint32_t>(after[0]));
  }

  static constexpr const char* kMark = "\u2581";
  const json& root_;
  const Tokenizer tokenizer_;
  const int64_t size_;
  const Cut* cut_ = nullptr;
  bool prepends_ = true;
};

}  // namespace

bool has_gguf_tokenizer(const GgufFile& file) {
  return file.has(kModel) && file.values()[kModel] != "no_vocab" && file.values()[kModel] != "none";
}

std::string tokenizer_json_of_gguf(const GgufFile& file) {
  const std::string model = file.text(kModel);
  if (model == "gpt2") return byte_level_json(file);
  if (model == "llama") return sentencepiece_json(file);
  user_error(
      "{}: {} is {}; gpt2 (byte-level BPE) and llama (SentencePiece's BPE) are read. Name the "
      "model's own tokenizer.json in data.tokenizer",
      file.path(), kModel, brief_json(Json(model)));
}

Tokenizer load_gguf_tokenizer(const GgufFile& file) {
  Tokenizer tokenizer = Tokenizer::parse(tokenizer_json_of_gguf(file), file.path());
  add_chat_template(file, tokenizer);
  if (!file.has(kEnd)) return tokenizer;
  const int64_t end = file.integer(kEnd);
  if (end < 0 || end >= tokenizer.vocab_size())
    user_error("{}: {} is {}, and there are {} tokens", file.path(), kEnd, end,
               tokenizer.vocab_size());
  tokenizer.set_end_of_text(static_cast<int32_t>(end), kEnd);
  return tokenizer;
}

std::string add_gguf_tokenizer(const std::string& tokenizer_json, int64_t vocab_size,
                               const Json& ids, GgufHeader& header) {
  const json root = json::parse(tokenizer_json, nullptr, false);
  if (root.is_discarded() || !root.is_object()) return "it is not JSON";
  try {
    Writer writer(root, tokenizer_json, vocab_size);
    const std::string obstacle = writer.obstacle();
    if (obstacle.empty()) writer.add(ids, header);
    return obstacle;
  } catch (const UserError& error) {  // one that is not read
    return error.what();
  }
}

}  // namespace onefold

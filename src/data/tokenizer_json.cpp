// tokenizer.json, read and written. Parsed with nlohmann's sorted object rather than our ordered
// one, whose insertion looks through all earlier keys: quadratic in a vocabulary of 128,000.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/tokenizer.h"

namespace onefold {
namespace {

using nlohmann::json;

class Reader {
 public:
  Reader(std::string_view text, const std::string& source) : source_(source) {
    root_ = json::parse(text, nullptr, false);
    if (root_.is_discarded() || !root_.is_object()) explain(text);
  }

  TokenizerParts read() {
    read_model(at(root_, "model", json::value_t::object));
    if (root_.contains("added_tokens")) read_added(at(root_, "added_tokens", json::value_t::array));
    check_bytes();
    read_normalizer();
    read_pretokenizer();
    read_decoder();
    if (root_.contains("post_processor"))
      parts_.post_processor_json = root_["post_processor"].dump();
    return std::move(parts_);
  }

 private:
  [[noreturn]] void explain(std::string_view text) const {
    try {
      const json again = json::parse(text);
      user_error("{} is not a tokenizer.json: it holds no JSON object", source_);
    } catch (const json::parse_error& error) {
      user_error("{} is not a tokenizer.json: {}", source_, error.what());
    }
  }

  const json& at(const json& object, const char* key, json::value_t type) const {
    const auto found = object.find(key);
    if (found == object.end())
      user_error("{}: \"{}\" is missing; is this a tokenizer.json?", source_, key);
    if (found->type() != type)
      user_error("{}: \"{}\" has the wrong type ({})", source_, key, found->type_name());
    return *found;
  }

  static bool flag(const json& object, const char* key, bool otherwise) {
    const auto found = object.find(key);
    return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }

  static std::string type_of(const json& object) {
    return object.is_object() ? object.value("type", std::string("without type")) : "none";
  }

  void refuse(const json& model, const char* key, const char* meaning) const {
    const auto found = model.find(key);
    if (found == model.end() || found->is_null() || *found == json("") || *found == json(false))
      return;
    user_error("{}: model.{} is {} ({}); Onefold reads byte-level BPE without it", source_, key,
               found->dump(), meaning);
  }

  void place(int64_t id, std::string bytes) {
    constexpr int64_t kLimit = int64_t{1} << 24;
    if (id < 0 || id >= kLimit)
      user_error("{}: token id {} is not in [0, {})", source_, id, kLimit);
    if (static_cast<size_t>(id) >= parts_.tokens.size())
      parts_.tokens.resize(static_cast<size_t>(id) + 1);
    parts_.tokens[static_cast<size_t>(id)] = std::move(bytes);
  }

  void read_model(const json& model) {
    if (const std::string type = model.value("type", std::string("BPE")); type != "BPE") {
      user_error("{}: the model is {}; Onefold reads byte-level BPE (GPT-2, Llama 3, Qwen)",
                 source_, type);
    }
    refuse(model, "dropout", "random merges");
    refuse(model, "continuing_subword_prefix", "a marker before pieces");
    refuse(model, "end_of_word_suffix", "a marker after words");
    refuse(model, "byte_fallback", "SentencePiece bytes");
    parts_.ignore_merges = flag(model, "ignore_merges", false);
    const json& vocab = at(model, "vocab", json::value_t::object);
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_integer())
        user_error("{}: model.vocab[{}] is not a number", source_, json(text).dump());
      std::string bytes;
      if (!from_byte_alphabet(text, bytes)) bytes = text;  // an added token, spelt as itself
      place(id.get<int64_t>(), std::move(bytes));
    }
    const json& merges = at(model, "merges", json::value_t::array);
    parts_.merges.reserve(merges.size());
    for (const json& merge : merges) read_merge(vocab, merge);
  }

  void read_merge(const json& vocab, const json& merge) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      if (space != std::string::npos) left = both.substr(0, space), right = both.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    }
    const auto id = [&](const std::string& token) {
      const auto found = vocab.find(token);
      if (token.empty() || found == vocab.end()) {
        user_error("{}: model.merges[{}] is {}, but model.vocab has no token {}", source_,
                   parts_.merges.size(), merge.dump(), json(token).dump());
      }
      return found->get<int32_t>();
    };
    parts_.merges.push_back({id(left), id(right), id(left + right)});
  }

  void read_added(const json& added) {
    for (const json& entry : added) {
      AddedToken token;
      if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_number_integer() ||
          !entry.contains("content") || !entry["content"].is_string()) {
        user_error("{}: added_tokens[{}] needs an \"id\" and a \"content\"", source_,
                   parts_.added.size());
      }
      const int64_t id = entry["id"].get<int64_t>();
      token.text = entry["content"].get<std::string>();
      token.special = flag(entry, "special", false);
      token.single_word = flag(entry, "single_word", false);
      token.lstrip = flag(entry, "lstrip", false);
      token.rstrip = flag(entry, "rstrip", false);
      token.normalized = flag(entry, "normalized", !token.special);
      token.in_vocabulary = root_["model"]["vocab"].contains(token.text);
      place(id, token.text);
      token.id = static_cast<int32_t>(id);
      parts_.added.push_back(std::move(token));
    }
  }

  // Only a vocabulary with all 256 bytes encodes every text without loss.
  void check_bytes() const {
    std::array<bool, 256> present{};
    for (const std::string& token : parts_.tokens) {
      if (token.size() == 1) present[static_cast<unsigned char>(token[0])] = true;
    }
    const auto missing = std::find(present.begin(), present.end(), false);
    if (missing == present.end()) return;
    user_error(
        "{}: the vocabulary has no token for byte 0x{:02x} (and {} bytes in all), so some text "
        "could not be "
        "encoded; train it with all 256 bytes as its initial alphabet",
        source_, missing - present.begin(), std::count(present.begin(), present.end(), false));
  }

  void read_normalizer() {
    const json normalizer = root_.value("normalizer", json());
    parts_.normalizer_json = normalizer.dump();
    if (normalizer.is_null()) return;
    if (type_of(normalizer) != "NFC") {
      user_error("{}: the normalizer {} is not supported; Onefold encodes bytes as they are",
                 source_, type_of(normalizer));
    }
    parts_.remarks.push_back(
        fmt::format("{}: its normalizer NFC is not applied; text that is not in Unicode's NFC form "
                    "is encoded as it is",
                    source_));
  }

  void read_pretokenizer() {
    const json pretokenizer = root_.value("pre_tokenizer", json());
    parts_.pretokenizer_json = pretokenizer.dump();
    bool byte_level = false;
    if (type_of(pretokenizer) == "Sequence" && pretokenizer.contains("pretokenizers")) {
      for (const json& stage : pretokenizer["pretokenizers"])
        byte_level |= read_stage(stage, false);
    } else {
      byte_level = read_stage(pretokenizer, true);
    }
    if (!byte_level) {
      user_error(
          "{}: this is not a byte-level tokenizer (its pre_tokenizer is {}, without ByteLevel)",
          source_, type_of(pretokenizer));
    }
  }

  // True for the ByteLevel stage.
  bool read_stage(const json& stage, bool alone) {
    const std::string type = type_of(stage);
    if (type == "ByteLevel") {
      parts_.add_prefix_space = flag(stage, "add_prefix_space", true);
      if (parts_.add_prefix_space && !alone) {
        user_error("{}: add_prefix_space inside a Sequence is not supported", source_);
      }
      if (flag(stage, "use_regex", true)) parts_.pretokenizer.add_gpt2();
      return true;
    }
    if (type == "Digits") {
      parts_.pretokenizer.add_regex(
          flag(stage, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", source_);
      return false;
    }
    if (type != "Split") {
      user_error(
          "{}: the pre-tokenizer {} is not supported; Onefold reads ByteLevel, alone or after "
          "Split and Digits",
          source_, type);
    }
    const std::string behavior = stage.value("behavior", std::string());
    const bool invert = flag(stage, "invert", false);
    // "Removed" with "invert" keeps the matches and drops what lies between them. Such patterns
    // (GPT-4's) match everything, which makes the two the same; we keep every byte in any case.
    if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert)) {
      user_error(
          "{}: a Split pre-tokenizer with behavior \"{}\" is not supported, only \"Isolated\"",
          source_, behavior);
    }
    const json pattern = stage.value("pattern", json());
    if (pattern.contains("Regex")) {
      parts_.pretokenizer.add_regex(pattern["Regex"].get<std::string>(), source_);
    } else if (pattern.contains("String")) {
      parts_.pretokenizer.add_regex("\\Q" + pattern["String"].get<std::string>() + "\\E", source_);
    } else {
      user_error("{}: a Split pre-tokenizer without a pattern", source_);
    }
    return false;
  }

  void read_decoder() {
    const json decoder = root_.value("decoder", json());
    if (decoder.is_null()) return;
    parts_.decoder_json = decoder.dump();
    if (type_of(decoder) != "ByteLevel") {
      user_error("{}: the decoder {} is not supported, only ByteLevel", source_, type_of(decoder));
    }
  }

  const std::string& source_;
  json root_;
  TokenizerParts parts_;
};

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

// Spelt as the reader gives JSON back, so that a tokenizer and its saved self have the same hash.
constexpr std::string_view kByteLevelJson =
    R"({"add_prefix_space":false,"trim_offsets":true,"type":"ByteLevel","use_regex":true})";

}  // namespace

Tokenizer Tokenizer::parse(std::string_view text, const std::string& source) {
  try {
    return Tokenizer(Reader(text, source).read());
  } catch (const json::exception& error) {  // a value of another type than the format has there
    user_error("{} is not a tokenizer.json: {}", source, error.what());
  }
}

// Written by hand, one token to a line: tokens in order of id, which a sorted JSON object would
// lose. Merges are "a b", the form that every version of `tokenizers` reads; byte-level tokens hold
// no spaces.
std::string Tokenizer::to_json() const {
  const TokenizerParts& parts = *parts_;
  const auto or_default = [](const std::string& json_text, std::string_view otherwise) {
    return json_text.empty() ? std::string(otherwise) : json_text;
  };
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
  out +=
      ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": "
      "null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    "
      "\"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": ";
  out += parts.ignore_merges ? "true" : "false";
  out += ",\n    \"vocab\": {";
  const char* separator = "\n";
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const AddedToken* const added = added_by_id[id];
    if (parts.tokens[id].empty() || (added && !added->in_vocabulary)) continue;
    out += fmt::format("{}      {}: {}", separator,
                       json_string(added ? added->text : to_byte_alphabet(parts.tokens[id])), id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const TokenizerParts::Merge& merge : parts.merges) {
    const std::string left = to_byte_alphabet(parts.tokens[static_cast<size_t>(merge.left)]);
    const std::string right = to_byte_alphabet(parts.tokens[static_cast<size_t>(merge.right)]);
    out += fmt::format("{}      {}", separator, json_string(left + " " + right));
    separator = ",\n";
  }
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace onefold

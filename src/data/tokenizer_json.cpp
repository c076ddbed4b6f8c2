// tokenizer.json, read. Parsed with nlohmann's sorted object rather than our ordered one, whose
// insertion looks through all earlier keys: quadratic in a vocabulary of 128,000. Every key is
// either understood or refused by its path: a part that was ignored would change the ids.
#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/byte_level.h"
#include "data/characters.h"
#include "data/tokenizer.h"

namespace onefold {
namespace {

using nlohmann::json;

std::string brief(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = utf8_lossy(std::string_view(text).substr(0, 57)) + "...";
  return text;
}

// A value with its place in the file.
class Node {
 public:
  Node(const json& value, std::string path, const std::string& source)
      : value_(&value), path_(std::move(path)), source_(&source) {}

  const json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void fail(std::string_view message) const {
    user_error("{}: {} {}", *source_, path_.empty() ? "the file" : path_, message);
  }
  [[noreturn]] void unsupported(std::string_view accepted) const {
    fail(fmt::format("is {}, which is not supported; Onefold reads {}", brief(*value_), accepted));
  }

  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }
  Node operator[](const char* key) const {
    static const json kNull;
    return {has(key) ? (*value_)[key] : kNull, path_.empty() ? key : path_ + "." + key, *source_};
  }
  Node operator[](size_t index) const {
    return {(*value_)[index], fmt::format("{}[{}]", path_, index), *source_};
  }
  size_t size() const { return value_->size(); }

  // The object must have no other keys.
  void only(std::initializer_list<const char*> keys) const {
    if (!value_->is_object()) fail("must be an object");
    for (const auto& item : value_->items()) {
      const std::string& key = item.key();
      if (std::none_of(keys.begin(), keys.end(), [&](const char* k) { return key == k; }))
        (*this)[key.c_str()].fail("is a key that Onefold does not know");
    }
  }
  const Node& object() const { return typed(value_->is_object(), "an object"); }
  const Node& array() const { return typed(value_->is_array(), "a list"); }
  const std::string& text() const {
    return typed(value_->is_string(), "a string").value_->get_ref<const std::string&>();
  }
  int64_t integer() const {
    return typed(value_->is_number_integer(), "an integer").value_->get<int64_t>();
  }
  bool flag(bool otherwise) const {
    if (is_null()) return otherwise;
    return typed(value_->is_boolean(), "true or false").value_->get<bool>();
  }
  std::string type() const { return object()["type"].text(); }
  // A string that is one character.
  const std::string& character() const {
    const std::string& content = text();
    if (content.empty() || utf8_sequence(content) != content.size()) fail("must be one character");
    return content;
  }

 private:
  const Node& typed(bool matches, std::string_view wanted) const {
    if (is_null()) fail("is missing; is this a whole tokenizer.json?");
    if (!matches) fail(fmt::format("is {} and must be {}", brief(*value_), wanted));
    return *this;
  }

  const json* value_;
  std::string path_;
  const std::string* source_;
};

class Reader {
 public:
  Reader(const json& root, const std::string& source) : root_(root, "", source), source_(source) {}

  TokenizerParts read() {
    root_.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    for (const char* key : {"truncation", "padding"}) {
      if (!root_[key].is_null())
        root_[key].fail("is set, and Onefold encodes whole texts; set it to null");
    }
    read_model_options(root_["model"].object());
    read_normalizer(root_["normalizer"]);
    read_pretokenizer(root_["pre_tokenizer"]);
    if (!root_["decoder"].is_null()) read_decoder(root_["decoder"]);
    read_vocabulary(root_["model"]);
    if (root_.has("added_tokens")) read_added(root_["added_tokens"].array());
    check_complete(root_["model"]);
    if (!root_["post_processor"].is_null()) read_post_processor(root_["post_processor"]);
    parts_.normalizer_json = root_["normalizer"].value().dump();
    parts_.pretokenizer_json = root_["pre_tokenizer"].value().dump();
    parts_.decoder_json = root_["decoder"].value().dump();
    parts_.post_processor_json = root_["post_processor"].value().dump();
    return std::move(parts_);
  }

 private:
  void read_model_options(const Node& model) {
    const std::string type = model.has("type") ? model.type() : "BPE";
    if (type != "BPE") {
      model["type"].fail(
          fmt::format("is {}; Onefold reads BPE, byte-level (GPT-2, Llama 3, Qwen) or "
                      "SentencePiece's (Llama 2, "
                      "Mistral)",
                      type));
    }
    model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    const auto refuse = [&](const char* key, const char* meaning) {
      const json& value = model[key].value();
      if (value.is_null() || value == json("") || value == json(0.0)) return;
      model[key].fail(
          fmt::format("is {} ({}); Onefold reads BPE without it", brief(value), meaning));
    };
    refuse("dropout", "random merges");
    refuse("continuing_subword_prefix", "a marker before pieces");
    refuse("end_of_word_suffix", "a marker after words");
    parts_.ignore_merges = model["ignore_merges"].flag(false);
    parts_.byte_fallback = model["byte_fallback"].flag(false);
    parts_.fuse_unknown = model["fuse_unk"].flag(false);
    if (!model["unk_token"].is_null()) parts_.unknown_token = model["unk_token"].text();
  }

  // `shown` is what the token decodes from: its spelling, or that after normalizing.
  void place(const Node& where, int64_t id, const std::string& spelling, const std::string& shown) {
    // Ids may have gaps, but a table for them must not outgrow the file that names them.
    const auto named =
        static_cast<int64_t>(root_["model"]["vocab"].size() + root_["added_tokens"].size());
    const int64_t limit = std::min(int64_t{1} << 24, 4 * named + 1024);
    if (id < 0 || id >= limit) {
      where.fail(fmt::format("has the id {} for {}, which is not in [0, {}) for {} tokens", id,
                             brief(json(spelling)), limit, named));
    }
    const auto at = static_cast<size_t>(id);
    if (at >= parts_.tokens.size()) {
      parts_.tokens.resize(at + 1);
      parts_.spellings.resize(at + 1);
    }
    if (!parts_.spellings[at].empty() && parts_.spellings[at] != spelling) {
      where.fail(fmt::format("gives the id {} of {} to {}", id, brief(json(parts_.spellings[at])),
                             brief(json(spelling))));
    }
    parts_.spellings[at] = spelling;
    parts_.tokens[at] =
        parts_.byte_level ? byte_level_bytes(shown) : parts_.decoder.bytes_of(shown);
  }

  // An added token need not be spelt in the byte-level alphabet: then it is spelt as itself.
  static std::string byte_level_bytes(const std::string& spelling) {
    std::string bytes;
    return from_byte_alphabet(spelling, bytes) ? bytes : spelling;
  }

  void read_vocabulary(const Node& model) {
    const json& vocab = model["vocab"].object().value();
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_integer())
        model["vocab"].fail(
            fmt::format("has {} for {}, which is not an id", brief(id), brief(json(text))));
      if (text.empty()) model["vocab"].fail("has a token without text");
      place(model["vocab"], id.get<int64_t>(), text, text);
    }
    const Node merges = model["merges"].array();
    parts_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) read_merge(vocab, merges, i);
  }

  void read_merge(const json& vocab, const Node& merges, size_t index) {
    const json& merge = merges.value()[index];
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
        merges[index].fail(fmt::format("is {}, but model.vocab has no token {}", brief(merge),
                                       brief(json(token))));
      }
      return found->get<int32_t>();
    };
    parts_.merges.push_back({id(left), id(right), id(left + right)});
  }

  void read_added(const Node& added) {
    const json& vocab = root_["model"]["vocab"].value();
    int64_t next = static_cast<int64_t>(vocab.size());  // the id of a token that is new
    for (size_t i = 0; i < added.size(); ++i) {
      const Node entry = added[i].object();
      entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      const int64_t id = entry["id"].integer();
      token.text = entry["content"].text();
      if (token.text.empty()) entry["content"].fail("is empty");
      token.special = entry["special"].flag(false);
      token.single_word = entry["single_word"].flag(false);
      token.lstrip = entry["lstrip"].flag(false);
      token.rstrip = entry["rstrip"].flag(false);
      token.normalized = entry["normalized"].flag(!token.special);
      const auto known = vocab.find(token.text);
      token.in_vocabulary = known != vocab.end();
      const int64_t expected = token.in_vocabulary ? known->get<int64_t>() : next;
      if (id != expected) {
        entry["id"].fail(
            fmt::format("is {}, but {} has the id {}: {}", id, brief(json(token.text)), expected,
                        token.in_vocabulary ? "model.vocab says so"
                                            : "new tokens follow those of model.vocab one by one"));
      }
      if (!token.in_vocabulary) ++next;
      place(entry["id"], id, token.text, parts_.shown(token));
      token.id = static_cast<int32_t>(id);
      parts_.added.push_back(std::move(token));
    }
  }

  // Only a vocabulary that covers all bytes, or has a token for what it does not cover, encodes
  // every text. `tokenizers` would silently drop the rest.
  void check_complete(const Node& model) const {
    std::array<bool, 256> present{};
    const json& vocab = model["vocab"].value();
    for (size_t b = 0; b < present.size(); ++b) {
      const char byte = static_cast<char>(b);
      present[b] = parts_.byte_level ? vocab.contains(to_byte_alphabet({&byte, 1}))
                                     : vocab.contains(byte_token_name(static_cast<uint8_t>(b)));
    }
    const auto missing = std::find(present.begin(), present.end(), false);
    const bool complete = missing == present.end();
    if (complete && parts_.byte_level) return;  // other keys have no effect then
    if (!parts_.unknown_token.empty() && !vocab.contains(parts_.unknown_token))
      model["unk_token"].fail(
          fmt::format("is {}, which model.vocab does not have", brief(json(parts_.unknown_token))));
    if (complete && parts_.byte_fallback) return;
    if (!parts_.byte_level && !parts_.unknown_token.empty()) return;
    if (!parts_.byte_level && complete)
      model["byte_fallback"].fail(
          "is false and unk_token is null, so some characters would be lost");
    model["vocab"].fail(fmt::format(
        "has no token for byte 0x{:02x} (and {} bytes in all), so some text could not be encoded; "
        "train it with all 256 bytes as its initial alphabet",
        missing - present.begin(), std::count(present.begin(), present.end(), false)));
  }

  void read_normalizer(const Node& normalizer) {
    if (normalizer.is_null()) return;
    const std::string type = normalizer.type();
    if (type == "Sequence") {
      normalizer.only({"type", "normalizers"});
      const Node steps = normalizer["normalizers"].array();
      for (size_t i = 0; i < steps.size(); ++i) read_normalizer(steps[i]);
    } else if (type == "NFC") {
      normalizer.only({"type"});
      parts_.normalizer.add_nfc();
    } else if (type == "Prepend") {
      normalizer.only({"type", "prepend"});
      parts_.normalizer.add_prepend(normalizer["prepend"].text());
    } else if (type == "Replace") {
      normalizer.only({"type", "pattern", "content"});
      parts_.normalizer.add_replace(literal(normalizer["pattern"]), normalizer["content"].text());
    } else {
      normalizer["type"].unsupported("NFC, Prepend, Replace and Sequence");
    }
  }

  // {"String": " "}
  static std::string literal(const Node& pattern) {
    pattern.only({"String", "Regex"});
    if (pattern.has("Regex")) pattern["Regex"].unsupported("a String here");
    if (pattern["String"].text().empty()) pattern["String"].fail("is empty");
    return pattern["String"].text();
  }

  void read_pretokenizer(const Node& pretokenizer) {
    std::vector<Node> stages;
    flatten(pretokenizer, stages);
    parts_.byte_level = std::any_of(stages.begin(), stages.end(),
                                    [](const Node& stage) { return stage.type() == "ByteLevel"; });
    for (size_t i = 0; i < stages.size(); ++i)
      read_stage(stages[i], i == 0, i + 1 == stages.size());
  }

  static void flatten(const Node& pretokenizer, std::vector<Node>& stages) {
    if (pretokenizer.is_null()) return;
    if (pretokenizer.type() != "Sequence") return stages.push_back(pretokenizer);
    pretokenizer.only({"type", "pretokenizers"});
    const Node list = pretokenizer["pretokenizers"].array();
    for (size_t i = 0; i < list.size(); ++i) flatten(list[i], stages);
  }

  void read_stage(const Node& stage, bool first, bool last) {
    const std::string type = stage.type();
    if (type == "ByteLevel") {
      stage.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (!last) stage.fail("is ByteLevel before another stage; Onefold reads it as the last one");
      parts_.add_prefix_space = stage["add_prefix_space"].flag(true);
      if (parts_.add_prefix_space && !first)
        stage["add_prefix_space"].fail("is true after another stage, which is not supported");
      if (stage["use_regex"].flag(true)) parts_.pretokenizer.add_gpt2();
    } else if (type == "Digits") {
      stage.only({"type", "individual_digits"});
      const bool each = stage["individual_digits"].flag(false);
      parts_.pretokenizer.add_characters(
          is_numeric_character, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
    } else if (type == "Split") {
      read_split(stage);
    } else if (type == "Metaspace") {
      if (!first || parts_.byte_level)
        stage.fail(
            "is a Metaspace beside other stages; Onefold reads it as the first one, without "
            "ByteLevel");
      read_metaspace(stage);
    } else {
      stage["type"].unsupported("ByteLevel, Metaspace, Split, Digits and Sequence");
    }
  }

  void read_split(const Node& stage) {
    stage.only({"type", "pattern", "behavior", "invert"});
    static const std::vector<std::string> kNames = {"Isolated", "Removed", "MergedWithPrevious",
                                                    "MergedWithNext", "Contiguous"};
    const std::string& name = stage["behavior"].text();
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end()) stage["behavior"].unsupported(join(kNames, ", "));
    const Node pattern = stage["pattern"].object();
    pattern.only({"Regex", "String"});
    const std::string regex =
        pattern.has("Regex") ? pattern["Regex"].text() : quoted(pattern["String"].text());
    parts_.pretokenizer.add_split(regex, static_cast<SplitBehavior>(found - kNames.begin()),
                                  stage["invert"].flag(false), source_);
  }

  // A regular expression for the text itself.
  static std::string quoted(const std::string& text) {
    std::string regex;
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))
        regex += fmt::format("\\x{:02x}", c);
      else
        regex += c;
    }
    return regex;
  }

  // The prefix rule of a Metaspace, in its old form (add_prefix_space) or the new (prepend_scheme).
  static Metaspace::Prepend prepend_of(const Node& metaspace) {
    const std::string scheme =
        metaspace["prepend_scheme"].is_null() ? "always" : metaspace["prepend_scheme"].text();
    if (!metaspace["add_prefix_space"].flag(true) && scheme != "never")
      metaspace["add_prefix_space"].fail("is false, which needs \"prepend_scheme\": \"never\"");
    if (scheme == "always") return Metaspace::Prepend::kAlways;
    if (scheme == "first") return Metaspace::Prepend::kFirst;
    if (scheme != "never") metaspace["prepend_scheme"].unsupported("always, first and never");
    return Metaspace::Prepend::kNever;
  }

  void read_metaspace(const Node& stage) {
    stage.only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    parts_.metaspace = {stage["replacement"].character(), prepend_of(stage)};
    if (stage["split"].flag(true)) parts_.pretokenizer.add_before(parts_.metaspace->mark);
  }

  void read_decoder(const Node& decoder) {
    const std::string type = decoder.type();
    TokenDecoder& steps = parts_.decoder;
    if (type == "Sequence") {
      decoder.only({"type", "decoders"});
      const Node list = decoder["decoders"].array();
      for (size_t i = 0; i < list.size(); ++i) read_decoder(list[i]);
    } else if (type == "ByteLevel") {
      decoder.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.add_byte_level();
    } else if (type == "Replace") {
      decoder.only({"type", "pattern", "content"});
      steps.add_replace(literal(decoder["pattern"]), decoder["content"].text());
    } else if (type == "ByteFallback") {
      decoder.only({"type"});
      steps.add_byte_fallback();
    } else if (type == "Fuse") {
      decoder.only({"type"});
      steps.add_fuse();
    } else if (type == "Strip") {
      decoder.only({"type", "content", "start", "stop"});
      steps.add_strip(decoder["content"].character(), decoder["start"].integer(),
                      decoder["stop"].integer());
    } else if (type == "Metaspace") {
      decoder.only(
          {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
      steps.add_metaspace(decoder["replacement"].character(),
                          prepend_of(decoder) != Metaspace::Prepend::kNever);
    } else {
      decoder["type"].unsupported(
          "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip and Sequence");
    }
  }

  void read_post_processor(const Node& processor) {
    const std::string type = processor.type();
    if (type == "Sequence") {
      processor.only({"type", "processors"});
      const Node list = processor["processors"].array();
      for (size_t i = 0; i < list.size(); ++i) read_post_processor(list[i]);
    } else if (type == "ByteLevel") {  // moves offsets, which we do not have
      processor.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "TemplateProcessing") {
      read_template(processor);
    } else {
      processor["type"].unsupported("ByteLevel, TemplateProcessing and Sequence");
    }
  }

  void read_template(const Node& processor) {
    processor.only({"type", "single", "pair", "special_tokens"});  // pairs are for classifiers
    const Node single = processor["single"].array();
    int sequences = 0;
    // A template inside another surrounds what that one has made.
    std::vector<int32_t> before, after;
    for (size_t i = 0; i < single.size(); ++i) {
      const Node piece = single[i].object();
      piece.only({"SpecialToken", "Sequence"});
      if (piece.has("Sequence")) {
        if (piece["Sequence"]["id"].text() != "A" || ++sequences > 1)
          piece.fail("must be the only Sequence, with the id \"A\"");
        continue;
      }
      const Node name = piece["SpecialToken"]["id"];
      const auto& tokens = processor["special_tokens"].object().value();
      if (!tokens.contains(name.text())) name.fail("is not among the special_tokens");
      const Node ids = processor["special_tokens"][name.text().c_str()]["ids"].array();
      for (size_t j = 0; j < ids.size(); ++j) {
        const int64_t id = ids[j].integer();
        if (id < 0 || id >= static_cast<int64_t>(parts_.tokens.size()))
          ids[j].fail(fmt::format("is {}, and there are {} tokens", id, parts_.tokens.size()));
        (sequences == 0 ? before : after).push_back(static_cast<int32_t>(id));
      }
    }
    if (sequences != 1) single.fail("has no Sequence, so the text would be left out");
    parts_.template_before.insert(parts_.template_before.begin(), before.begin(), before.end());
    parts_.template_after.insert(parts_.template_after.end(), after.begin(), after.end());
  }

  Node root_;
  const std::string& source_;
  TokenizerParts parts_;
};

}  // namespace

Tokenizer Tokenizer::parse(std::string_view text, const std::string& source) {
  try {
    const auto watch = [&](int depth, json::parse_event_t, json&) {
      if (depth > kDeepestJson)
        user_error("{}: lists and objects are nested more than {} levels deep", source,
                   kDeepestJson);
      return true;
    };
    const json root = json::parse(text, watch);
    if (!root.is_object())
      user_error("{} is not a tokenizer.json: it holds no JSON object", source);
    return Tokenizer(Reader(root, source).read());
  } catch (const json::exception& error) {
    // Without the library's own name for the error, "[json.exception...] ".
    const std::string_view what = error.what();
    user_error("{} is not a tokenizer.json: {}", source, what.substr(what.find(']') + 2));
  }
}

}  // namespace onefold

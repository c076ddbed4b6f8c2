// The parts of a tokenizer.json that change, cut and join text.
#include <memory>

#include "base/text.h"
#include "data/characters.h"
#include "data/pattern.h"
#include "data/precompiled.h"
#include "data/tokenizer_json.h"

namespace onefold::tokenizer_json {
namespace {

// {"String": " "}
std::string literal(const Node& pattern) {
  if (pattern["String"].text().empty()) pattern["String"].fail("is empty");
  return pattern["String"].text();
}

void read_replace(const Node& step, const std::string& source, TokenizerParts& parts) {
  step.only({"type", "pattern", "content"});
  const Node pattern = step["pattern"].object();
  pattern.only({"String", "Regex"});
  if (pattern.has("Regex"))
    parts.normalizer.add_replace(std::make_shared<const Pattern>(pattern["Regex"].text(), source),
                                 step["content"].text());
  else
    parts.normalizer.add_replace(literal(pattern), step["content"].text());
}

void read_bert(const Node& step, TokenizerParts& parts) {
  step.only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  Normalizer::Bert bert;
  bert.clean_text = step["clean_text"].flag(true);
  bert.handle_chinese = step["handle_chinese_chars"].flag(true);
  bert.lowercase = step["lowercase"].flag(true);
  bert.strip_accents = step["strip_accents"].flag(bert.lowercase);
  parts.normalizer.add_bert(bert);
}

void read_precompiled(const Node& step, const std::string& source, TokenizerParts& parts) {
  step.only({"type", "precompiled_charsmap"});
  std::string bytes;
  if (!from_base64(step["precompiled_charsmap"].text(), bytes))
    step["precompiled_charsmap"].fail("is not base64");
  if (bytes.empty()) return;  // maps nothing
  parts.normalizer.add_precompiled(std::make_shared<const PrecompiledMap>(bytes, source));
}

// A regular expression for the text itself.
std::string quoted(const std::string& text) {
  std::string regex;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))
      regex += fmt::format("\\x{:02x}", c);
    else
      regex += c;
  }
  return regex;
}

SplitBehavior behavior_of(const Node& behavior) {
  static const std::vector<std::string> kNames = {"Isolated", "Removed", "MergedWithPrevious",
                                                  "MergedWithNext", "Contiguous"};
  const auto found = std::find(kNames.begin(), kNames.end(), behavior.text());
  if (found == kNames.end()) behavior.unsupported(join(kNames, ", "));
  return static_cast<SplitBehavior>(found - kNames.begin());
}

void read_split(const Node& stage, const std::string& source, TokenizerParts& parts) {
  stage.only({"type", "pattern", "behavior", "invert"});
  const Node pattern = stage["pattern"].object();
  pattern.only({"Regex", "String"});
  const std::string regex =
      pattern.has("Regex") ? pattern["Regex"].text() : quoted(pattern["String"].text());
  parts.pretokenizer.add_split(regex, behavior_of(stage["behavior"]), stage["invert"].flag(false),
                               source);
}

// The prefix rule of a Metaspace, in its old form (add_prefix_space) or the new (prepend_scheme).
Metaspace::Prepend prepend_of(const Node& metaspace) {
  const std::string scheme =
      metaspace["prepend_scheme"].is_null() ? "always" : metaspace["prepend_scheme"].text();
  if (!metaspace["add_prefix_space"].flag(true) && scheme != "never")
    metaspace["add_prefix_space"].fail("is false, which needs \"prepend_scheme\": \"never\"");
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme != "never") metaspace["prepend_scheme"].unsupported("always, first and never");
  return Metaspace::Prepend::kNever;
}

void read_metaspace(const Node& stage, TokenizerParts& parts) {
  stage.only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  parts.metaspace = {stage["replacement"].character(), prepend_of(stage)};
  if (stage["split"].flag(true)) parts.pretokenizer.add_before(parts.metaspace->mark);
}

void flatten(const Node& pretokenizer, std::vector<Node>& stages) {
  if (pretokenizer.is_null()) return;
  if (pretokenizer.type() != "Sequence") return stages.push_back(pretokenizer);
  pretokenizer.only({"type", "pretokenizers"});
  const Node list = pretokenizer["pretokenizers"].array();
  for (size_t i = 0; i < list.size(); ++i) flatten(list[i], stages);
}

void read_byte_level(const Node& stage, bool first, bool last, TokenizerParts& parts) {
  stage.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (!last) stage.fail("is ByteLevel before another stage; Onefold reads it as the last one");
  parts.add_prefix_space = stage["add_prefix_space"].flag(true);
  if (parts.add_prefix_space && !first)
    stage["add_prefix_space"].fail("is true after another stage, which is not supported");
  if (stage["use_regex"].flag(true)) parts.pretokenizer.add_gpt2();
}

void read_stage(const Node& stage, bool first, bool last, const std::string& source,
                TokenizerParts& parts) {
  const std::string type = stage.type();
  PreTokenizer& words = parts.pretokenizer;
  if (type == "ByteLevel") {
    read_byte_level(stage, first, last, parts);
  } else if (type == "Digits") {
    stage.only({"type", "individual_digits"});
    words.add_characters(is_numeric_character, stage["individual_digits"].flag(false)
                                                   ? SplitBehavior::kIsolated
                                                   : SplitBehavior::kContiguous);
  } else if (type == "Split") {
    read_split(stage, source, parts);
  } else if (type == "Punctuation") {
    stage.only({"type", "behavior"});
    words.add_characters(is_punctuation_character, stage["behavior"].is_null()
                                                       ? SplitBehavior::kIsolated
                                                       : behavior_of(stage["behavior"]));
  } else if (type == "WhitespaceSplit") {
    stage.only({"type"});
    words.add_characters(is_space_character, SplitBehavior::kRemoved);
  } else if (type == "Whitespace") {  // \w of Rust's patterns has the joiners too
    stage.only({"type"});
    words.add_split(R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)", SplitBehavior::kRemoved,
                    true, source);
  } else if (type == "BertPreTokenizer") {
    stage.only({"type"});
    words.add_characters(is_space_character, SplitBehavior::kRemoved);
    words.add_characters(is_punctuation_character, SplitBehavior::kIsolated);
  } else if (type == "CharDelimiterSplit") {
    stage.only({"type", "delimiter"});
    words.add_split(quoted(stage["delimiter"].character()), SplitBehavior::kRemoved, false, source);
  } else if (type == "Metaspace") {
    if (parts.byte_level || parts.metaspace)
      stage.fail("is a Metaspace beside ByteLevel or another; Onefold reads one or the other");
    parts.before_metaspace = std::move(words);
    words = {};
    read_metaspace(stage, parts);
  } else {
    stage["type"].unsupported(
        "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
        "BertPreTokenizer, CharDelimiterSplit and Sequence");
  }
}

}  // namespace

void read_normalizer(const Node& normalizer, const std::string& source, TokenizerParts& parts) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.type();
  Normalizer& steps = parts.normalizer;
  const auto plain = [&] { normalizer.only({"type"}); };
  if (type == "Sequence") {
    normalizer.only({"type", "normalizers"});
    const Node list = normalizer["normalizers"].array();
    for (size_t i = 0; i < list.size(); ++i) read_normalizer(list[i], source, parts);
  } else if (type == "NFC") {
    plain(), steps.add_form(Normalizer::Form::kNfc);
  } else if (type == "NFD") {
    plain(), steps.add_form(Normalizer::Form::kNfd);
  } else if (type == "NFKC") {
    plain(), steps.add_form(Normalizer::Form::kNfkc);
  } else if (type == "NFKD") {
    plain(), steps.add_form(Normalizer::Form::kNfkd);
  } else if (type == "Lowercase") {
    plain(), steps.add_lowercase();
  } else if (type == "StripAccents") {
    plain(), steps.add_strip_accents();
  } else if (type == "Nmt") {
    plain(), steps.add_nmt();
  } else if (type == "Strip") {
    normalizer.only({"type", "strip_left", "strip_right"});
    steps.add_strip(normalizer["strip_left"].flag(true), normalizer["strip_right"].flag(true));
  } else if (type == "Prepend") {
    normalizer.only({"type", "prepend"});
    steps.add_prepend(normalizer["prepend"].text());
  } else if (type == "Replace") {
    read_replace(normalizer, source, parts);
  } else if (type == "BertNormalizer") {
    read_bert(normalizer, parts);
  } else if (type == "Precompiled") {
    read_precompiled(normalizer, source, parts);
  } else {
    normalizer["type"].unsupported(
        "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Nmt, BertNormalizer, Precompiled, "
        "Prepend, Replace and Sequence");
  }
}

void read_pretokenizer(const Node& pretokenizer, const std::string& source, TokenizerParts& parts) {
  std::vector<Node> stages;
  flatten(pretokenizer, stages);
  parts.byte_level = std::any_of(stages.begin(), stages.end(),
                                 [](const Node& stage) { return stage.type() == "ByteLevel"; });
  for (size_t i = 0; i < stages.size(); ++i)
    read_stage(stages[i], i == 0, i + 1 == stages.size(), source, parts);
}

void read_decoder(const Node& decoder, const std::string& source, TokenizerParts& parts) {
  if (decoder.is_null()) return;
  const std::string type = decoder.type();
  TokenDecoder& steps = parts.decoder;
  if (type == "Sequence") {
    decoder.only({"type", "decoders"});
    const Node list = decoder["decoders"].array();
    for (size_t i = 0; i < list.size(); ++i) read_decoder(list[i], source, parts);
  } else if (type == "ByteLevel") {
    decoder.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps.add_byte_level();
  } else if (type == "Replace") {
    decoder.only({"type", "pattern", "content"});
    const Node pattern = decoder["pattern"].object();
    pattern.only({"String", "Regex"});
    if (pattern.has("Regex")) pattern["Regex"].unsupported("a String here");
    steps.add_replace(literal(pattern), decoder["content"].text());
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
    decoder.only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    steps.add_metaspace(decoder["replacement"].character(),
                        prepend_of(decoder) != Metaspace::Prepend::kNever);
  } else if (type == "WordPiece") {
    decoder.only({"type", "prefix", "cleanup"});
    steps.add_word_piece(decoder["prefix"].text(), decoder["cleanup"].flag(true));
  } else if (type == "BPEDecoder") {
    decoder.only({"type", "suffix"});
    steps.add_suffix(decoder["suffix"].text());
  } else {
    decoder["type"].unsupported(
        "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, WordPiece, BPEDecoder and "
        "Sequence");
  }
}

}  // namespace onefold::tokenizer_json

// tokenizer.json, read. Parsed with nlohmann's sorted object rather than our ordered one, whose
// insertion looks through all earlier keys: quadratic in a vocabulary of 128,000. Every key is
// either understood or refused by its path: a part that was ignored would change the ids.
#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/byte_level.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"

namespace onefold {
namespace {

using nlohmann::json;
using tokenizer_json::brief;
using tokenizer_json::Node;

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
    tokenizer_json::read_normalizer(root_["normalizer"], source_, parts_);
    tokenizer_json::read_pretokenizer(root_["pre_tokenizer"], source_, parts_);
    tokenizer_json::read_decoder(root_["decoder"], source_, parts_);
    check_model_fits(root_["model"]);
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
    if (type == "BPE") {
      read_bpe_options(model);
    } else if (type == "Unigram") {
      parts_.model = TokenizerParts::Model::kUnigram;
      model.only({"type", "unk_id", "vocab", "byte_fallback"});
      parts_.byte_fallback = model["byte_fallback"].flag(false);
    } else if (type == "WordPiece") {
      parts_.model = TokenizerParts::Model::kWordPiece;
      model.only(
          {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
      parts_.unknown_token = model["unk_token"].text();
      parts_.piece_prefix = model["continuing_subword_prefix"].text();
      parts_.most_characters = model["max_input_chars_per_word"].integer();
    } else if (type == "WordLevel") {
      parts_.model = TokenizerParts::Model::kWordLevel;
      model.only({"type", "unk_token", "vocab"});
      parts_.unknown_token = model["unk_token"].text();
    } else {
      model["type"].unsupported("BPE, Unigram, WordPiece and WordLevel");
    }
  }

  void read_bpe_options(const Node& model) {
    model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    const json& dropout = model["dropout"].value();
    if (!dropout.is_null() && dropout != json(0.0))
      model["dropout"].fail(
          fmt::format("is {} (random merges); Onefold reads BPE without it", brief(dropout)));
    const auto text = [&](const char* key) {
      return model[key].is_null() ? std::string() : model[key].text();
    };
    parts_.piece_prefix = text("continuing_subword_prefix");
    parts_.word_suffix = text("end_of_word_suffix");
    parts_.unknown_token = text("unk_token");
    parts_.ignore_merges = model["ignore_merges"].flag(false);
    parts_.byte_fallback = model["byte_fallback"].flag(false);
    // `tokenizers` falls back on the bytes of the character and of what is put around it.
    if (parts_.byte_fallback && !(parts_.piece_prefix.empty() && parts_.word_suffix.empty()))
      model["byte_fallback"].fail(
          "is true beside a continuing_subword_prefix or end_of_word_suffix, which is not "
          "supported");
    parts_.fuse_unknown = model["fuse_unk"].flag(false);
  }

  // The other models see the characters of the byte-level alphabet, not bytes.
  void check_model_fits(const Node& model) const {
    if (parts_.model != TokenizerParts::Model::kBpe && parts_.byte_level)
      model["type"].fail(
          fmt::format("is {} with a ByteLevel pre-tokenizer; Onefold reads that with BPE alone",
                      brief(model["type"].value())));
  }

  // `shown` is what the token decodes from: its spelling, or that after normalizing.
  void place(const Node& where, int64_t id, const std::string& spelling, const std::string& shown) {
    // Ids may have gaps, but a table for them must not outgrow the file that names them.
    const auto named = named_ + static_cast<int64_t>(root_["added_tokens"].size());
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
    if (parts_.model == TokenizerParts::Model::kUnigram) return read_pieces(model);
    vocab_ = model["vocab"].object().value();
    named_ = static_cast<int64_t>(vocab_.size());
    for (const auto& [text, id] : vocab_.items()) {
      if (!id.is_number_integer())
        model["vocab"].fail(
            fmt::format("has {} for {}, which is not an id", brief(id), brief(json(text))));
      if (text.empty()) parts_.empty_token = id.get<int64_t>();
      place(model["vocab"], id.get<int64_t>(), text, text);
    }
    if (parts_.model != TokenizerParts::Model::kBpe) return;
    const Node merges = model["merges"].array();
    parts_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) read_merge(vocab_, merges, i);
  }

  // [["<unk>", 0.0], ["\u2581", -2.01], ...]
  void read_pieces(const Node& model) {
    const Node list = model["vocab"].array();
    named_ = static_cast<int64_t>(list.size());
    vocab_ = json::object();
    parts_.scores.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Node piece = list[i].array();
      if (piece.size() != 2) piece.fail("must be a piece and its score");
      const std::string& text = piece[size_t{0}].text();
      if (text.empty()) piece.fail("has no text");
      vocab_[text] = i;
      parts_.scores[i] = piece[size_t{1}].number();
      place(piece, static_cast<int64_t>(i), text, text);
    }
    if (model["unk_id"].is_null()) return;
    const int64_t id = model["unk_id"].integer();
    if (id < 0 || id >= named_) model["unk_id"].fail(fmt::format("is {} of {} pieces", id, named_));
    parts_.unknown_token = parts_.spellings[static_cast<size_t>(id)];
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
    const size_t skipped = std::min(parts_.piece_prefix.size(), right.size());
    parts_.merges.push_back({id(left), id(right), id(left + right.substr(skipped))});
  }

  void read_added(const Node& added) {
    const json& vocab = vocab_;
    int64_t next = named_;  // the id of a token that is new
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
    for (size_t b = 0; b < present.size(); ++b) {
      const char byte = static_cast<char>(b);
      const std::string letter = to_byte_alphabet({&byte, 1});
      present[b] = !parts_.byte_level ? vocab_.contains(byte_token_name(static_cast<uint8_t>(b)))
                                      : has_everywhere(letter);
    }
    const auto missing = std::find(present.begin(), present.end(), false);
    const bool complete = missing == present.end();
    if (complete && parts_.byte_level) return;  // other keys have no effect then
    if (!parts_.unknown_token.empty() && !vocab_.contains(parts_.unknown_token))
      model["unk_token"].fail(
          fmt::format("is {}, which model.vocab does not have", brief(json(parts_.unknown_token))));
    if (complete && parts_.byte_fallback) return;
    if (!parts_.byte_level && !parts_.unknown_token.empty()) return;
    if (parts_.model == TokenizerParts::Model::kUnigram)
      model["unk_id"].fail("is null, so some characters would be lost");
    if (!parts_.byte_level && complete)
      model["byte_fallback"].fail(
          "is false and unk_token is null, so some characters would be lost");
    model["vocab"].fail(fmt::format(
        "has no token for byte 0x{:02x} (and {} bytes in all), so some text could not be encoded; "
        "train it with all 256 bytes as its initial alphabet",
        missing - present.begin(), std::count(present.begin(), present.end(), false)));
  }

  // A letter of the byte-level alphabet at every place of a word.
  bool has_everywhere(const std::string& letter) const {
    for (const std::string& before : {std::string(), parts_.piece_prefix})
      for (const std::string& after : {std::string(), parts_.word_suffix})
        if (!vocab_.contains(before + letter + after)) return false;
    return true;
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
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      processor.only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
      parts_.template_before.insert(parts_.template_before.begin(), named_id(processor["cls"]));
      parts_.template_after.push_back(named_id(processor["sep"]));
    } else {
      processor["type"].unsupported(
          "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing and Sequence");
    }
  }

  // ["</s>", 2]
  int32_t named_id(const Node& pair) const {
    if (pair.array().size() != 2) pair.fail("must be a token and its id");
    const int64_t id = pair[size_t{1}].integer();
    if (id < 0 || id >= static_cast<int64_t>(parts_.tokens.size()))
      pair.fail(fmt::format("has the id {}, and there are {} tokens", id, parts_.tokens.size()));
    return static_cast<int32_t>(id);
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
  json vocab_;         // text: id
  int64_t named_ = 0;  // tokens of model.vocab
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

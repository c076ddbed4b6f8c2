#include "data/sentencepiece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/precompiled.h"

namespace onefold {
namespace {

using nlohmann::json;

constexpr const char* kMark = "\u2581";

// A message of protocol buffers: fields, each a number with a value of one of four kinds.
class ProtoMessage {
 public:
  ProtoMessage(std::string_view bytes, const std::string& source)
      : rest_(bytes), source_(&source) {}

  // The next field; false at the end. Varints and fixed numbers are in `number`, strings and
  // messages in `bytes`.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = key >> 3;
    number = 0;
    bytes = {};
    switch (key & 7) {
      case 0:
        number = varint();
        return true;
      case 1:
        std::memcpy(&number, take(8).data(), 8);
        return true;
      case 2:
        bytes = take(varint());
        return true;
      case 5:
        std::memcpy(&number, take(4).data(), 4);
        return true;
      default:
        fail();
    }
  }
  float as_float() const {
    float value;
    const auto bits = static_cast<uint32_t>(number);
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  uint64_t field = 0, number = 0;
  std::string_view bytes;

 private:
  [[noreturn]] void fail() const {
    user_error("{} is not a model of SentencePiece, or is cut short", *source_);
  }
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) fail();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view rest_;
  const std::string* source_;
};

using Piece = SentencePiece;

Piece read_piece(ProtoMessage message, const std::string& source) {
  Piece piece;
  while (message.next()) {
    if (message.field == 1) piece.text = message.bytes;
    if (message.field == 2) piece.score = message.as_float();
    if (message.field == 3) piece.type = message.number;
  }
  if (piece.text.empty() || utf8_prefix(piece.text) != piece.text.size())
    user_error("{} has a piece that is not UTF-8: it is no model of SentencePiece", source);
  return piece;
}

SentencePieceModel read_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  ProtoMessage file(bytes, source);
  while (file.next()) {
    ProtoMessage part(file.bytes, source);
    if (file.field == 1) model.pieces.push_back(read_piece(part, source));
    while (file.field == 2 && part.next()) {
      if (part.field == 3) model.type = part.number;
      if (part.field == 35) model.byte_fallback = part.number != 0;
    }
    while (file.field == 3 && part.next()) {
      if (part.field == 2) model.charsmap = part.bytes;
      if (part.field == 3) model.add_dummy_prefix = part.number != 0;
      if (part.field == 4) model.remove_extra_spaces = part.number != 0;
    }
  }
  if (model.pieces.empty()) user_error("{} has no pieces: it is no model of SentencePiece", source);
  if (model.type != SentencePieceModel::kUnigram && model.type != SentencePieceModel::kBpe)
    user_error("{} is a model of words or characters; those of BPE and Unigram are read", source);
  return model;
}

json pattern_replace(const char* kind, const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
}

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t held = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      held = held << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kLetters[held >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

json normalizer_of(const SentencePieceModel& model) {
  json steps = json::array();
  if (!model.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(model.charsmap)}});
  if (model.type == SentencePieceModel::kUnigram) {
    if (model.remove_extra_spaces) {
      steps.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
      steps.push_back(pattern_replace("Regex", " {2,}", kMark));
    }
  } else {
    if (model.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kMark}});
    steps.push_back(pattern_replace("String", " ", kMark));
  }
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

json decoder_of(const SentencePieceModel& model) {
  json steps = {
      pattern_replace("String", kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (model.add_dummy_prefix)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// Every way to put a piece together of two others, in order of the pieces' scores: the merges that
// find the same pieces by rank. Of one piece's, those of lower ids first.
json merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < model.pieces.size(); ++id) ids.emplace(model.pieces[id].text, id);
  struct Merge {
    float score;
    size_t left, right;
  };
  std::vector<Merge> merges;
  for (const Piece& piece : model.pieces) {
    if (piece.type != Piece::kNormal && piece.type != Piece::kUser) continue;
    const size_t first = merges.size();
    const std::string_view text = piece.text;
    for (size_t at = utf8_sequence(text); at < text.size(); at += utf8_sequence(text.substr(at))) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end())
        merges.push_back({piece.score, left->second, right->second});
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(first), merges.end(),
              [](const Merge& a, const Merge& b) {
                return a.left != b.left ? a.left < b.left : a.right < b.right;
              });
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const Merge& a, const Merge& b) { return a.score > b.score; });
  json list = json::array();
  for (const Merge& merge : merges)
    list.push_back({model.pieces[merge.left].text, model.pieces[merge.right].text});
  return list;
}

json model_of(const SentencePieceModel& model, const std::string& source) {
  const auto unknown =
      std::find_if(model.pieces.begin(), model.pieces.end(),
                   [](const Piece& piece) { return piece.type == Piece::kUnknown; });
  if (unknown == model.pieces.end()) user_error("{} has no unknown piece", source);
  json vocab;
  if (model.type == SentencePieceModel::kUnigram) {
    vocab = json::array();
    for (const Piece& piece : model.pieces) vocab.push_back({piece.text, piece.score});
    return {{"type", "Unigram"},
            {"unk_id", unknown - model.pieces.begin()},
            {"byte_fallback", model.byte_fallback},
            {"vocab", vocab}};
  }
  vocab = json::object();
  for (size_t id = 0; id < model.pieces.size(); ++id) vocab.emplace(model.pieces[id].text, id);
  return {{"type", "BPE"},    {"unk_token", unknown->text},
          {"fuse_unk", true}, {"byte_fallback", model.byte_fallback},
          {"vocab", vocab},   {"merges", merges_of(model)}};
}

}  // namespace

std::string tokenizer_json_of_sentencepiece(std::string_view bytes, const std::string& source) {
  return tokenizer_json_of_sentencepiece(read_model(bytes, source), source);
}

std::string tokenizer_json_of_sentencepiece(const SentencePieceModel& model,
                                            const std::string& source) {
  json added = json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type != Piece::kControl && piece.type != Piece::kUser &&
        piece.type != Piece::kUnknown)
      continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"special", piece.type != Piece::kUser},
                     {"normalized", false}});
  }
  json root = {{"version", "1.0"},
               {"added_tokens", added},
               {"normalizer", normalizer_of(model)},
               {"decoder", decoder_of(model)},
               {"model", model_of(model, source)}};
  if (model.type == SentencePieceModel::kUnigram) {
    const json metaspace = {{"type", "Metaspace"},
                            {"replacement", kMark},
                            {"prepend_scheme", model.add_dummy_prefix ? "always" : "never"}};
    root["pre_tokenizer"] = metaspace;
    root["decoder"] = metaspace;
  }
  return root.dump();
}

}  // namespace onefold

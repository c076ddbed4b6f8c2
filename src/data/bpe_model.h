// The BPE model of a tokenizer.json: a vocabulary and merges that turn one word into ids. The first
// symbols of a word are its bytes (byte-level: GPT-2, Llama 3, Qwen) or its characters
// (SentencePiece: Llama 2, Mistral), where a character that the vocabulary lacks becomes its bytes'
// tokens <0x00> to <0xFF>, or the unknown token.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"
#include "data/word_model.h"

namespace onefold {

struct BpeModelParts {
  struct Merge {
    int32_t left, right, merged;
  };
  bool byte_level = true;
  std::vector<VocabularyToken> vocabulary;  // made of bytes if byte-level, else of characters
  std::vector<Merge> merges;                // by rank
  bool ignore_merges = false;               // a word that is a token needs no merges (Llama 3)
  bool byte_fallback = false;
  bool fuse_unknown = false;  // neighbouring unknown characters are one unknown token
  int32_t unknown = -1;
  // Of the first symbols of a word: in front of all but the first (Bert), after the last (CLIP).
  std::string prefix = "", suffix = "";
};

// The name of a byte's token: "<0x0A>".
std::string byte_token_name(unsigned char byte);
// The byte whose token is called `name`, or -1.
int byte_of_token_name(std::string_view name);

class BpeModel final : public WordModel {
 public:
  // The texts of the vocabulary must live as long as the model.
  explicit BpeModel(const BpeModelParts& parts);

  // Bytes that are not UTF-8 become their bytes' tokens.
  void encode(std::string_view word, std::vector<int32_t>& ids) const override;

  // The parts of a word that no merge can join: text without word edges (SentencePiece cuts no
  // words) still falls into short parts that come again and again. A byte-level word is one part.
  void cut(std::string_view word, const std::function<void(std::string_view)>& part) const override;
  bool cuts_before(std::string_view mark) const override;

 private:
  // Classes of characters for cut(): ASCII by itself, the mark U+2581, all others.
  static constexpr size_t kMark = 128, kOther = 129, kClasses = 130;
  static size_t class_at(std::string_view text, size_t at, size_t& bytes);

  void find_cuts(const BpeModelParts& parts);
  void byte_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void character_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  // The text of a first symbol, with what its place puts around it.
  std::string affixed(std::string_view symbol, bool first, bool last) const;
  bool fall_back(std::string_view character, std::vector<int32_t>& symbols) const;

  bool byte_level_, byte_fallback_, fuse_unknown_;
  int32_t unknown_;
  std::string prefix_, suffix_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};
  // First symbols: characters; with a prefix or suffix all tokens.
  std::unordered_map<std::string_view, int32_t> characters_;
  std::unordered_map<std::string_view, int32_t> words_;  // only where merges may be ignored
  // joins_[a][b]: some token holds a character of class b after one of class a. Empty if text must
  // not be cut.
  std::vector<std::bitset<kClasses>> joins_;
};

}  // namespace onefold

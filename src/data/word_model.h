// The model of a tokenizer.json: turns one word into ids. Byte-pair encoding is in bpe_model.h;
// here are Unigram (SentencePiece: T5, XLM-RoBERTa), WordPiece (BERT) and WordLevel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the word's ids.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
  // Calls `part` for parts of a word that may be encoded alone, with the same result.
  virtual void cut(std::string_view word, const std::function<void(std::string_view)>& part) const {
    part(word);
  }
  // True if `cut` cuts between any ASCII letter and `mark`.
  virtual bool cuts_before(std::string_view) const { return false; }
};

// A token of model.vocab; `text` is what it is made of.
struct VocabularyToken {
  std::string_view text;
  int32_t id;
  double score = 0;  // Unigram: its log probability
};

// The texts of the vocabularies must live as long as the models. `unknown` is the id of what they
// have no token for; -1: there is none, and such text is left out.

// The most probable sequence of tokens. With `byte_fallback` what has no token becomes the tokens
// <0x00> to <0xFF> of its bytes, if the vocabulary has them all.
std::unique_ptr<WordModel> make_unigram(std::span<const VocabularyToken> vocabulary,
                                        int32_t unknown, bool byte_fallback);
// The longest token first, then the longest with `prefix` in front of it, and so on; one unknown
// token for a word that cannot be spelt, or has more than `most_characters`.
std::unique_ptr<WordModel> make_word_piece(std::span<const VocabularyToken> vocabulary,
                                           int32_t unknown, std::string prefix,
                                           int64_t most_characters);
// A word is a token.
std::unique_ptr<WordModel> make_word_level(std::span<const VocabularyToken> vocabulary,
                                           int32_t unknown);

}  // namespace onefold

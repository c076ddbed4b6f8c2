// Byte-level byte-pair encoding, as GPT-2, Llama 3 and Qwen use it: text to token ids and back,
// without loss for any bytes. Reads and writes Hugging Face's tokenizer.json. A Tokenizer never
// changes once made; any number of threads may use one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"
#include "data/pretokenizer.h"

namespace onefold {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// A token that merging never makes: it is found in the text as it is written, or put there by the
// program.
struct AddedToken {
  int32_t id = -1;
  std::string text;
  // Special tokens steer the model. Text that merely spells one is plain text unless the caller
  // says otherwise.
  bool special = true;
  // As in tokenizer.json; kept for saving. Matching here is literal and strips nothing.
  bool single_word = false, lstrip = false, rstrip = false, normalized = false;
  bool in_vocabulary = true;  // also listed under model.vocab
};

// What a tokenizer.json holds, with tokens as the bytes they stand for.
struct TokenizerParts {
  struct Merge {
    int32_t left, right, merged;
  };
  std::vector<std::string> tokens;  // by id; "" for an id without a token
  std::vector<Merge> merges;        // by rank
  std::vector<AddedToken> added;
  PreTokenizer pretokenizer;
  bool add_prefix_space = false;  // encode "x" as " x"
  bool ignore_merges = false;     // a word that is a token needs no merges (Llama 3)
  // The JSON of the parts that saving gives back as they were read.
  std::string normalizer_json = "null", pretokenizer_json, post_processor_json, decoder_json;
  std::vector<std::string> remarks;
};

// Recently encoded words. One for each thread; a Tokenizer without one given uses the calling
// thread's.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 16,
                          kMaxTokens = 6;  // longer words are rare, and merged anew each time

 private:
  friend class Tokenizer;
  struct Slot {
    uint64_t low = 0, high = 0;  // the word's bytes
    uint32_t owner = 0;          // the tokenizer's number; 0 is nobody's
    uint8_t bytes = 0, count = 0;
    std::array<int32_t, kMaxTokens> tokens{};
  };
  static constexpr int kSlotsLog2 = 15;  // 1.5 MiB: stays in a core's second-level cache
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kSlotsLog2);
};

class Tokenizer {
 public:
  enum class Specials { kAsText, kMatch };

  // 256 tokens for the bytes, and <|endoftext|> as 256: what a vocabulary learnt by BpeTrainer
  // begins with.
  static Tokenizer bytes();
  // Reads a tokenizer.json: a BPE model over the byte-level alphabet.
  static Tokenizer load(const std::string& path);
  static Tokenizer parse(std::string_view json, const std::string& source);
  explicit Tokenizer(TokenizerParts parts);

  // What `load` reads, and Hugging Face's `tokenizers` too.
  void save(const std::string& path) const;
  std::string to_json() const;
  // Names this tokenizer in the files made with it: FNV-1a 64 of to_json().
  uint64_t hash() const;

  // Special tokens that a template would add (Llama 3's <|begin_of_text|>) are not added.
  std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::kAsText) const;
  // Appends to `ids`.
  void encode(std::string_view text, Specials specials, WordCache& cache,
              std::vector<int32_t>& ids) const;
  std::string decode(std::span<const int32_t> ids) const;

  // The first place at or after `at_least` where text may be cut and its parts encoded alone with
  // the same result; text.size() if there is none.
  size_t safe_cut(std::string_view text, size_t at_least) const;

  int64_t vocab_size() const { return static_cast<int64_t>(parts_->tokens.size()); }
  int32_t end_of_text() const { return end_of_text_; }  // -1 if there is none
  const std::string& token_text(int32_t id) const;      // the token's bytes
  int32_t token_id(std::string_view bytes) const;       // -1 if there is none
  const std::vector<AddedToken>& added_tokens() const { return parts_->added; }
  // Parts of the tokenizer.json that have no effect here, as sentences; empty for most files.
  const std::vector<std::string>& remarks() const { return parts_->remarks; }
  const PreTokenizer& pretokenizer() const { return parts_->pretokenizer; }

 private:
  void encode_plain(std::string_view text, WordCache& cache, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const;
  void merge_word(std::string_view word, std::vector<int32_t>& ids) const;
  const AddedToken* added_at(std::string_view text, Specials specials) const;

  std::shared_ptr<const TokenizerParts> parts_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string_view, int32_t> ids_;  // views into parts_
  std::vector<const AddedToken*> added_;               // longest first
  std::vector<bool> is_added_;                         // by id
  std::array<bool, 256> added_starts_{};
  int32_t end_of_text_ = -1;
  uint32_t number_ = 0;
};

}  // namespace onefold

// Tokenizers of the Hugging Face kind: text to token ids and back, exactly as `tokenizers` does it.
// Byte-pair encoding, byte-level (GPT-2, Llama 3, Qwen), without loss for any bytes, and
// SentencePiece-style (Llama 2, Mistral); Unigram, WordPiece, WordLevel. Reads and writes
// tokenizer.json. Any number of threads may use one Tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "data/added_tokens.h"
#include "data/bpe_model.h"
#include "data/normalizer.h"
#include "data/pretokenizer.h"
#include "data/token_decoder.h"
#include "data/word_model.h"

namespace onefold {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// SentencePiece's spaces: each becomes `mark`, and one is put in front of the text.
struct Metaspace {
  enum class Prepend {
    kAlways,
    kFirst,
    kNever
  };  // before every text, or only where a document begins
  std::string mark = "\u2581";
  Prepend prepend = Prepend::kAlways;
};

// What a tokenizer.json holds.
struct TokenizerParts {
  using Merge = BpeModelParts::Merge;
  enum class Model { kBpe, kUnigram, kWordPiece, kWordLevel };
  Model model = Model::kBpe;
  std::vector<std::string> tokens;     // by id, as the bytes they stand for; "": no such token
  std::vector<std::string> spellings;  // the same as the file spells them; may be left out if
                                       // byte-level
  std::vector<Merge> merges;           // by rank
  std::vector<AddedToken> added;
  Normalizer normalizer;
  std::optional<Metaspace> metaspace;
  PreTokenizer before_metaspace;  // cuts what each gets spaces' marks by itself (T5)
  PreTokenizer pretokenizer;
  TokenDecoder decoder;
  bool byte_level = true;
  bool add_prefix_space = false;  // byte-level: encode "x" as " x"
  bool ignore_merges = false, byte_fallback = false, fuse_unknown = false;
  std::string unknown_token;
  std::string piece_prefix, word_suffix;  // in front of pieces after the first, after the last
  int64_t most_characters = 0;            // WordPiece: of a word that is not unknown
  std::vector<double> scores;             // Unigram: by id
  int64_t empty_token = -1;               // the id of "", which no text has (Whisper)
  std::vector<int32_t> template_before, template_after;
  // The JSON of the parts that saving gives back as they were read.
  std::string normalizer_json = "null", pretokenizer_json, post_processor_json, decoder_json;

  // An added token as it is looked for, and decoded: normalized, if it says so.
  std::string shown(const AddedToken& token) const;
};

// The template that conversations with a model are rendered with, and the names that it may use
// beside the messages (bos_token, ...). `source` names it in errors. `tools_text`, if it is not
// empty, renders those that have tools, which `tools_problem` refuses.
struct ChatTemplateText {
  std::string text, source;
  Json variables;
  std::string tools_text = {}, tools_problem = {};
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
    uint32_t owner = 0;          // the tokenizer's number; 0: the slot is empty
    uint8_t bytes = 0, count = 0;
    std::array<int32_t, kMaxTokens> tokens{};
  };
  static constexpr int kSlotsLog2 = 15;  // 1.5 MiB: stays in a core's second-level cache
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kSlotsLog2);
};

class Tokenizer {
 public:
  enum class Specials { kAsText, kMatch };
  // Whether a text is a document's beginning, or continues one that was cut.
  enum class Place { kBegin, kContinue };

  // 256 tokens for the bytes, and <|endoftext|> as 256: what a vocabulary learnt by BpeTrainer
  // begins with.
  static Tokenizer bytes();
  // Reads a tokenizer.json. What it holds and we do not support is an error that names its path.
  static Tokenizer load(const std::string& path);
  static Tokenizer parse(std::string_view json, const std::string& source);
  explicit Tokenizer(TokenizerParts parts);

  // What `load` reads, and Hugging Face's `tokenizers` too.
  void save(const std::string& path) const;
  std::string to_json() const;
  // Names this tokenizer in the files made with it: FNV-1a 64 of to_json().
  uint64_t hash() const;

  // Special tokens that a template would add (Llama's <s>) are not added: template_before() has
  // them.
  std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::kAsText) const;
  // Appends to `ids`.
  void encode(std::string_view text, Specials specials, WordCache& cache, std::vector<int32_t>& ids,
              Place place = Place::kBegin) const;
  // The bytes that the tokens stand for, one after the other. A space that encoding puts in front
  // of a text is still there, so that a text may be decoded a few tokens at a time.
  std::string decode(std::span<const int32_t> ids) const;
  // The text that `tokenizers` decodes: without that space, and with U+FFFD for bytes that are not
  // UTF-8.
  std::string decode_text(std::span<const int32_t> ids, bool skip_specials = false) const;

  // The first place at or after `at_least` where text may be cut and its parts encoded alone (the
  // second as Place::kContinue) with the same result; text.size() if there is none.
  size_t safe_cut(std::string_view text, size_t at_least) const;

  // What the post-processor's template puts before and after a text.
  const std::vector<int32_t>& template_before() const { return parts_->template_before; }
  const std::vector<int32_t>& template_after() const { return parts_->template_after; }

  int64_t vocab_size() const { return static_cast<int64_t>(parts_->tokens.size()); }
  int32_t end_of_text() const { return end_of_text_; }  // -1 if there is none
  // What names the end-of-text: a file, or "its name" if it is one of four usual ones.
  const std::string& end_of_text_source() const { return end_of_text_source_; }
  void set_end_of_text(int32_t id, std::string source);
  // Of the files beside the tokenizer; null if they have none.
  const ChatTemplateText* chat_template() const { return chat_template_.get(); }
  void set_chat_template(ChatTemplateText text);
  const std::string& token_text(int32_t id) const;  // the bytes it stands for
  int32_t token_id(std::string_view bytes) const;   // -1 if there is none
  const std::vector<AddedToken>& added_tokens() const { return parts_->added; }
  const PreTokenizer& pretokenizer() const { return parts_->pretokenizer; }

 private:
  void encode_plain(std::string_view text, bool first, WordCache& cache,
                    std::vector<int32_t>& ids) const;
  void encode_part(std::string_view text, bool first, WordCache& cache,
                   std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const;
  bool may_cut_before_spaces() const;

  std::shared_ptr<const TokenizerParts> parts_;
  std::shared_ptr<const WordModel> model_;
  AddedTokenFinder raw_added_, normalized_added_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into parts_
  struct Shown {
    std::string text;
    bool special;  // by this text: one that the normalizer changes is none any more
  };
  std::unordered_map<int32_t, Shown> shown_;  // the added tokens
  bool cuts_before_spaces_ = false;
  int32_t end_of_text_ = -1;
  std::string end_of_text_source_;
  std::shared_ptr<const ChatTemplateText> chat_template_;
  uint32_t number_ = 0;
};

}  // namespace onefold

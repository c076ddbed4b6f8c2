// From tokens back to text, in the steps that a tokenizer.json names, as `tokenizers` takes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

class TokenDecoder {
 public:
  // Steps are taken in the order they are added.
  void add_byte_level();  // the byte-level alphabet back into bytes
  void add_replace(std::string from, std::string to);
  void add_byte_fallback();                                            // <0x0A> into its byte
  void add_fuse();                                                     // all tokens become one
  void add_strip(std::string character, int64_t start, int64_t stop);  // from each token's ends
  void add_metaspace(std::string mark, bool drop_first);  // marks into spaces; none in the first
  // Pieces without the prefix have a space in front, except the first; cleaned up: spaces before
  // punctuation and English contractions go.
  void add_word_piece(std::string prefix, bool cleanup);
  void add_suffix(std::string suffix);  // into a space; at the end into nothing

  // The text of tokens as they are spelt. Always UTF-8: bytes that are none become U+FFFD. Without
  // steps, tokens are joined by spaces.
  std::string text_of(std::vector<std::string> tokens) const;
  // The bytes that one token stands for wherever it appears: the steps without those that treat the
  // first token, or a token's neighbours, in their own way.
  std::string bytes_of(std::string_view token) const;

 private:
  struct DecoderStep {
    enum class Type {
      kByteLevel,
      kReplace,
      kByteFallback,
      kFuse,
      kStrip,
      kMetaspace,
      kWordPiece,
      kSuffix
    };
    Type type;
    std::string from = "", to = "";
    int64_t start = 0, stop = 0;
    bool drop_first = false;  // or clean up
  };

  static void take(const DecoderStep& step, size_t most_bytes, std::vector<std::string>& tokens);

  std::vector<DecoderStep> steps_;
};

}  // namespace onefold

// The token file: tokenized documents on disk, mapped into memory for training. docs/formats.md
// gives it byte by byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace onefold {

// The header of a token file.
struct TokenFileInfo {
  int64_t vocab_size = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
  int32_t end_of_text = -1;     // -1: documents do not end with a token
  uint64_t tokenizer_hash = 0;  // Tokenizer::hash(); 0 if unknown
  int token_bytes = 2;          // 2 up to a vocabulary of 65536, else 4
  bool masked = false;          // some tokens are not trained on
};

// Which tokens are trained on, a bit for each. Takes no memory until one is not.
class TargetMask {
 public:
  void add(int64_t tokens, bool counted);
  bool empty() const { return bits_.empty(); }  // all are trained on
  std::span<const uint8_t> bits() const { return bits_; }
  // The bytes of so many tokens' bits, padded to a multiple of 8.
  static int64_t bytes_for(int64_t tokens) { return (tokens + 63) / 64 * 8; }
  static bool counts(const uint8_t* bits, int64_t token) {
    return (bits[token / 8] >> (token % 8) & 1) != 0;
  }

 private:
  std::vector<uint8_t> bits_;
  int64_t tokens_ = 0;
};

// Bytes for each token of a vocabulary.
int token_bytes_for(int64_t vocab_size);

// Writes a token file document by document; memory grows by eight bytes for each document, and by a
// bit for each token once one is not trained on. The file exists only once finish() is done.
class TokenFileWriter {
 public:
  TokenFileWriter(std::string path, int64_t vocab_size, int32_t end_of_text,
                  uint64_t tokenizer_hash);

  // A document is any number of add() calls, then end_document(), which appends end-of-text where
  // there is one and the document does not end with it already. Documents without tokens are left
  // out. `counted`: whether the tokens, or the end-of-text, are trained on.
  void add(std::span<const int32_t> tokens, bool counted = true);
  void end_document(bool counted = true);
  TokenFileInfo finish();

 private:
  OutputFile file_;
  TokenFileInfo info_;
  std::vector<uint64_t> starts_;  // of documents, in tokens
  TargetMask mask_;
  int64_t document_begin_ = 0;
  int32_t last_ = -1;  // token
};

// A token file mapped into memory. Everything but the tokens themselves is checked on opening; each
// token is checked against the vocabulary when it is read.
class TokenFile {
 public:
  explicit TokenFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const TokenFileInfo& info() const { return info_; }
  const std::byte* tokens() const;  // info().tokens of info().token_bytes each
  std::span<const uint64_t> document_starts() const {
    return starts_;
  }                                              // increasing, the first is 0
  const uint8_t* mask() const { return mask_; }  // TargetMask's bits; null: all are trained on

 private:
  MappedFile file_;
  TokenFileInfo info_;
  std::span<const uint64_t> starts_;
  const uint8_t* mask_ = nullptr;
};

}  // namespace onefold

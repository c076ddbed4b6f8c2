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
};

// Bytes for each token of a vocabulary.
int token_bytes_for(int64_t vocab_size);

// Writes a token file document by document; memory grows by eight bytes for each document. The file
// exists only once finish() is done.
class TokenFileWriter {
 public:
  TokenFileWriter(std::string path, int64_t vocab_size, int32_t end_of_text,
                  uint64_t tokenizer_hash);

  // A document is any number of add() calls, then end_document(), which appends end-of-text where
  // there is one. Documents without tokens are left out.
  void add(std::span<const int32_t> tokens);
  void end_document();
  TokenFileInfo finish();

 private:
  OutputFile file_;
  TokenFileInfo info_;
  std::vector<uint64_t> starts_;  // of documents, in tokens
  int64_t document_begin_ = 0;
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
  }  // increasing, the first is 0

 private:
  MappedFile file_;
  TokenFileInfo info_;
  std::span<const uint64_t> starts_;
};

}  // namespace onefold

// Token files of other trainers, mapped: llm.c's, with a header of 256 integers, and nanoGPT's,
// which are 16-bit tokens and nothing else. Neither says what the vocabulary is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace onefold {

struct ForeignTokens {
  MappedFile file;
  const std::byte* data = nullptr;
  int token_bytes = 2;
  int64_t tokens = 0;
  // llm.c puts end-of-text before each document, nanoGPT after it.
  bool separator_first = false;
};

// None if the file begins with neither of llm.c's magic numbers and is not named *.bin, or is one
// of our own token files. UserError if it is one of these and its size is not what it must be.
std::optional<ForeignTokens> open_foreign_tokens(const std::string& path);

// Where documents begin: after each `separator`, or with it. One document for -1.
std::vector<uint64_t> document_starts(const ForeignTokens& tokens, int32_t separator);

}  // namespace onefold

// Text to tokens on all cores, in bounded memory and always in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "data/documents.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace onefold {

// Where tokens go: any number of tokens() calls, then end_document(), for each document.
struct TokenSink {
  std::function<void(std::span<const int32_t>)> tokens;
  std::function<void()> end_document;
};

// Encodes every document of `source`. Long documents are cut where the cut cannot be seen in the
// tokens, so that one large file keeps all threads busy; where the tokenizer's pattern allows no
// such cut, a document is held whole.
void tokenize(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
              const TokenSink& sink);

// The same into a token file.
TokenFileInfo tokenize_to_file(const DataSource& source, const Tokenizer& tokenizer,
                               ThreadPool& pool, const std::string& path);

}  // namespace onefold

// Text to tokens on all cores, in bounded memory and always in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "data/documents.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace onefold {

// Where tokens go: any number of tokens() calls, then end_document(), for each document. `counted`:
// whether the tokens, or the end-of-text that the sink puts there, are trained on.
struct TokenSink {
  std::function<void(std::span<const int32_t>, bool counted)> tokens;
  std::function<void(bool counted)> end_document;
};

struct TokenizeOptions {
  // Put what the tokenizer's template adds (Llama's <s>) around every document.
  bool add_template = false;
  // Called after each batch with the input bytes that are done, and all there are (0 if a pipe does
  // not say). Returns whether to go on.
  std::function<bool(int64_t done, int64_t total)> progress = nullptr;
  DocumentReport* report = nullptr;  // gets what was skipped
};

// Encodes every document of `source`. Long documents are cut where the cut cannot be seen in the
// tokens, so that one large file keeps all threads busy and little of it is in memory; where the
// tokenizer allows no such cut, a document is held whole. False if `progress` ended it.
bool tokenize(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
              const TokenSink& sink, const TokenizeOptions& options = {});

// The same into a token file; nothing is left of it if `progress` ended it, or an error did.
std::optional<TokenFileInfo> tokenize_to_file(const DataSource& source, const Tokenizer& tokenizer,
                                              ThreadPool& pool, const std::string& path,
                                              const TokenizeOptions& options = {});

}  // namespace onefold

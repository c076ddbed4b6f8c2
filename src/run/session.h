// What a configuration becomes: data to read, an engine to run, a folder to write. The command
// line's `train` and the tests are made of these pieces.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "config/config.h"
#include "data/batch.h"
#include "data/documents.h"
#include "data/tokenizer.h"
#include "engine/engine.h"

namespace onefold {

// The tokenizer and the batches of a run.
struct RunData {
  std::optional<Tokenizer> tokenizer;
  std::optional<BatchLoader> train;
  std::optional<ValidationLoader> validation;
  int64_t vocab_size = 0;
  int64_t train_tokens = 0, validation_tokens = 0, documents = 0;
  bool masked = false;       // some tokens are not trained on: prompts, in conversations
  int64_t targets = 0;       // tokens that are, in one pass
  DocumentReport skipped;    // lines of the files that could not be read
  int32_t end_of_text = -1;  // the token that ends each training document; -1: none
  int64_t memory_bytes = 0;  // tokens held in memory; mapped files are not counted
  // Whether a resumed run has the same training data: of some sequences; and of all tokens, "" of
  // so many that hashing them would take long.
  std::string fingerprint, hash;
};

// "bytes", or the path of a tokenizer.json or of a folder with a tokenizer; nothing for "".
std::optional<Tokenizer> open_tokenizer(const std::string& name);

RunData open_data(const Config& config);

// The model with its vocabulary settled: the tokenizer's, unless the configuration names a larger
// one.
ModelSpec settled_model(const Config& config, const RunData& data);

// A batch as the engine sees it; the batch must outlive the view.
BatchView view_of(Batch& batch);

// One optimizer step of this rank on the loader's batches.
StepResult train_step(Engine& engine, const BatchLoader& loader, const StepRates& rates);

}  // namespace onefold

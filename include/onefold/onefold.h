// Onefold as a library: build a model, train it step by step on your own tokens, sample from it,
// save and load it. examples/embed shows it in under 60 lines; docs/library.md has more. Errors
// are onefold::UserError (your input) and onefold::InternalError (our bug). A Trainer may be used
// from one thread at a time; it runs its own threads inside.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onefold/error.h"

namespace onefold {

struct TrainerOptions {
  // A preset ("gpt2", "llama-3.2-1b", ...; see model_presets()) or a JSON object: an inline spec,
  // or a preset with changes: R"({"preset": "gpt2", "num_layers": 4, "vocab_size": 256})". The keys
  // are those of "model" in docs/config.md.
  std::string model = "gpt2";
  int64_t micro_batch = 1;       // sequences in one forward pass
  int64_t accumulation = 1;      // forward passes in one step
  int64_t sequence_length = 64;  // tokens
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double gradient_clipping = 0;  // largest global norm; 0: off
  bool recompute = false;        // keep only block inputs; compute the rest again in backward
  uint64_t seed = 1;
  int threads = 0;           // 0: all cores this process may use
  int64_t memory_bytes = 0;  // refuse to need more; 0: what the machine has left
};

struct StepReport {
  int64_t step = 0;  // counted from 1
  double loss = 0;   // mean over the targets that are not negative
  double gradient_norm = 0;
};

struct GenerationOptions {
  int64_t max_tokens = 64;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1.0;
  double repetition_penalty = 1.0;
  int64_t beams = 1;  // > 1: beam search
  double length_penalty = 1.0;
  int32_t end_token = -1;
  uint64_t seed = 1;
};

struct MemoryReport {
  int64_t planned_peak_bytes = 0;   // from a dry run, before the first step
  int64_t measured_peak_bytes = 0;  // what the ledger has seen so far
};

class Trainer {
 public:
  explicit Trainer(const TrainerOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  // One AdamW step. Both spans hold accumulation * micro_batch * sequence_length elements, sequence
  // after sequence; targets[i] is the token that should follow tokens[i], or negative to leave it
  // out of the loss.
  StepReport step(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                  double learning_rate);

  // The mean loss on micro_batch * sequence_length tokens; changes nothing.
  double evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets);

  // The tokens that follow the prompt.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const GenerationOptions& options);

  // Weights as safetensors, every parameter by name. The file appears whole or not at all. One that
  // is there stays, and that is an error, unless `overwrite`.
  void save(const std::string& path, bool overwrite = false) const;
  void load(const std::string& path);

  int64_t parameter_count() const;
  int64_t vocab_size() const;
  MemoryReport memory() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::vector<std::string> model_presets();
const char* version();

}  // namespace onefold

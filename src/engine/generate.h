// Continues a prompt from an engine's weights: sampling, or beam search. Keys and values of
// positions already seen are kept in a cache, so that each new token costs one position of work.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/decoder.h"
#include "engine/engine.h"
#include "engine/sampling.h"

namespace onefold {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 128;
  int64_t beams =
      1;  // > 1: beam search; sampling options other than the repetition penalty do not apply
  double length_penalty = 1.0;      // a finished beam scores log-probability / length^penalty
  std::vector<int32_t> end_tokens;  // stops at any of them; it is not returned
};

// The tokens after the prompt. `emit` sees each one as it is chosen (beam search: all at the end)
// and may return false to stop. Throws UserError for an empty prompt, one longer than the model's
// positions, or options out of range.
std::vector<int32_t> generate(Engine& engine, std::span<const int32_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& emit = {});

// Generates again and again for texts that grow: what one has in common with the text before is not
// computed again.
class Generator {
 public:
  explicit Generator(Engine& engine) : engine_(engine) {}

  // As generate(), for sampling: one beam.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                const std::function<bool(int32_t)>& emit = {});

 private:
  Decoder& decoder_for(std::span<const int32_t> prompt, int64_t count);

  Engine& engine_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<int32_t> seen_;  // tokens in the decoder's cache
};

// Engine options fit for generation with this many beams.
EngineOptions generation_engine_options(const ModelSpec& spec, int64_t beams, int threads);

}  // namespace onefold

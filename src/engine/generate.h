// Continues a prompt from an engine's weights: sampling, or beam search. Keys and values of
// positions already seen are kept in a cache, so that each new token costs one position of work.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "engine/sampling.h"

namespace onefold {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 128;
  int64_t beams =
      1;  // > 1: beam search; sampling options other than the repetition penalty do not apply
  double length_penalty = 1.0;  // a finished beam scores log-probability / length^penalty
  int32_t end_token = -1;       // stops there; it is not returned
};

// The tokens after the prompt. `emit` sees each one as it is chosen (beam search: all at the end)
// and may return false to stop. Throws UserError for an empty prompt, one longer than the model's
// positions, or options out of range.
std::vector<int32_t> generate(Engine& engine, std::span<const int32_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& emit = {});

// Engine options fit for generation with this many beams.
EngineOptions generation_engine_options(const ModelSpec& spec, int64_t beams, int threads);

}  // namespace onefold

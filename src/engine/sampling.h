// Choosing the next token from logits: greedy, temperature, top-k, top-p, repetition penalty. Pure
// functions of their input.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace onefold {

struct SamplingOptions {
  double temperature = 1.0;         // 0: greedy
  int64_t top_k = 0;                // keep the k likeliest; 0: all
  double top_p = 1.0;               // keep the smallest set with at least this probability; 1: all
  double repetition_penalty = 1.0;  // > 1 makes tokens already present less likely
  uint64_t seed = 1;
};

// Throws UserError naming the option that is out of range.
void check_sampling(const SamplingOptions& options);

// Divides positive and multiplies negative logits of the tokens in `present` (each once), as Keskar
// et al. 2019.
void penalise_repetition(std::span<float> logits, std::span<const int32_t> present, double penalty);

// Logits may be infinite: -inf is the probability 0, and tokens of +inf share all of it. The two
// functions below throw UserError where a logit is not a number or none is above -inf.

// log softmax, in place.
void log_softmax(std::span<float> logits);

// The token drawn by `uniform` in [0, 1) from what the options leave; greedy ignores it. Ties go to
// the lower id.
int32_t pick_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace onefold

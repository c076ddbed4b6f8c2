// Evaluations: losses over sequences, and scores of texts. Ranks share them out batch by batch, and
// each gets the whole result, which is the same for any number of ranks: batches are made before
// they are shared out, and sums are taken in double in the order of sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/batch.h"
#include "engine/engine.h"

namespace onefold {

struct LossSum {
  double loss = 0;
  int64_t tokens = 0;  // targets that were summed over
  int64_t bytes = 0;   // of the text that they stand for

  double mean() const { return tokens > 0 ? loss / static_cast<double>(tokens) : 0; }
};

// Called on every rank after each of its batches: sequences or texts of all ranks so far, and all.
using EvaluationProgress = std::function<void(int64_t done, int64_t total)>;

// Over the loader's sequences. `token_bytes` has the bytes that each token stands for; without it
// none are counted.
LossSum sum_losses(Engine& engine, const ValidationLoader& loader,
                   std::span<const int32_t> token_bytes = {},
                   const EvaluationProgress& progress = {});

// Tokens of which the last are scored, each given all that come before it.
struct ScoredText {
  std::vector<int32_t> tokens;
  size_t given = 1;  // tokens that are not scored: at least one
};
struct TextScore {
  double log_probability = 0;
  bool likeliest = true;  // greedy decoding would write it
};

// In batches of as many texts as the engine's micro-batch has sequences, texts of similar length
// together. A text has at most one token more than the engine's sequence.
std::vector<TextScore> score_texts(Engine& engine, std::span<const ScoredText> texts,
                                   const EvaluationProgress& progress = {});

}  // namespace onefold

// Scores tokens by a model: the loss of each target, and whether no other token was likelier. Only
// rows that have a target are multiplied with the vocabulary. On any number of ranks, all of which
// call it together where parameters are sharded.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace onefold {

struct TokenScore {
  float loss = 0;          // -log of its probability
  bool likeliest = false;  // greedy decoding would choose it; of equal ones the first
};

// By token of the batch; those without a target stay as they are above. UserError where what the
// model computes is not finite.
std::vector<TokenScore> score_tokens(Engine& engine, const BatchView& batch);

}  // namespace onefold

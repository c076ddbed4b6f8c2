#include "model/spec_limits.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace onefold {

int64_t saved_elems_per_token(const ModelSpec& m) {
  const int64_t attention =
      m.qkv_size() + (m.qk_norm ? m.query_size() + m.kv_size() : 0) + m.query_size() + m.num_heads;
  // Of experts what all of a token's have, in place of an MLP that may be narrower; and the
  // router's logits and choices, with what a micro-batch has of them by expert.
  const ExpertSpec& e = m.experts;
  const int64_t inner =
      std::max(m.intermediate_size,
               e.enabled() ? e.per_token * e.intermediate_size + e.shared_intermediate_size : 0);
  const int64_t routing = e.enabled() ? 3 * e.count + 4 * e.per_token + 16 : 0;
  const int64_t mlp = inner * (m.gated ? 2 : 1) + routing;
  const int64_t projected = m.norm_after() ? 2 * m.hidden_size : 0;
  return attention + mlp + projected + 2 * m.hidden_size;  // the inputs of a block's units
}

int64_t units_computed(const ModelSpec& model, int64_t micros) {
  return saturating_product({model.num_layers + 2, micros});
}

void check_step_sizes(const ModelSpec& model, const StepSizes& sizes, const StepSizeNames& names) {
  const auto [micro_batch, micros, sequence] = sizes;
  if (sequence > kMostTokens)
    user_error("{} is {}; the largest is {}", names.sequence, sequence, kMostTokens);
  if (units_computed(model, micros) > kMostUnitsComputed)
    user_error("{} is {}; with {} layers the largest is {}", names.micros, micros, model.num_layers,
               largest_size(kMostUnitsComputed, {model.num_layers + 2}));
  if (saturating_product({micros, sequence}) > kMostTokens)
    user_error("{} is {}; with sequences of {} tokens the largest is {}", names.micros, micros,
               sequence, largest_size(kMostTokens, {sequence}));
  if (saturating_product({micro_batch, micros, sequence}) > kMostTokens)
    user_error(
        "{} is {}; with {} micro-batches in a step, and sequences of {} tokens, the largest "
        "is {}",
        names.micro_batch, micro_batch, micros, sequence,
        largest_size(kMostTokens, {micros, sequence}));
  const int64_t of_token = model.num_layers * saved_elems_per_token(model);
  if (saturating_product({micro_batch, micros, sequence, of_token}) <= kMostSavedElems) return;
  const int64_t most_sequences = largest_size(kMostSavedElems, {micros, sequence, of_token});
  const bool micro_fits = most_sequences > 0;
  user_error(
      "{} is {}; with {} micro-batches in a step, and a model that keeps {} numbers for each "
      "token, the largest is {}",
      micro_fits ? names.micro_batch : names.sequence, micro_fits ? micro_batch : sequence, micros,
      of_token, micro_fits ? most_sequences : largest_size(kMostSavedElems, {micros, of_token}));
}

}  // namespace onefold

#include "model/share.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/unit.h"

namespace onefold {
namespace {

int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

Span equal_part(int64_t size, const Share& share) {
  return {size / share.count * share.index, size / share.count};
}

// Tokens of each share but the last.
int64_t vocabulary_step(const ModelSpec& spec, const Share& share) {
  return (spec.vocab_size + share.count - 1) / share.count;
}

}  // namespace

std::vector<Span> runs_of(const Share& share, int64_t sequence) {
  if (share.parts == 1 || share.method == ContextMethod::ulysses)
    return {equal_part(sequence, {share.part, share.parts})};
  const int runs = 2 * share.parts;
  return {equal_part(sequence, {share.part, runs}),
          equal_part(sequence, {runs - 1 - share.part, runs})};
}

int kv_replicas(const ModelSpec& spec, int shares) {
  return static_cast<int>(std::max<int64_t>(1, shares / spec.num_kv_heads));
}

Span heads_of(const ModelSpec& spec, const Share& share) {
  return equal_part(spec.num_heads, share);
}

Span kv_heads_of(const ModelSpec& spec, const Share& share) {
  const int replicas = kv_replicas(spec, share.count);
  return equal_part(spec.num_kv_heads, {share.index / replicas, share.count / replicas});
}

Span inner_of(int64_t width, const Share& share) {
  const int64_t each = width / share.count, more = width % share.count;
  return {each * share.index + std::min<int64_t>(share.index, more),
          each + (share.index < more ? 1 : 0)};
}

Span vocabulary_of(const ModelSpec& spec, const Share& share) {
  const int64_t step = vocabulary_step(spec, share), first = step * share.index;
  return {first, std::min(step, spec.vocab_size - first)};
}

int64_t vocabulary_rows(const ModelSpec& spec, const Share& share) {
  return rounded_up(vocabulary_step(spec, share) + (share.whole() ? 0 : 1), kVocabularyAlign);
}

ModelSpec spec_of(const ModelSpec& spec, const Share& share) {
  if (share.whole()) return spec;
  ModelSpec local = spec;
  local.num_heads = heads_of(spec, share).size;
  local.num_kv_heads = kv_heads_of(spec, share).size;
  for (int64_t* width : {&local.intermediate_size, &local.experts.intermediate_size,
                         &local.experts.shared_intermediate_size})
    *width = inner_of(*width, share).size;
  local.vocab_size = vocabulary_of(spec, share).size;
  return local;
}

std::vector<std::string> obstacles_to_shares(const ModelSpec& spec, int shares) {
  std::vector<std::string> reasons;
  const auto divides = [&](int64_t size, const char* what) {
    if (size % shares != 0)
      reasons.push_back(fmt::format("its {} {} cannot be divided by {}", size, what, shares));
  };
  divides(spec.num_heads, "attention heads");
  if (spec.num_kv_heads % shares != 0 && shares % spec.num_kv_heads != 0)
    reasons.push_back(fmt::format(
        "its {} key and value heads can neither be divided by {} nor be copied to as many ranks "
        "each",
        spec.num_kv_heads, shares));
  const auto reaches = [&](int64_t width, const char* what) {
    if (width < shares)
      reasons.push_back(fmt::format("its {} of {} leaves nothing to some of them", what, width));
  };
  reaches(spec.intermediate_size, "intermediate_size");
  if (spec.experts.enabled()) reaches(spec.experts.intermediate_size, "experts.intermediate_size");
  if (spec.experts.shared_intermediate_size > 0)
    reaches(spec.experts.shared_intermediate_size, "experts.shared_intermediate_size");
  divides(spec.hidden_size, "columns of hidden_size");
  if (spec.vocab_size > 0 && vocabulary_of(spec, {shares - 1, shares}).size <= 0)
    reasons.push_back(
        fmt::format("its vocabulary of {} leaves nothing to some of them", spec.vocab_size));
  if (spec.qk_norm_whole)
    reasons.push_back("its norms of queries and keys go over all heads (qk_norm_whole)");
  return reasons;
}

}  // namespace onefold

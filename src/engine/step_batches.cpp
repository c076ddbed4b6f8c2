#include "engine/step_batches.h"

#include <algorithm>

namespace onefold {
namespace {

template <typename T>
Tensor place(Device& device, const Buffer& memory, int64_t micro, int64_t most,
             std::span<const T> values, int64_t count, DType dtype) {
  const Tensor all = memory.as(1, memory.bytes() / dtype_bytes(dtype), dtype);
  const Tensor dst = all.col_range(micro * most, count);
  if (!values.empty()) upload(device, values, dst);
  return dst;
}

}  // namespace

StepBatches::StepBatches(Device& device, Ledger& ledger, const EngineOptions& options,
                         const Model& model)
    : device_(device),
      share_(model.share),
      all_(model.spec.vocab_size),
      mine_(vocabulary_of(model.spec, model.share)),
      tokens_(options.tokens()),
      sequences_(options.micro_batch) {
  const auto take = [&](int64_t elems, DType dtype, const char* what) {
    return ledger.allocate(Kind::data, options.micros * elems * dtype_bytes(dtype), what);
  };
  tokens_memory_ = take(tokens_, DType::i32, "tokens");
  targets_memory_ = take(tokens_, DType::i32, "targets");
  if (options.documents) starts_memory_ = take(tokens_, DType::i32, "documents");
  samples_memory_ = take(sequences_, DType::i64, "samples");
  if (share_.parts == 1) return;
  places_memory_ = take(tokens_, DType::i32, "places");
  if (options.documents) all_starts_memory_ = take(share_.parts * tokens_, DType::i32, "documents");
}

std::vector<int32_t> StepBatches::part_of(const BatchView& batch,
                                          std::span<const int32_t> values) const {
  if (share_.parts == 1 || values.empty()) return {values.begin(), values.end()};
  std::vector<int32_t> part;
  part.reserve(values.size() / static_cast<size_t>(share_.parts));
  for (int64_t row = 0; row < batch.batch; ++row)
    for (const Span& run : runs_of(share_, batch.sequence)) {
      const auto first = values.begin() + row * batch.sequence + run.first;
      part.insert(part.end(), first, first + run.size);
    }
  return part;
}

int64_t StepBatches::valid_targets(const BatchView& batch) const {
  if (batch.targets.empty()) return batch.tokens_count() / share_.parts;  // dry: all of them
  const std::vector<int32_t> targets = part_of(batch, batch.targets);
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

std::vector<int32_t> StepBatches::places_of(std::span<const int32_t> tokens) const {
  std::vector<int32_t> places;
  places.reserve(tokens.size());
  for (const int32_t token : tokens) {
    require(token < all_, "token {}, vocabulary of {}", token, all_);
    const int64_t place = token - mine_.first;
    const bool here = place >= 0 && place < mine_.size;
    places.push_back(token < 0 ? token : static_cast<int32_t>(here ? place : mine_.size));
  }
  return places;
}

std::vector<UnitBatch> StepBatches::upload(std::span<const BatchView> micros) {
  std::vector<UnitBatch> batches;
  for (const BatchView& view : micros) {
    const auto micro = static_cast<int64_t>(batches.size());
    require(view.sequence % (share_.parts * std::ssize(runs_of(share_, view.sequence))) == 0,
            "sequences of {} tokens in {} parts", view.sequence, share_.parts);
    UnitBatch batch{.batch = view.batch, .sequence = view.sequence / share_.parts};
    const int64_t tokens = batch.tokens_count();
    require(tokens <= tokens_, "a batch of {} x {} tokens, of {}", batch.batch, batch.sequence,
            tokens_);
    const auto ints = [&](const Buffer& memory, std::span<const int32_t> values) {
      return place(device_, memory, micro, tokens_, values, tokens, DType::i32);
    };
    const auto numbers = [&](const Buffer& memory, std::span<const int32_t> values) {
      const std::vector<int32_t> here = part_of(view, values);
      return ints(memory, share_.whole() ? here : places_of(here));
    };
    batch.tokens = numbers(tokens_memory_, view.tokens);
    batch.targets = numbers(targets_memory_, view.targets);
    if (starts_memory_) batch.starts = ints(starts_memory_, part_of(view, view.starts));
    if (all_starts_memory_)
      batch.all_starts = place(device_, all_starts_memory_, micro, share_.parts * tokens_,
                               view.starts, view.tokens_count(), DType::i32);
    if (places_memory_) {
      std::vector<int32_t> all(device_.dry() ? 0 : static_cast<size_t>(view.tokens_count()));
      for (size_t at = 0; at < all.size(); ++at)
        all[at] = static_cast<int32_t>(static_cast<int64_t>(at) % view.sequence);
      batch.places = ints(places_memory_, part_of(view, all));
    }
    if (!view.samples.empty())
      batch.samples =
          place(device_, samples_memory_, micro, sequences_, view.samples, view.batch, DType::i64);
    batches.push_back(batch);
  }
  return batches;
}

}  // namespace onefold

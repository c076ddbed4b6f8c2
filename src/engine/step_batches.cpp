#include "engine/step_batches.h"

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
      divided_(!model.share.whole()),
      all_(model.spec.vocab_size),
      mine_(vocabulary_of(model.spec, model.share)),
      tokens_(options.micro_batch * options.sequence),
      sequences_(options.micro_batch) {
  const auto take = [&](int64_t elems, DType dtype, const char* what) {
    return ledger.allocate(Kind::data, options.micros * elems * dtype_bytes(dtype), what);
  };
  tokens_memory_ = take(tokens_, DType::i32, "tokens");
  targets_memory_ = take(tokens_, DType::i32, "targets");
  if (options.documents) starts_memory_ = take(tokens_, DType::i32, "documents");
  samples_memory_ = take(sequences_, DType::i64, "samples");
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
    const int64_t tokens = view.tokens_count();
    require(tokens <= tokens_, "a batch of {} x {} tokens, of {}", view.batch, view.sequence,
            tokens_);
    UnitBatch batch{.batch = view.batch, .sequence = view.sequence};
    const auto numbers = [&](const Buffer& memory, std::span<const int32_t> values) {
      std::vector<int32_t> places;
      if (divided_) values = places = places_of(values);
      return place(device_, memory, micro, tokens_, values, tokens, DType::i32);
    };
    batch.tokens = numbers(tokens_memory_, view.tokens);
    batch.targets = numbers(targets_memory_, view.targets);
    if (starts_memory_)
      batch.starts =
          place(device_, starts_memory_, micro, tokens_, view.starts, tokens, DType::i32);
    if (!view.samples.empty())
      batch.samples =
          place(device_, samples_memory_, micro, sequences_, view.samples, view.batch, DType::i64);
    batches.push_back(batch);
  }
  return batches;
}

}  // namespace onefold

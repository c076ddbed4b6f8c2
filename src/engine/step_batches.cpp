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

StepBatches::StepBatches(Device& device, Ledger& ledger, const EngineOptions& options)
    : device_(device),
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

std::vector<UnitBatch> StepBatches::upload(std::span<const BatchView> micros) {
  std::vector<UnitBatch> batches;
  for (const BatchView& view : micros) {
    const auto micro = static_cast<int64_t>(batches.size());
    const int64_t tokens = view.tokens_count();
    require(tokens <= tokens_, "a batch of {} x {} tokens, of {}", view.batch, view.sequence,
            tokens_);
    UnitBatch batch{.batch = view.batch, .sequence = view.sequence};
    batch.tokens = place(device_, tokens_memory_, micro, tokens_, view.tokens, tokens, DType::i32);
    batch.targets =
        place(device_, targets_memory_, micro, tokens_, view.targets, tokens, DType::i32);
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

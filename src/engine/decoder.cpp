#include "engine/decoder.h"

#include <algorithm>

#include "program/passes.h"
#include "tensor/convert.h"

namespace onefold {

Decoder::Decoder(Engine& engine, int64_t batch, int64_t capacity)
    : engine_(engine), batch_(batch), blocks_(engine.evaluation()) {
  require(engine.ranks() == 1, "generation on {} ranks", engine.ranks());
  blocks_.actions.pop_back();            // the head, of which only the last rows are wanted
  blocks_.actions.back().output = true;  // its input
  const ModelSpec& spec = engine.model().spec;
  const int64_t rows = batch * capacity, cols = spec.kv_size();
  const DType type = engine.options().precision.compute;
  memory_ = engine.ledger().allocate(
      Kind::activations, 2 * spec.num_layers * rows * cols * dtype_bytes(type), "key-value cache");
  logits_memory_ = engine.ledger().allocate(Kind::activations,
                                            batch * spec.vocab_size * dtype_bytes(type), "logits");
  logits_.resize(static_cast<size_t>(batch * spec.vocab_size));
  const Tensor all = memory_.as(2 * spec.num_layers * rows, cols, type);
  for (int64_t block = 0; block < spec.num_layers; ++block)
    caches_.push_back({all.row_range(2 * block * rows, rows),
                       all.row_range((2 * block + 1) * rows, rows), capacity});
  if (spec.rope_scaling.switches()) past_.resize(static_cast<size_t>(batch));
}

void Decoder::feed(std::span<const int32_t> tokens) {
  const RopeScaling& scaling = engine_.model().spec.rope_scaling;
  if (!scaling.switches()) return compute(tokens);
  const auto added = static_cast<int64_t>(tokens.size()) / batch_;
  const bool in_long = scaling.is_long(length() + added);
  if (in_long != caches_.front().in_long) {
    for (KvCache& cache : caches_) cache.in_long = in_long;
    compute_past_again();
  }
  compute(tokens);
  for (int64_t b = 0; b < batch_; ++b) {
    const auto mine = tokens.subspan(static_cast<size_t>(b * added), static_cast<size_t>(added));
    past_[static_cast<size_t>(b)].insert(past_[static_cast<size_t>(b)].end(), mine.begin(),
                                         mine.end());
  }
}

// In pieces that the engine has room for.
void Decoder::compute_past_again() {
  const int64_t all = length();
  const int64_t piece =
      std::max<int64_t>(1, engine_.options().micro_batch * engine_.options().sequence / batch_);
  for (KvCache& cache : caches_) cache.length = 0;
  for (int64_t at = 0; at < all; at += piece) {
    const int64_t end = std::min(all, at + piece);
    std::vector<int32_t> tokens;
    for (const std::vector<int32_t>& past : past_)
      tokens.insert(tokens.end(), past.begin() + at, past.begin() + end);
    compute(tokens);
  }
}

void Decoder::compute(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size()) / batch_;
  const BatchView view{.tokens = tokens, .batch = batch_, .sequence = length};
  const std::vector<UnitBatch> batches = engine_.batches().upload({&view, 1});
  Walk walk{.micros = batches, .caches = caches_};
  engine_.executor().run(blocks_, walk, engine_.steps_done());
  const int head = static_cast<int>(engine_.model().units.size()) - 1;
  const Tensor residual = engine_.executor().input_of(walk, head, 0);
  // Every sequence's last row.
  const Tensor last = {residual.row_range(length - 1, 1).data, residual.dtype, batch_,
                       residual.cols, residual.stride * length};
  const Tensor logits = logits_memory_.as(batch_, engine_.model().spec.vocab_size, residual.dtype);
  engine_.executor().call_unit(head, batches[0], [&](UnitCall& call) {
    head_logits(call, *engine_.model().units.back(), last, logits);
  });
  engine_.device().read(logits.flat(), [&](int64_t first, std::span<const std::byte> bytes) {
    const size_t count = bytes.size() / static_cast<size_t>(dtype_bytes(logits.dtype));
    widen(logits.dtype, bytes, std::span(logits_).subspan(static_cast<size_t>(first), count));
  });
  for (KvCache& cache : caches_) cache.length += length;
}

std::span<float> Decoder::logits(int64_t b) {
  const auto vocabulary = static_cast<size_t>(engine_.model().spec.vocab_size);
  return std::span(logits_).subspan(static_cast<size_t>(b) * vocabulary, vocabulary);
}

void Decoder::keep(int64_t length) {
  for (KvCache& cache : caches_) cache.length = std::min(cache.length, length);
  for (std::vector<int32_t>& past : past_)
    past.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(past), length)));
}

void Decoder::take_past(const Decoder& from, std::span<const int64_t> sources) {
  for (size_t b = 0; b < past_.size(); ++b) past_[b] = from.past_[static_cast<size_t>(sources[b])];
  Kernels& kernels = engine_.device().kernels();
  for (size_t block = 0; block < caches_.size(); ++block) {
    const KvCache& src = from.caches_[block];
    KvCache& dst = caches_[block];
    dst.length = src.length;
    dst.in_long = src.in_long;
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t s = sources[static_cast<size_t>(b)] * src.capacity, d = b * dst.capacity;
      kernels.copy(src.keys.row_range(s, src.length), dst.keys.row_range(d, src.length));
      kernels.copy(src.values.row_range(s, src.length), dst.values.row_range(d, src.length));
    }
  }
}

}  // namespace onefold

#include "engine/copies.h"

#include <algorithm>
#include <cmath>

#include "tensor/convert.h"

namespace onefold {
namespace {

int64_t elems_of(std::span<const SlabRun> runs) {
  int64_t elems = 0;
  for (const SlabRun& run : runs) elems += run.end - run.begin;
  return elems;
}

std::span<std::byte> bytes_of(const Message& message, void* data, int64_t first, int64_t elems) {
  const int64_t size = dtype_bytes(message.dtype);
  return {static_cast<std::byte*>(data) + first * size, static_cast<size_t>(elems * size)};
}

std::span<float> floats(float* data, int64_t elems) { return {data, static_cast<size_t>(elems)}; }

// Calls visit(run, place) for the runs of a slab, of which each has a place in scratch.
template <class Visit>
void for_each_place(std::span<const SlabRun> runs, int64_t first, const Visit& visit) {
  for (const SlabRun& run : runs) {
    visit(run, first);
    first += run.end - run.begin;
  }
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

std::vector<SlabRun> copies_of(const SlabLayout& layout, bool divided) {
  std::vector<SlabRun> runs;
  for (const SlabPiece& piece : layout.whole_pieces()) {
    const ParamSpec& param = layout.params()[static_cast<size_t>(piece.param)];
    int64_t from = piece.elems;
    if (param.summed_over.holders || (divided && param.boxes.empty()))
      from = 0;
    else if (param.summed_over.replicas)
      from = param.summed_from;
    if (from < piece.elems) runs.push_back({piece.offset + from, piece.offset + piece.elems});
  }
  return runs;
}

int64_t CopiesCall::elems() const {
  int64_t elems = 0;
  for (const Slab& slab : slabs_) elems += elems_of(slab.runs);
  return elems;
}

int64_t CopiesCall::sent_bytes() const {
  return 2 * shard_elems() * int64_t{sizeof(float)} * (channel_->ranks() - 1);
}

// What a rank keeps of its own, out of its slabs, which then have zeros there, or back.
void CopiesCall::swap_own(bool out) const {
  int64_t first = 0;
  for (const Slab& slab : slabs_) {
    for_each_place(slab.runs, first, [&](const SlabRun& run, int64_t place) {
      int number = 1;
      for (float* const own : {slab.packed.kept, slab.packed.velocity}) {
        float* const there = area(number++) + place;
        if (own == nullptr) continue;
        if (!out) {
          std::copy_n(there, run.end - run.begin, own + run.begin);
          continue;
        }
        std::copy_n(own + run.begin, run.end - run.begin, there);
        std::fill(own + run.begin, own + run.end, 0.0f);
      }
    });
    first += elems_of(slab.runs);
  }
}

// As packets do with all of a slab: where a gradient is not finite, the step will be skipped, and
// what is kept takes nothing of it in. Of copies alone, for all that hold them must find the same.
void CopiesCall::take_gradients(const MomentumCorrection& correction) const {
  if (scratch_ == nullptr || elems() == 0) return;
  float* const sums = area(0);
  std::fill(sums + elems(), area(1), 0.0f);
  swap_own(true);
  int64_t first = 0;
  for (const Slab& slab : slabs_) {
    const PackedMessage& packed = slab.packed;
    const int64_t count = elems_of(slab.runs);
    for_each_place(slab.runs, first, [&](const SlabRun& run, int64_t place) {
      const std::span<std::byte> bytes =
          bytes_of(packed.message, packed.message.whole, run.begin, run.end - run.begin);
      widen(packed.message.dtype, bytes, floats(sums + place, run.end - run.begin));
      std::ranges::fill(bytes, std::byte{0});
    });
    if (packed.kept != nullptr && all_finite(floats(sums + first, count))) {
      const std::span<float> gradient = floats(sums + first, count),
                             kept = floats(area(1) + first, count);
      float* const velocity = packed.velocity ? area(2) + first : nullptr;
      fold_gradient(gradient, {correction.share, correction.momentum}, velocity, kept.data());
      std::ranges::copy(kept, gradient.begin());
      std::ranges::fill(kept, 0.0f);
    }
    first += count;
  }
}

void CopiesCall::sum(std::string_view what) const {
  if (elems() == 0) return;
  const Message message{scratch_, nullptr, shard_elems(), DType::f32};
  channel_->all_reduce(what, {&message, 1});
}

void CopiesCall::put(bool whole) const {
  if (scratch_ == nullptr || elems() == 0) return;
  int64_t first = 0;
  for (const Slab& slab : slabs_) {
    const Message& message = slab.packed.message;
    const int64_t begin = whole ? 0 : channel_->rank() * message.shard_elems,
                  end =
                      whole ? channel_->ranks() * message.shard_elems : begin + message.shard_elems;
    for_each_place(slab.runs, first, [&](const SlabRun& run, int64_t place) {
      const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end);
      if (from >= to) return;
      narrow(message.dtype, floats(area(0) + place + from - run.begin, to - from),
             bytes_of(message, whole ? message.whole : message.shard, from - begin, to - from));
    });
    first += elems_of(slab.runs);
  }
  swap_own(false);
}

// The others add zeros.
void CopiesCall::take_parameters() const {
  if (scratch_ == nullptr || elems() == 0) return;
  std::fill(area(0), area(1), 0.0f);
  int64_t first = 0;
  for (const Slab& slab : slabs_) {
    const Message& message = slab.packed.message;
    const int64_t begin = channel_->rank() * message.shard_elems, end = begin + message.shard_elems;
    for_each_place(slab.runs, first, [&](const SlabRun& run, int64_t place) {
      const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end);
      if (from >= to) return;
      widen(message.dtype, bytes_of(message, message.shard, from - begin, to - from),
            floats(area(0) + place + from - run.begin, to - from));
    });
    first += elems_of(slab.runs);
  }
}

}  // namespace onefold

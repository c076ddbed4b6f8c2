// Memory that ranks exchange, whatever holds it: copies and sums of it, in the order of one lane.
// The host's memory is reached by the CPU at once; a card's by work on the lane's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/packer.h"
#include "tensor/tensor.h"

namespace onefold {

class RankMemory {
 public:
  virtual ~RankMemory() = default;

  // dst may be src.
  virtual void copy(const void* src, void* dst, int64_t bytes) = 0;
  // dst = ((sources[0] + sources[1]) + sources[2]) + ..., element by element in their own type; of
  // 16-bit elements in fp32, rounded once. f32, f64, bf16 and f16; dst may be one of the sources.
  virtual void sum(DType dtype, std::span<const void* const> sources, void* dst, int64_t elems) = 0;
  // Bytes that are best summed and then copied to others at a time.
  virtual int64_t block_bytes() const = 0;

  // The host waits until all of this, and all that the lane was given before, is done.
  virtual void finish() {}
  // A place in the lane's order, and whether it has been reached.
  virtual int64_t mark() { return 0; }
  virtual bool reached(int64_t /*mark*/) { return true; }
  // Makes packets of it in the same order; null: the host does.
  virtual std::unique_ptr<Packer> packer() { return nullptr; }
  // What a library puts its own work on: the lane's stream; null for the host.
  virtual void* stream() { return nullptr; }
};

}  // namespace onefold

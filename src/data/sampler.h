// The order in which sequences are trained on: every one once in each epoch, in an order that is a
// pure function of the seed and the epoch. Nothing is stored but a position, so a run resumes
// exactly, and any rank can ask for any sample.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace onefold {

class Sampler {
 public:
  struct Sample {
    int64_t epoch, index;
  };

  Sampler(int64_t count, uint64_t seed, bool shuffle);

  int64_t count() const { return count_; }
  // The sample at a position in the order of all epochs: epoch 0's, then epoch 1's, ...
  Sample sample(int64_t position) const;

 private:
  // A bijection of [0, count): a Feistel network on the next power of two, stepped until it lands
  // inside.
  uint64_t permute(PhiloxKey key, uint64_t index) const;

  int64_t count_;
  uint64_t seed_;
  bool shuffle_;
  int low_bits_ = 0, high_bits_ = 0;
};

// Which samples a rank trains on. The order of the whole is that of one rank with one batch: it
// does not depend on how a global batch is divided.
//
//   position = origin + step * global_batch + micro * (ranks * micro_batch) + rank * micro_batch +
//   row
struct BatchLayout {
  int64_t micro_batch = 1;   // sequences of one rank in one forward pass
  int64_t accumulation = 1;  // forward passes in one step
  int64_t ranks = 1;         // data-parallel ranks
  // 0, unless a run goes on with another global batch: then (position reached) - (steps done) *
  // global_batch().
  int64_t origin = 0;

  int64_t global_batch() const { return micro_batch * accumulation * ranks; }
  // The position of the first row; the others follow it.
  int64_t position(int64_t step, int64_t micro = 0, int64_t rank = 0) const {
    return origin + step * global_batch() + micro * (ranks * micro_batch) + rank * micro_batch;
  }
};

}  // namespace onefold

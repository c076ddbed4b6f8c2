// The order in which sequences are trained on: every one once in each epoch, or as often as weights
// say, in an order that is a pure function of the seed and the epoch. Nothing is stored but a
// position, so a run resumes exactly, and any rank can ask for any sample.
#pragma once

#include <cstdint>
#include <vector>

#include "base/philox.h"

namespace onefold {

// A bijection of [0, count): a Feistel network on the next power of two, stepped until it lands
// inside.
class Permutation {
 public:
  explicit Permutation(int64_t count);
  uint64_t operator()(PhiloxKey key, uint64_t index) const;

 private:
  uint64_t count_;
  int low_bits_ = 0, high_bits_ = 0;
};

class Sampler {
 public:
  struct Sample {
    int64_t epoch, index;
  };
  // Sequences that are drawn `weight` times in an epoch, on average over epochs: a group of n has
  // round(weight * n) places in each, at least one, and fills them from passes over its own
  // sequences that go on from epoch to epoch.
  struct Group {
    int64_t count = 0;
    double weight = 1;
  };

  Sampler(int64_t count, uint64_t seed, bool shuffle);
  // The groups' sequences are numbered one after the other. Without weights, they are one group.
  Sampler(std::vector<Group> groups, uint64_t seed, bool shuffle);

  int64_t count() const { return count_; }  // samples of an epoch
  // The sample at a position in the order of all epochs: epoch 0's, then epoch 1's, ...
  Sample sample(int64_t position) const;

 private:
  struct Part {
    int64_t first_sequence, sequences;
    int64_t first_place, places;  // in an epoch
    Permutation permutation;
  };

  int64_t count_ = 0;
  uint64_t seed_;
  bool shuffle_;
  std::vector<Part> parts_;  // empty: one group, each sequence once
  Permutation permutation_{1};
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

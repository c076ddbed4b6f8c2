// Batches: the rows that one rank feeds to one forward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sampler.h"
#include "data/sequences.h"

namespace onefold {

struct Batch {
  int64_t batch = 0, sequence = 0;
  std::vector<int32_t> tokens, targets;  // [batch, sequence]; a target of -1 is not trained on
  std::vector<int32_t> starts;           // like tokens, where documents are isolated; else empty
  // [batch]: position in the run's order of samples; -1 for a row of padding.
  std::vector<int64_t> samples;

  Batch() = default;
  Batch(int64_t batch, int64_t sequence);
  int64_t valid_targets() const;
};

// Training batches. Holds no position: any batch may be asked for at any time, from any thread.
class BatchLoader {
 public:
  // `weights`: of each of the mix's sets, as Sampler has them; empty: each sequence once in an
  // epoch.
  BatchLoader(SequenceMix sequences, uint64_t seed, bool shuffle, BatchLayout layout,
              std::vector<double> weights = {});

  const SequenceMix& sequences() const { return sequences_; }
  const Sampler& sampler() const { return sampler_; }
  const BatchLayout& layout() const { return layout_; }
  // The same data from another position in its order on: for resuming with another global batch.
  BatchLoader from_origin(int64_t origin) const {
    BatchLoader moved = *this;
    moved.layout_.origin = origin;
    return moved;
  }

  Batch get(int64_t step, int64_t micro, int64_t rank) const;
  // Passes over the data that are complete before this step, with the fraction of the one under
  // way.
  double epochs(int64_t step) const;

 private:
  SequenceMix sequences_;
  Sampler sampler_;
  BatchLayout layout_;
};

// Validation batches: the first `limit` sequences (0: all) in their own order, the same each time.
// The last batch is filled with rows of padding. Ranks share them out by number.
class ValidationLoader {
 public:
  ValidationLoader(SequenceSet sequences, int64_t batch, int64_t limit = 0);

  int64_t count() const { return (rows_ + batch_ - 1) / batch_; }  // batches
  int64_t rows() const { return rows_; }                           // sequences in them
  int64_t batch() const { return batch_; }                         // sequences of one
  const SequenceSet& sequences() const { return sequences_; }
  Batch get(int64_t index) const;
  // A batch without a sequence, for a rank that has none left.
  Batch padding() const;

 private:
  SequenceSet sequences_;
  int64_t batch_, rows_;
};

}  // namespace onefold

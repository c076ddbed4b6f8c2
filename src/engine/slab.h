// A slab is a unit's parameters (or gradients, or one kind of optimizer state) as one flat,
// aligned, padded buffer; tensors are views in it. Its length is a multiple of the number of ranks
// that share it, so that shards are equal.
#pragma once

#include <span>
#include <vector>

#include "model/unit.h"

namespace onefold {

// Elements [first, first + elems) of a parameter, found at `offset` of a shard (or of the slab).
struct Piece {
  int param = 0;
  int64_t first = 0;
  int64_t elems = 0;
  int64_t offset = 0;
};

class SlabLayout {
 public:
  SlabLayout(std::span<const ParamSpec> params, int ranks);

  int ranks() const { return ranks_; }
  int64_t elems() const { return elems_; }  // with padding
  int64_t shard_elems() const { return elems_ / ranks_; }
  std::span<const ParamSpec> params() const { return params_; }
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)]; }

  // The parameter's view in a slab that starts at `base`.
  Tensor view(void* base, int param) const;

  // What a rank's shard is made of, padding left out, in order; and the same of the whole slab.
  std::vector<Piece> shard_pieces(int rank) const {
    return pieces(rank * shard_elems(), (rank + 1) * shard_elems());
  }
  std::vector<Piece> whole_pieces() const { return pieces(0, elems_); }

 private:
  std::vector<Piece> pieces(int64_t begin, int64_t end) const;

  std::vector<ParamSpec> params_;
  std::vector<int64_t> offsets_;
  int64_t elems_ = 0;
  int ranks_;
};

// Writes initial values of one parameter: elements [first, first + dst.elems()) of it. Each element
// is a function of (seed, unit, parameter, index) alone, so that any slice can be initialised
// anywhere with the same bits.
void initialise(const ParamSpec& param, const ModelSpec& spec, uint64_t seed, int unit, int index,
                int64_t first, Tensor dst);

}  // namespace onefold

// A slab is a unit's parameters (or gradients, or one kind of optimizer state) as one flat,
// aligned, padded buffer; tensors are views in it. Its length is a multiple of the number of ranks
// that may share it, so that shards are equal.
#pragma once

#include <span>
#include <vector>

#include "model/unit.h"
#include "tensor/ledger.h"

namespace onefold {

class SlabLayout {
 public:
  SlabLayout(std::span<const ParamSpec> params, int ranks);

  int64_t elems() const { return elems_; }  // with padding
  int64_t shard_elems() const { return elems_ / ranks_; }
  std::span<const ParamSpec> params() const { return params_; }
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)]; }

  // The parameter's view in a slab that starts at `base`.
  Tensor view(void* base, int param) const;

 private:
  std::vector<ParamSpec> params_;
  std::vector<int64_t> offsets_;
  int64_t elems_ = 0;
  int ranks_;
};

class Slab {
 public:
  Slab(Ledger& ledger, const SlabLayout& layout, Kind kind, const std::string& name);

  Tensor param(int index) const { return layout_->view(buffer_.data(), index); }
  Tensor flat() const { return buffer_.as(1, layout_->elems()); }
  const std::vector<Tensor>& views() const { return views_; }

 private:
  const SlabLayout* layout_;
  Buffer buffer_;
  std::vector<Tensor> views_;
};

// Writes initial values of one parameter: elements [first, first + dst.elems()) of it. Each element
// is a function of (seed, unit, parameter, index) alone, so that any slice can be initialised
// anywhere with the same bits.
void initialise(const ParamSpec& param, const ModelSpec& spec, uint64_t seed, int unit, int index,
                int64_t first, Tensor dst);

}  // namespace onefold

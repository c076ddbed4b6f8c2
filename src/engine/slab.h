// A slab is a unit's parameters (or gradients, or one kind of optimizer state) as one flat,
// aligned, padded buffer; tensors are views in it. Its length is a multiple of the number of ranks
// that share it, so that shards are equal.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/tiers.h"
#include "model/unit.h"
#include "program/unit_traits.h"

namespace onefold {

// Elements [first, first + elems) of a parameter, found at `offset` of a shard (or of the slab).
struct SlabPiece {
  int param = 0;
  int64_t first = 0;
  int64_t elems = 0;
  int64_t offset = 0;
};

// Which of a unit's parameters a slab holds.
enum class SlabOf : uint8_t { all, base, adapters };

class SlabLayout {
 public:
  // Parameters and shards begin at multiples of `align_elems`.
  SlabLayout(std::span<const ParamSpec> params, int ranks,
             int64_t align_elems = Ledger::kAlignment / 4, SlabOf of = SlabOf::all);

  int ranks() const { return ranks_; }
  int64_t elems() const { return elems_; }  // with padding
  int64_t shard_elems() const { return elems_ / ranks_; }
  std::span<const ParamSpec> params() const { return params_; }  // the unit's, held or not
  bool holds(int param) const { return offset(param) >= 0; }
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)]; }

  // The parameter's view in a whole slab.
  Tensor view(Tensor slab, int param) const;

  // What a rank's shard is made of, padding left out, in order; and the same of the whole slab.
  std::vector<SlabPiece> shard_pieces(int rank) const {
    return pieces(rank * shard_elems(), (rank + 1) * shard_elems());
  }
  std::vector<SlabPiece> whole_pieces() const { return pieces(0, elems_); }

  // The elements of a rank's shard with which a row of a parameter, the rest of one, or padding
  // begins; the first is 0.
  std::vector<int64_t> row_starts(int rank) const;

 private:
  std::vector<SlabPiece> pieces(int64_t begin, int64_t end) const;

  std::vector<ParamSpec> params_;
  std::vector<int64_t> offsets_;
  int64_t elems_ = 0;
  int ranks_;
};

// One kind of a unit's state on one rank. It is held where its home says, whole or as this rank's
// shard; and, while it is in use and its home is not enough, there are copies on the device: of
// what another tier holds, and of the whole of what is sharded.
class Slab {
 public:
  // `block`: parameter elements for each element of this state.
  Slab(Ledger& ledger, const SlabLayout& layout, const Home& home, Kind kind, int rank,
       std::string name, int64_t block = 1);

  const Home& home() const { return home_; }
  int64_t block() const { return block_; }

  // Memory for the state itself, for a copy on the device of what another tier holds, and for the
  // whole of a sharded one.
  void hold();
  void drop();
  void bring();
  void stage();
  // Gives back the copies on the device.
  void release();
  bool is_here() const { return home_.offloaded() ? copy_.has_value() : held_.has_value(); }
  bool is_staged() const { return staged_.has_value(); }

  Tensor at_home() const;     // whole, or the shard, on whatever tier
  Tensor home_shard() const;  // this rank's part of it
  Tensor here() const;        // the same as at_home(), on the device
  Tensor whole() const;       // staged, or here where the home is whole
  Tensor shard() const;       // this rank's, on the device
  Transfer transfer() const;  // between home and the device
  // For a gather into the whole, or a sum of it into the shard.
  Message message() const;

 private:
  int64_t elems(bool shard) const {
    return (shard ? layout_.shard_elems() : layout_.elems()) / block_;
  }
  int64_t home_bytes() const;
  Tensor flat(const std::optional<Buffer>& buffer, bool shard) const;
  Tensor shard_of(Tensor held) const;

  Ledger& ledger_;
  const SlabLayout& layout_;
  const Home home_;
  const Kind kind_;
  const int rank_;
  const std::string name_;
  const int64_t block_;
  std::optional<Buffer> held_, copy_, staged_;
};

// Initial values of elements [first, first + dst.size()) of a parameter. Each element is a function
// of (seed, layer, place, index) alone, so that any slice can be initialised anywhere with the same
// bits.
void initialise(const ParamSpec& param, const ModelSpec& spec, uint64_t seed, int64_t first,
                std::span<float> dst);

}  // namespace onefold

// Packets of wire formats on the card, as comm/wire.h has them on the host: wire_dense.cu and
// wire_sparse.cu. packer.cpp binds them to the Packer interface, whose contracts they keep.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/philox.h"
#include "cuda/ops.h"

namespace onefold::cuda {

// What is known of a slab before its packets are made.
struct SlabFlags {
  float factor;         // of its numbers
  uint32_t not_finite;  // whether any of them is not
};

// Elements [begin, end) that travel multiplied. They are arguments of kernels.
inline constexpr int kMostScales = 64;
struct WireScales {
  struct Range {
    int64_t begin, end;
    float scale;
  } at[kMostScales];
  int count;
};

// A shard that is packed. Without `kept` numbers are packed as they are, and flags may be null.
struct GivenShard {
  const void* values;
  Type type;
  int64_t elems;
  float *kept, *velocity;  // may be null
  float share, momentum;
  const SlabFlags* flags;
  WireScales scales;
};

// Sums of squares for one block of a kernel's grid, and of all that has been packed.
struct BlockSquares {
  double given, lost;
};

// flags = whether all is finite, and the factor that limits the norm (0: 1). `partials`: room for
// kBlocks of packing's.
struct SlabPartial {
  double squares;
  uint32_t largest;
};
struct SlabParts {
  const void* values;
  Type type;
  int64_t elems;  // of each part
  int count;
  int64_t stride;
};
void look_at_slab(const SlabParts& parts, float limit, SlabPartial* partials, SlabFlags* flags,
                  cudaStream_t stream);

// Formats that code every number at its place. `block` is a multiple of 8.
enum class Codes : uint8_t { bf16, int8, int4, sign };
struct DensePacket {
  Codes codes;
  int64_t block;
  bool stochastic;
};
void pack_dense(const DensePacket& format, const GivenShard& given, PhiloxKey draw,
                std::byte* packet, BlockSquares* partials, BlockSquares* totals,
                cudaStream_t stream);

// Of what is received: so many packets, a stride apart, in order.
struct Received {
  const std::byte* first;
  int64_t stride;
  int count;
};
struct SummedShard {
  void* values;
  Type type;
  int64_t elems;
  WireScales scales;
};
void sum_dense(const DensePacket& format, const Received& packets, const SummedShard& sum,
               cudaStream_t stream);

// Formats that choose what they send. A packet has `room` numbers, and then as many places as the
// format has of them.
enum class Chosen : uint8_t { largest, sampled, threshold, random, blocks };
struct SparsePacket {
  Chosen chosen;
  int64_t room;    // in numbers; of blocks: in blocks
  int64_t block;   // of blocks
  uint32_t least;  // of threshold: a magnitude
  PhiloxKey own, common;
  bool masks;  // velocity becomes 0 where something is sent
};
// What packing leaves between its kernels.
struct SparseCut;
struct SparseRoom {
  uint32_t* norms;  // of blocks
  uint32_t* bins;
  SparseCut* cut;
  uint2* tiles;
  BlockSquares *partials, *totals;
};
void pack_sparse(const SparsePacket& format, const GivenShard& given, std::byte* packet,
                 const SparseRoom& room, cudaStream_t stream);
// `wide`: room for the elements in fp32; used where they are of another type.
void sum_sparse(const SparsePacket& format, const Received& packets, const SummedShard& sum,
                float* wide, cudaStream_t stream);

}  // namespace onefold::cuda

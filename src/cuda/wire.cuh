// What kernels of wire formats share: a number as it is given, and sums of squares in a fixed
// order.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/wire.h"
#include "kernels/packer_scratch.h"

namespace onefold::cuda {

inline constexpr uint32_t kInfiniteBits = 0x7F800000u;

__device__ inline uint32_t magnitude_of(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFu;
}
__device__ inline bool is_finite(float value) { return magnitude_of(value) < kInfiniteBits; }

// philox_word() of base/philox.h.
__device__ inline uint32_t drawn_word(PhiloxKey key, int64_t number) {
  const auto counter = static_cast<uint64_t>(number / 4);
  const PhiloxWords words =
      philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
  return words[static_cast<size_t>(number % 4)];
}

// Of what lies between the parts that travel multiplied: 0.
__device__ inline float scale_at(const WireScales& scales, int64_t i) {
  for (int r = 0; r < scales.count; ++r)
    if (i >= scales.at[r].begin && i < scales.at[r].end) return scales.at[r].scale;
  return 0.0f;
}

__device__ inline float unscaled(float value, const WireScales& scales, int64_t i) {
  const float scale = scale_at(scales, i);
  return scale == 0 ? value : value / scale;
}

// sum + value * value; the product is exact in double.
__device__ inline double add_square(double sum, float value) {
  const auto wide = static_cast<double>(value);
  return fma(wide, wide, sum);
}

// The numbers of a shard. Where there is error feedback and the slab is finite, take() folds a
// number in and gives what is to be packed; it is called once for each element, and stores what
// momentum has become. Else numbers are what was given.
template <class T>
struct Numbers {
  const T* values;
  float *kept, *velocity;
  float share, momentum;
  bool folds;

  __device__ explicit Numbers(const GivenShard& given)
      : values(static_cast<const T*>(given.values)),
        kept(given.kept),
        velocity(given.velocity),
        share(given.share),
        momentum(given.momentum),
        folds(given.kept != nullptr) {
    if (!folds) return;
    folds = given.flags->not_finite == 0;
    share *= given.flags->factor;
  }

  // What is packed of number i, and what its velocity becomes.
  __device__ float folded(float number, float before, float& speed, const WireScales& scales,
                          int64_t i) const {
    if (scales.count > 0) {
      const float scale = scale_at(scales, i);
      if (scale == 0) return before;
      number *= share * scale;
    } else {
      number *= share;
    }
    if (velocity != nullptr) {
      number = number + momentum * speed;
      speed = is_finite(number) ? number : 0.0f;
    }
    return before + number;
  }
  __device__ float take(const WireScales& scales, int64_t i) const {
    const float number = widen(values[i]);
    if (!folds) return number;
    float speed = velocity != nullptr ? velocity[i] : 0.0f;
    const float value = folded(number, kept[i], speed, scales, i);
    if (velocity != nullptr) velocity[i] = speed;
    return value;
  }
};

// Adds up a block's squares, in the order of its threads, and leaves them at its place.
__device__ inline void leave_squares(double given, double lost, BlockSquares* partials) {
  double sums[2] = {given, lost};
  team_sums<kThreads>(sums);
  if (threadIdx.x == 0) partials[blockIdx.x] = {sums[0], sums[1]};
}

// totals += the squares that `blocks` blocks have left, if they are finite.
void add_squares(const BlockSquares* partials, int64_t blocks, BlockSquares* totals,
                 cudaStream_t stream);

inline int64_t wire_blocks(int64_t work) {
  return work < packing::kBlocks ? work : packing::kBlocks;
}

}  // namespace onefold::cuda

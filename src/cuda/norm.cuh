// What LayerNorm and RMSNorm have in common, forward and backward. RMSNorm is LayerNorm with the
// mean taken as zero. Each piece (a row, or a group of its columns) has a team of threads: a warp,
// or a block where pieces are long.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {

inline constexpr int64_t kLongPiece = 1024;  // elements from which on a block pays
// What a block can hold: each thread has so many elements.
inline constexpr int kHeldElems = 32;

// Pieces of `size` elements: `groups` in each row.
struct Pieces {
  int64_t count, groups, size;
  Pieces(const Matrix& x, int64_t in_row)
      : count(x.rows * in_row), groups(in_row), size(x.cols / in_row) {}
};

template <class T>
__device__ T* piece_of(const View<T>& x, const Pieces& pieces, int64_t index) {
  if (pieces.groups == 1) return x.row(index);
  return x.row(index / pieces.groups) + index % pieces.groups * pieces.size;
}

// Threads of a block: of one team, or of as many warps as make a usual block.
template <int kTeam>
inline constexpr int kTeamBlock = kTeam == kWarp ? kThreads : kTeam;

template <int kTeam>
__device__ int64_t my_piece() {
  return static_cast<int64_t>(blockIdx.x) * (kTeamBlock<kTeam> / kTeam) + threadIdx.x / kTeam;
}

// A thread's part of a piece: of a 16-bit type every kTeam-th pack, of fp32 every kTeam-th element.
// kHeld elements of it are held in registers; 0, for very long pieces: loaded at each visit.
template <class T, int kTeam, int kHeld>
class Part {
 public:
  using Unit = std::conditional_t<sizeof(T) == 2, Pack<T>, Single<T>>;
  static constexpr int kElems = Unit::kElems;
  static constexpr int kUnits = kHeld / kElems;

  __device__ Part(const T* src, int64_t size, bool is_aligned)
      : src_(src), size_(size), aligned_(is_aligned) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (first_of(u) < size_) held_[u] = load_pack<Unit>(src_, first_of(u), size_, aligned_);
    }
  }

  // body(first, values, count) for each unit: `count` of its values are elements of the piece.
  template <class Body>
  __device__ void each(const Body& body) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (first_of(u) < size_) visit(held_[u], first_of(u), body);
    } else {
      for (int64_t u = 0; first_of(u) < size_; ++u)
        visit(load_pack<Unit>(src_, first_of(u), size_, aligned_), first_of(u), body);
    }
  }

 private:
  __device__ int64_t first_of(int64_t unit) const {
    return (unit * kTeam + threadIdx.x % kTeam) * kElems;
  }
  template <class Body>
  __device__ void visit(const Unit& unit, int64_t first, const Body& body) const {
    float values[kElems];
    unit.to(values);
    body(first, values, size_ - first < kElems ? static_cast<int>(size_ - first) : kElems);
  }

  const T* src_;
  int64_t size_;
  bool aligned_;
  Unit held_[kHeld > 0 ? kUnits : 1];
};

struct Stats {
  float mean, rstd;
};

// Two sweeps: one with a sum of squares would lose the variance to cancellation where |mean| is
// much larger than the deviation.
template <int kTeam, class P>
__device__ Stats stats_of(bool centered, const P& part, int64_t size, float eps) {
  constexpr int kElems = P::kElems;
  const float inv_n = 1.0f / static_cast<float>(size);
  float mean = 0;
  if (centered) {
    float sum = 0;
    part.each([&](int64_t, const float(&x)[kElems], int count) {
#pragma unroll
      for (int k = 0; k < kElems; ++k)
        if (k < count) sum += x[k];
    });
    mean = team_sum<kTeam>(sum) * inv_n;
  }
  float squares = 0;
  part.each([&](int64_t, const float(&x)[kElems], int count) {
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const float deviation = x[k] - mean;
      if (k < count) squares = fmaf(deviation, deviation, squares);
    }
  });
  return {mean, 1.0f / sqrtf(team_sum<kTeam>(squares) * inv_n + eps)};
}

// Both directions normalise with this.
__device__ inline float normalized(float x, const Stats& stats) {
  return (x - stats.mean) * stats.rstd;
}

// Whether packs of all pieces lie at multiples of 16 bytes where rows do.
inline bool pieces_aligned(const Pieces& pieces, Type type) {
  return pieces.groups == 1 || pieces.size * type_bytes(type) % 16 == 0;
}

// Calls with the team's size and how many elements a thread of it holds, as constants. A thread of
// a long piece in 16 bits has two packs: with more, too few threads fit a multiprocessor to keep
// its memory busy.
template <class T, class Call>
void with_team(const Pieces& pieces, const Call& call) {
  constexpr std::integral_constant<int, kWarp> warp{};
  constexpr std::integral_constant<int, kThreads> block{};
  constexpr std::integral_constant<int, kHeldElems> all{};
  constexpr std::integral_constant<int, kHeldElems / 2> half{};
  if (pieces.size <= kLongPiece) return call(warp, all);
  if constexpr (sizeof(T) == 2) {
    if (pieces.size <= kHeldElems / 2 * kThreads / 2)
      return call(std::integral_constant<int, kThreads / 2>(), half);
    if (pieces.size <= kHeldElems / 2 * kThreads) return call(block, half);
  }
  if (pieces.size <= kHeldElems * kThreads) return call(block, all);
  call(block, std::integral_constant<int, 0>());
}

template <int kTeam>
dim3 teams_grid(const Pieces& pieces) {
  return grid_of(ceil_div(pieces.count, kTeamBlock<kTeam> / kTeam));
}

}  // namespace onefold::cuda

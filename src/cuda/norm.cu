#include "cuda/norm_teams.cuh"
#include "device/cuda_scratch.h"

namespace onefold::cuda {
namespace {

// x and dst may be the same memory: a team has read its piece before it writes.
template <class T, int kTeam, int kHeld>
__global__ void __launch_bounds__(kTeamBlock<kTeam>)
    forward_kernel(bool centered, bool plus_one, View<T> x, Pieces pieces, const T* weight,
                   const T* bias, float eps, View<T> dst, bool is_aligned) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  using P = Part<T, kTeam, kHeld>;
  constexpr int kElems = P::kElems;
  const P part(piece_of(x, pieces, index), pieces.size, is_aligned);
  T* out = piece_of(dst, pieces, index);
  const Stats stats = stats_of<kTeam>(centered, part, pieces.size, eps);
  part.each([&](int64_t first, const float(&src)[kElems], int) {
    float w[kElems], b[kElems], values[kElems];
    load_pack<typename P::Unit>(weight, first, pieces.size, is_aligned).to(w);
    if (bias) load_pack<typename P::Unit>(bias, first, pieces.size, is_aligned).to(b);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const float xhat = normalized(src[k], stats), times = plus_one ? 1.0f + w[k] : w[k];
      values[k] = bias ? fmaf(xhat, times, b[k]) : xhat * times;
    }
    store_pack<T>(values, out, first, pieces.size, is_aligned);
  });
}

// Pieces that rows_kernel takes: shorter ones leave its threads without work.
constexpr int64_t kLeastOfRows = 512, kMostOfRows = 4096;

// Whole rows of 16 bits: teams of a block take the pieces of its chunk in turn.
template <class T, class Plan>
using RowRing = Ring<T, Plan, 1, 3, true>;

template <class T, class Plan, bool kCentered, bool kBias>
__global__ void __launch_bounds__(Plan::kBlock, 1)
    rows_kernel(View<T> x, Pieces pieces, const T* weight, const T* bias, float eps, View<T> dst,
                int64_t chunk_size) {
  constexpr int kElems = kWide<T>, kTeam = Plan::kTeam, kTeams = Plan::kTeams;
  using P = Packs<T, Plan, true>;
  using R = RowRing<T, Plan>;
  const auto size = static_cast<int>(pieces.size);
  const float inv_n = 1.0f / static_cast<float>(size);
  const int64_t begin = blockIdx.x * chunk_size;
  const int64_t end = begin + chunk_size < pieces.count ? begin + chunk_size : pieces.count;
  int turn = 0, stage = 0;
  int64_t index = begin + threadIdx.x / kTeam;
  P weights(size), biases(size), src(size);
  weights.load(weight);
  if constexpr (kBias) biases.load(bias);
  const auto start = [&](int64_t at, int to) {
    if (at < end) R::start(to, 0, piece_of(x, pieces, at), size);
    R::end_of_piece();
  };
#pragma unroll
  for (int i = 0; i < R::kStages - 1; ++i) start(index + i * kTeams, i);
#pragma unroll 1
  for (; index < end; index += kTeams) {
    start(index + (R::kStages - 1) * kTeams, stage == 0 ? R::kStages - 1 : stage - 1);
    R::wait();
    R::load(stage, 0, src);
    stage = stage == R::kStages - 1 ? 0 : stage + 1;
    Stats stats{0, 0};
    if constexpr (kCentered) {
      float sum[1] = {0};
      src.each([&](int, int, const float(&v)[kElems]) {
#pragma unroll
        for (int k = 0; k < kElems; ++k) sum[0] += v[k];
      });
      sums_of_team<kTeam, kTeams>(sum, turn);
      stats.mean = sum[0] * inv_n;
    }
    float squares[1] = {0};
    src.each([&](int, int, const float(&v)[kElems]) {
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const float deviation = kCentered ? v[k] - stats.mean : v[k];
        squares[0] = fmaf(deviation, deviation, squares[0]);
      }
    });
    sums_of_team<kTeam, kTeams>(squares, turn);
    stats.rstd = 1.0f / sqrtf(squares[0] * inv_n + eps);
    T* out = piece_of(dst, pieces, index);
    src.each([&](int p, int first, const float(&v)[kElems]) {
      float w[kElems], b[kElems], values[kElems];
      weights.packs[p].to(w);
      biases.packs[p].to(b);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const float xhat = (kCentered ? v[k] - stats.mean : v[k]) * stats.rstd;
        values[k] = kBias ? fmaf(xhat, w[k], b[k]) : xhat * w[k];
      }
      store_pack<T>(values, out, first, first + kElems, true);
    });
  }
}

// Whether it could: a card may have too little shared memory.
template <class T, bool kCentered, bool kBias>
bool launch_rows(const Matrix& x, const Pieces& pieces, const Vector& weight, const Vector& bias,
                 float eps, const Matrix& dst, cudaStream_t stream) {
  const auto with = [&](auto plan) {
    using Plan = decltype(plan);
    if (RowRing<T, Plan>::kBytes > card_traits().shared_bytes) return false;
    // As many rows as teams in a block, at least.
    const RowChunks most = norm_chunks(pieces.count);
    const int64_t chunk = most.size < Plan::kTeams ? Plan::kTeams : most.size;
    launch(rows_kernel<T, Plan, kCentered, kBias>, grid_of(ceil_div(pieces.count, chunk)),
           Plan::kBlock, RowRing<T, Plan>::kBytes, stream, view<T>(x), pieces,
           static_cast<const T*>(weight.data), static_cast<const T*>(bias.data), eps, view<T>(dst),
           chunk);
    return true;
  };
  using Short = TeamPlan<kWarp, 16, 3>;
  using Middle = TeamPlan<kWarp, 16, 4>;
  using Long = TeamPlan<96, 8, 2>;
  using Longer = TeamPlan<128, 6, 2>;
  using VeryLong = TeamPlan<256, 3, 2>;
  static_assert(VeryLong::kMost == kMostOfRows);
  if (pieces.size <= Short::kMost) return with(Short());
  if (pieces.size <= Middle::kMost) return with(Middle());
  if (pieces.size <= Long::kMost) return with(Long());
  if (pieces.size <= Longer::kMost) return with(Longer());
  return with(VeryLong());
}

}  // namespace

void norm_forward(bool centered, bool plus_one, Matrix x, int64_t groups, Vector weight,
                  Vector bias, float eps, Matrix dst, cudaStream_t stream) {
  const Pieces pieces(x, groups);
  const bool is_aligned = all_aligned(x, weight, bias, dst) && pieces_aligned(pieces, x.type);
  const bool has_bias = bias.data != nullptr;
  bool launched = false;
  if (x.type != Type::f32 && !plus_one && is_aligned && pieces.size % 8 == 0 &&
      pieces.size > kLeastOfRows && pieces.size <= kMostOfRows && centered == has_bias)
    with_half(x.type, [&](auto element) {
      using T = decltype(element);
      launched = centered ? launch_rows<T, true, true>(x, pieces, weight, bias, eps, dst, stream)
                          : launch_rows<T, false, false>(x, pieces, weight, bias, eps, dst, stream);
    });
  if (launched) return;
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    with_team<T>(pieces, [&](auto team, auto held) {
      constexpr int kTeam = decltype(team)::value;
      launch(forward_kernel<T, kTeam, decltype(held)::value>, teams_grid<kTeam>(pieces),
             kTeamBlock<kTeam>, 0, stream, centered, plus_one, view<T>(x), pieces,
             static_cast<const T*>(weight.data), static_cast<const T*>(bias.data), eps,
             view<T>(dst), is_aligned);
    });
  });
}

}  // namespace onefold::cuda

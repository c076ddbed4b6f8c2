// Gradients of norms. In 16 bits one kernel reads x and dy once: it has a piece's statistics, its
// input gradient and its part of the weights' gradients together. In fp32, and for pieces that no
// team can hold, each of the three is a kernel of its own.
#include "cuda/norm_teams.cuh"
#include "cuda/partials.cuh"

namespace onefold::cuda {
namespace {

template <class T, int kTeam, int kHeld>
__global__ void __launch_bounds__(kTeamBlock<kTeam>)
    stats_kernel(bool centered, View<T> x, Pieces pieces, float eps, Stats* all, bool is_aligned) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  const Part<T, kTeam, kHeld> part(piece_of(x, pieces, index), pieces.size, is_aligned);
  const Stats stats = stats_of<kTeam>(centered, part, pieces.size, eps);
  if (threadIdx.x % kTeam == 0) all[index] = stats;
}

// Partial sums of dy * xhat and of dy over a chunk of pieces, each thread in its own column:
// partials [chunks, 2, size].
template <class T>
__global__ void weights_kernel(View<T> x, View<T> dy, Pieces pieces, const Stats* all,
                               int64_t chunk_size, float* partials) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (col >= pieces.size) return;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < pieces.count ? begin + chunk_size : pieces.count;
  float dweight = 0, dbias = 0;
#pragma unroll 4
  for (int64_t index = begin; index < end; ++index) {
    const float d = widen(piece_of(dy, pieces, index)[col]);
    dweight = fmaf(d, normalized(widen(piece_of(x, pieces, index)[col]), all[index]), dweight);
    dbias += d;
  }
  float* partial = partials + static_cast<int64_t>(blockIdx.y) * 2 * pieces.size + col;
  partial[0] = dweight;
  partial[pieces.size] = dbias;
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight.
struct Means {
  float g, g_xhat;
};

__device__ inline float input_gradient(float dy, float weight, float xhat, const Means& means,
                                       float rstd, float before, bool accumulate) {
  const float g = fmaf(dy, weight, -means.g);
  const float gradient = fmaf(-xhat, means.g_xhat, g);
  return accumulate ? fmaf(rstd, gradient, before) : rstd * gradient;
}

// RMSNorm's mean is a constant, so nothing flows back through it.
__device__ inline Means means_of(const float (&sums)[2], int64_t size, bool centered) {
  const float inv_n = 1.0f / static_cast<float>(size);
  return {centered ? sums[0] * inv_n : 0.0f, sums[1] * inv_n};
}

// dx may be dy: each thread writes only what it alone reads.
template <class T, int kTeam>
__global__ void __launch_bounds__(kTeamBlock<kTeam>)
    input_kernel(bool centered, bool plus_one, View<T> x, Pieces pieces, const T* weight,
                 const Stats* all, View<T> dy, View<T> dx, bool accumulate) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  const Stats stats = all[index];
  const T* src = piece_of(x, pieces, index);
  const T* dout = piece_of(dy, pieces, index);
  T* din = piece_of(dx, pieces, index);
  const auto weight_at = [&](int64_t i) {
    return plus_one ? 1.0f + widen(weight[i]) : widen(weight[i]);
  };
  float sums[2] = {0, 0};  // of g, and of g * xhat
  for (int64_t i = threadIdx.x % kTeam; i < pieces.size; i += kTeam) {
    const float g = widen(dout[i]) * weight_at(i);
    sums[0] += g;
    sums[1] = fmaf(g, normalized(widen(src[i]), stats), sums[1]);
  }
  team_sums<kTeam>(sums);
  const Means means = means_of(sums, pieces.size, centered);
  for (int64_t i = threadIdx.x % kTeam; i < pieces.size; i += kTeam)
    din[i] =
        narrow<T>(input_gradient(widen(dout[i]), weight_at(i), normalized(widen(src[i]), stats),
                                 means, stats.rstd, accumulate ? widen(din[i]) : 0.0f, accumulate));
}

// A thread's sums over pieces, by column.
enum class Sums : uint8_t { dweight, dbias, dbefore };  // each with those before it
template <int kPacks, int kElems, Sums kSums>
struct ColumnSums {
  static constexpr int kCount = static_cast<int>(kSums) + 1;
  float values[kCount][kPacks][kElems] = {};
};

// Floats from one element's sums of a team to the next one's: neither the lanes that have a column
// each nor those that have an element each meet in a bank.
template <class Plan>
constexpr int kPartialRow = Plan::kTeam + 4;

// The partial sums of a block's teams, added in their order: [count, size], columns as in Packs.
// All teams leave theirs in shared memory, where a warp's lanes lie side by side; then each thread
// adds up columns over the teams.
template <class Plan, int kElems, Sums kSums>
__device__ void store_partials(const ColumnSums<Plan::kPacks, kElems, kSums>& sums, int size,
                               float* partial) {
  constexpr int kTeam = Plan::kTeam, kPacks = Plan::kPacks,
                kCount = ColumnSums<kPacks, kElems, kSums>::kCount;
  const int thread = static_cast<int>(threadIdx.x) % kTeam;
  if constexpr (Plan::kTeams == 1) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const int col = (p * kTeam + thread) * kElems + k;
        if (col >= size) continue;
#pragma unroll
        for (int i = 0; i < kCount; ++i) partial[i * size + col] = sums.values[i][p][k];
      }
  } else {
    // [team, count, pack, element of it, thread of the team]
    constexpr int kRow = kPartialRow<Plan>, kOfTeam = kCount * kPacks * kElems * kRow;
    float* own = shared_floats() + static_cast<int>(threadIdx.x) / kTeam * kOfTeam + thread;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int k = 0; k < kElems; ++k)
          own[((i * kPacks + p) * kElems + k) * kRow] = sums.values[i][p][k];
    __syncthreads();
    for (int col = static_cast<int>(threadIdx.x); col < size; col += Plan::kBlock) {
      const int p = col / kElems / kTeam, k = col % kElems;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float* of_teams =
            shared_floats() + ((i * kPacks + p) * kElems + k) * kRow + col / kElems % kTeam;
        float sum = of_teams[0];
#pragma unroll
        for (int team = 1; team < Plan::kTeams; ++team) sum += of_teams[team * kOfTeam];
        partial[i * size + col] = sum;
      }
    }
  }
}

// Of a chunk, however many there are.
constexpr int64_t kFusedSums = 3;

struct Fused {
  bool accumulate;
  Pieces pieces;
  float eps;
  int64_t chunk_size;
  float* partials;  // [chunks, 3, size], of which some may not be wanted; null: none is
};

// x, dy, and what a gradient is added to.
template <class T, class Plan, bool kWhole>
using FusedRing = Ring<T, Plan, 3, 2, kWhole>;

// Teams of a block take the pieces of its chunk in turn, and keep their sums over them. The mean of
// g * xhat follows from that of g times the deviation, which needs no variance: its sum and the
// variance's are taken together.
template <class T, class Plan, bool kWhole, bool kCentered, Sums kSums>
__global__ void __launch_bounds__(Plan::kBlock, 1)
    fused_kernel(Fused args, View<T> x, const T* weight, View<T> dy, View<T> dx) {
  constexpr int kElems = kWide<T>, kTeam = Plan::kTeam, kTeams = Plan::kTeams,
                kPacks = Plan::kPacks;
  using P = Packs<T, Plan, kWhole>;
  using R = FusedRing<T, Plan, kWhole>;
  const auto size = static_cast<int>(args.pieces.size);
  const float inv_n = 1.0f / static_cast<float>(size);
  const int64_t begin = blockIdx.x * args.chunk_size;
  const int64_t end =
      begin + args.chunk_size < args.pieces.count ? begin + args.chunk_size : args.pieces.count;
  ColumnSums<kPacks, kElems, kSums> columns;
  constexpr bool kBias = kSums >= Sums::dbias, kBefore = kSums == Sums::dbefore;
  const bool accumulate = kBefore || args.accumulate;
  int turn = 0, stage = 0;
  int64_t index = begin + threadIdx.x / kTeam;
  P weights(size), src(size), dout(size);
  weights.load(weight);
  const auto start = [&](int64_t at, int to) {
    if (at < end) {
      R::start(to, 0, piece_of(x, args.pieces, at), size);
      R::start(to, 1, piece_of(dy, args.pieces, at), size);
      if (accumulate) R::start(to, 2, piece_of(dx, args.pieces, at), size);
    }
    R::end_of_piece();
  };
#pragma unroll
  for (int i = 0; i < R::kStages - 1; ++i) start(index + i * kTeams, i);
#pragma unroll 1
  for (; index < end; index += kTeams) {
    start(index + (R::kStages - 1) * kTeams, stage == 0 ? R::kStages - 1 : stage - 1);
    R::wait();
    R::load(stage, 0, src);
    R::load(stage, 1, dout);
    T* din = piece_of(dx, args.pieces, index);
    float mean = 0;
    if constexpr (kCentered) {
      float sum[1] = {0};
      src.each([&](int, int, const float(&v)[kElems]) {
#pragma unroll
        for (int k = 0; k < kElems; ++k) sum[0] += v[k];
      });
      sums_of_team<kTeam, kTeams>(sum, turn);
      mean = sum[0] * inv_n;
      src.forget();
    }
    // Of squared deviations, of g times the deviation and, where the mean is not a constant, of g.
    float sums[kCentered ? 3 : 2] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (Plan::first_of(p) >= size) continue;
      float v[kElems], d[kElems], w[kElems];
      src.packs[p].to(v);
      dout.packs[p].to(d);
      weights.packs[p].to(w);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const bool there = kWhole || !kCentered || Plan::first_of(p) + k < size;
        const float deviation = kCentered ? v[k] - mean : v[k], g = d[k] * w[k];
        sums[0] = there ? fmaf(deviation, deviation, sums[0]) : sums[0];
        sums[1] = fmaf(g, deviation, sums[1]);
        if constexpr (kCentered) sums[2] += g;
      }
    }
    sums_of_team<kTeam, kTeams>(sums, turn);
    src.forget();
    dout.forget();
    weights.forget();
    const float rstd = 1.0f / sqrtf(sums[0] * inv_n + args.eps);
    const float mean_g_xhat = sums[1] * rstd * inv_n;
    float mean_g = 0;
    if constexpr (kCentered) mean_g = sums[2] * inv_n;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int first = Plan::first_of(p);
      if (first >= size) continue;
      float v[kElems], d[kElems], w[kElems], held[kElems] = {};
      src.packs[p].to(v);
      dout.packs[p].to(d);
      weights.packs[p].to(w);
      if (accumulate) R::pack(stage, 2, p).to(held);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const float xhat = (kCentered ? v[k] - mean : v[k]) * rstd;
        columns.values[0][p][k] = fmaf(d[k], xhat, columns.values[0][p][k]);
        if constexpr (kBias) columns.values[1][p][k] += d[k];
        if constexpr (kBefore) columns.values[2][p][k] += held[k];
        const float g = kCentered ? fmaf(d[k], w[k], -mean_g) : d[k] * w[k];
        v[k] = fmaf(rstd, fmaf(-xhat, mean_g_xhat, g), held[k]);
      }
      store_pack<T>(v, din, first, kWhole ? first + kElems : size, kWhole);
    }
    stage = stage == R::kStages - 1 ? 0 : stage + 1;
  }
  R::wait_for_all();  // of pieces there are none left; but the partial sums lie where they were
  __syncthreads();
  if (args.partials)
    store_partials<Plan>(columns, size, args.partials + kFusedSums * blockIdx.x * size);
}

// Whether it could: a card may have too little shared memory.
template <class T, class Plan, bool kCentered, Sums kSums>
bool launch_fused(const Fused& fused, int64_t chunks, const NormBackward& args, bool whole,
                  cudaStream_t stream) {
  constexpr int64_t shared = FusedRing<T, Plan, true>::kBytes;
  static_assert(shared >= kFusedSums * Plan::kTeams * Plan::kPacks * 8 * kPartialRow<Plan> *
                              static_cast<int64_t>(sizeof(float)));
  if (shared > card_traits().shared_bytes) return false;
  launch(whole ? fused_kernel<T, Plan, true, kCentered, kSums>
               : fused_kernel<T, Plan, false, kCentered, kSums>,
         grid_of(chunks), Plan::kBlock, shared, stream, fused, view<T>(args.x),
         static_cast<const T*>(args.weight.data), view<T>(args.dy), view<T>(args.dx));
  return true;
}

// As many blocks as norm_chunks() makes chunks.
template <class T, bool kCentered, Sums kSums>
bool launch_planned(const Fused& fused, int64_t chunks, const NormBackward& args, bool whole,
                    cudaStream_t stream) {
  const auto with = [&](auto plan) {
    return launch_fused<T, decltype(plan), kCentered, kSums>(fused, chunks, args, whole, stream);
  };
  // Sums of dbias take registers: with them, fewer warps fit.
  using Short = TeamPlan<kWarp, 12, 3>;
  using Middle = TeamPlan<kWarp, kSums == Sums::dweight ? 12 : 8, 4>;
  using Long = TeamPlan<96, 5, 2>;
  using Longer = TeamPlan<128, 4, 2>;
  using VeryLong = TeamPlan<256, 2, 2>;
  using Longest = TeamPlan<256, 1, 4>;
  static_assert(Longest::kMost == kHeldElems * kThreads);
  const int64_t size = fused.pieces.size;
  if (size <= Short::kMost) return with(Short());
  if (size <= Middle::kMost) return with(Middle());
  if (size <= Long::kMost) return with(Long());
  if (size <= Longer::kMost) return with(Longer());
  if (size <= VeryLong::kMost) return with(VeryLong());
  return with(Longest());
}

// Of rows: with the scratch that a norm's own sums take later.
void sum_before(const NormBackward& args, cudaStream_t stream) {
  column_sum(args.dx, args.dbefore, args.accumulate_weights, args.scratch, stream);
}

// Whether it could. `before`: with dbefore's sums.
bool fused_backward(const NormBackward& args, const Pieces& pieces, bool before, bool is_aligned,
                    cudaStream_t stream) {
  const RowChunks chunks = norm_chunks(pieces.count);
  const bool wanted = args.dweight.data || args.dbias.data;
  const bool whole = is_aligned && pieces.size % 8 == 0;
  const Fused fused{args.accumulate_dx, pieces, args.eps, chunks.size,
                    wanted ? args.scratch : nullptr};
  bool launched = false;
  with_half(args.x.type, [&](auto element) {
    using T = decltype(element);
    // LayerNorm mostly has a bias.
    const auto with = [&](auto centered, auto sums) {
      launched = launch_planned<T, decltype(centered)::value, decltype(sums)::value>(
          fused, chunks.count, args, whole, stream);
    };
    constexpr std::true_type yes{};
    constexpr std::false_type no{};
    if (before)
      with(yes, std::integral_constant<Sums, Sums::dbefore>());
    else if (args.centered)
      with(yes, std::integral_constant<Sums, Sums::dbias>());
    else if (args.dbias.data)
      with(no, std::integral_constant<Sums, Sums::dbias>());
    else
      with(no, std::integral_constant<Sums, Sums::dweight>());
  });
  if (launched && wanted)
    add_partials(args.scratch, chunks.count, kFusedSums * pieces.size, args.accumulate_weights,
                 {{args.dweight, args.dbias, before ? args.dbefore : Vector{}}}, pieces.size,
                 stream);
  return launched;
}

}  // namespace

void norm_backward(const NormBackward& args, cudaStream_t stream) {
  const Pieces pieces(args.x, args.groups);
  const bool is_aligned =
      all_aligned(args.x, args.weight, args.dy, args.dx) && pieces_aligned(pieces, args.x.type);
  const bool fused =
      args.x.type != Type::f32 && !args.plus_one && pieces.size <= kHeldElems * kThreads;
  // Other norms than LayerNorm with its bias hardly come with biases of projections.
  const bool before = fused && args.dbefore.data && args.centered && args.dbias.data;
  if (args.dbefore.data && !before) sum_before(args, stream);
  if (fused && fused_backward(args, pieces, before, is_aligned, stream)) return;
  if (before) sum_before(args, stream);
  auto* stats = reinterpret_cast<Stats*>(args.scratch);
  float* partials = args.scratch + 2 * pieces.count;
  with_type(args.x.type, [&](auto element) {
    using T = decltype(element);
    const View<T> x = view<T>(args.x), dy = view<T>(args.dy);
    with_team<T>(pieces, [&](auto team, auto held) {
      constexpr int kTeam = decltype(team)::value;
      launch(stats_kernel<T, kTeam, decltype(held)::value>, teams_grid<kTeam>(pieces),
             kTeamBlock<kTeam>, 0, stream, args.centered, x, pieces, args.eps, stats, is_aligned);
      // The weights' gradients come before the input's, which may overwrite dy.
      if (args.dweight.data || args.dbias.data) {
        const RowChunks chunks(pieces.count);
        launch(weights_kernel<T>, grid_of(ceil_div(pieces.size, kColumnThreads), chunks.count),
               kColumnThreads, 0, stream, x, dy, pieces, stats, chunks.size, partials);
        add_partials(partials, chunks.count, 2 * pieces.size, args.accumulate_weights,
                     {{args.dweight, args.dbias}}, pieces.size, stream);
      }
      launch(input_kernel<T, kTeam>, teams_grid<kTeam>(pieces), kTeamBlock<kTeam>, 0, stream,
             args.centered, args.plus_one, x, pieces, static_cast<const T*>(args.weight.data),
             stats, dy, view<T>(args.dx), args.accumulate_dx);
    });
  });
}

}  // namespace onefold::cuda

// How norms of 16-bit rows share out their pieces: teams of threads, several of them in a block,
// one block to each multiprocessor. Pieces that come next are on their way to shared memory
// meanwhile.
#pragma once

#include "cuda/norm.cuh"

namespace onefold::cuda {

// Teams of kTeam threads for pieces of up to kMost elements, each thread with kPacks packs of a
// piece, kTeams teams in a block.
template <int team, int teams, int packs>
struct TeamPlan {
  static constexpr int kTeam = team, kTeams = teams, kPacks = packs;
  static constexpr int kMost = team * packs * 8, kBlock = team * teams;

  // Where pack p of the calling thread begins in a piece.
  __device__ static int first_of(int p) {
    return (p * kTeam + static_cast<int>(threadIdx.x) % kTeam) * 8;
  }
};

// A thread's packs of a piece. kWhole: pieces begin at multiples of 16 bytes and end with one.
template <class T, class Plan, bool kWhole>
struct Packs {
  static constexpr int kElems = kWide<T>;
  Pack<T> packs[Plan::kPacks];
  int size;

  __device__ explicit Packs(int elems) : packs{}, size(elems) {}
  __device__ static Pack<T> pack_at(const T* src, int p, int size) {
    const int first = Plan::first_of(p);
    return load_pack<Pack<T>>(src, first, kWhole ? first + kElems : size, kWhole);
  }
  __device__ void load(const T* src) {
#pragma unroll
    for (int p = 0; p < Plan::kPacks; ++p)
      if (Plan::first_of(p) < size) packs[p] = pack_at(src, p, size);
  }
  // What was widened is not kept: registers are for the sums over rows, and widening again is
  // cheap.
  __device__ void forget() {
#pragma unroll
    for (int p = 0; p < Plan::kPacks; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(packs[p].words[i]));
  }
  // Zeros where there is no element.
  template <class Body>
  __device__ void each(const Body& body) const {
#pragma unroll
    for (int p = 0; p < Plan::kPacks; ++p) {
      if (Plan::first_of(p) >= size) continue;
      float values[kElems];
      packs[p].to(values);
      body(p, Plan::first_of(p), values);
    }
  }
};

// Pieces of kTensors tensors in shared memory: the one that is worked on, and the kAhead next ones
// on their way. A thread copies what it alone reads, and so waits for no other.
template <class T, class Plan, int kTensors, int kAhead, bool kWhole>
struct Ring {
  static constexpr int kStages = kAhead + 1;
  static constexpr int64_t kBytes = int64_t{16} * kStages * kTensors * Plan::kPacks * Plan::kBlock;

  __device__ static uint4* slot(int stage, int tensor, int p) {
    return reinterpret_cast<uint4*>(shared_floats()) +
           ((stage * kTensors + tensor) * Plan::kPacks + p) * Plan::kBlock + threadIdx.x;
  }
  __device__ static void start(int stage, int tensor, const T* src, int size) {
#pragma unroll
    for (int p = 0; p < Plan::kPacks; ++p) {
      const int first = Plan::first_of(p);
      if (first >= size) continue;
      if constexpr (kWhole) {
        const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(slot(stage, tensor, p)));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(src + first)
                     : "memory");
      } else {
        const Pack<T> pack = Packs<T, Plan, kWhole>::pack_at(src, p, size);
        *slot(stage, tensor, p) =
            make_uint4(pack.words[0], pack.words[1], pack.words[2], pack.words[3]);
      }
    }
  }
  // Of the copies since the last call.
  __device__ static void end_of_piece() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // All but the last kAhead pieces have arrived.
  __device__ static void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
  }
  __device__ static void wait_for_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
  __device__ static Pack<T> pack(int stage, int tensor, int p) {
    const uint4 bits = *slot(stage, tensor, p);
    return {{bits.x, bits.y, bits.z, bits.w}};
  }
  __device__ static void load(int stage, int tensor, Packs<T, Plan, kWhole>& to) {
#pragma unroll
    for (int p = 0; p < Plan::kPacks; ++p)
      if (Plan::first_of(p) < to.size) to.packs[p] = pack(stage, tensor, p);
  }
};

// Sums over a team, as team_sums(). `turn` counts the calls: they use two places by turns, so that
// a team waits once in each.
template <int kTeam, int kTeams>
struct TeamPlaces {
  static constexpr int kMostSums = 3;
  float sums[kTeams][2][kMostSums][kTeam / kWarp];
};
template <int kTeam, int kTeams>
__device__ TeamPlaces<kTeam, kTeams>& team_places() {
  __shared__ TeamPlaces<kTeam, kTeams> places;
  return places;
}
// Teams of a block wait on barriers of their own; the first one is the whole block's.
template <int kTeam>
__device__ void team_barrier(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kTeam) : "memory");
}
template <int kTeam, int kTeams, int kCount>
__device__ void sums_of_team(float (&values)[kCount], int& turn) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
  if constexpr (kTeam > kWarp) {
    constexpr int kWarps = kTeam / kWarp;
    static_assert(kCount <= TeamPlaces<kTeam, kTeams>::kMostSums);
    const int team = static_cast<int>(threadIdx.x) / kTeam;
    auto& partial = team_places<kTeam, kTeams>().sums[team][turn++ & 1];
    if (threadIdx.x % kWarp == 0)
#pragma unroll
      for (int i = 0; i < kCount; ++i) partial[i][threadIdx.x % kTeam / kWarp] = values[i];
    team_barrier<kTeam>(team);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = partial[i][0];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) values[i] += partial[i][warp];
    }
  }
}

}  // namespace onefold::cuda

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/trial_kernels.h"

namespace onefold::cuda {
namespace {

constexpr int64_t kBlocks = 1024;

// Mixes all bits of x into all bits of the result.
__device__ uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

template <class T>
__global__ void random_kernel(T* dst, int64_t elems, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elems;
       i += kBlocks * kThreads) {
    const auto word = static_cast<uint32_t>(
        mixed((static_cast<uint64_t>(seed) << 40) + static_cast<uint64_t>(i)));
    dst[i] = narrow<T>(static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31f);
  }
}

__global__ void digest_kernel(const uint32_t* words, int64_t count, unsigned long long* digest) {
  unsigned long long sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += kBlocks * kThreads)
    sum += mixed((static_cast<uint64_t>(i) << 32) ^ words[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) atomicAdd(digest, sum);
}

}  // namespace

void fill_random(Vector dst, int64_t elems, uint32_t seed, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    launch(random_kernel<T>, grid_of(kBlocks), kThreads, 0, stream, static_cast<T*>(dst.data),
           elems, seed);
  });
}

void add_digest(const uint32_t* words, int64_t count, unsigned long long* digest,
                cudaStream_t stream) {
  launch(digest_kernel, grid_of(kBlocks), kThreads, 0, stream, words, count, digest);
}

}  // namespace onefold::cuda

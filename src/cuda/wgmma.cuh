// Hopper's tensor cores: products of tiles in shared memory by a group of four warps (wgmma),
// copies into it by the card's own unit (TMA), and the barriers between them. PTX that has no name
// in C++.
#pragma once

#include <cuda.h>

#include "cuda/pack.cuh"

namespace onefold::cuda {

// wgmma is there in code for sm_90a alone. What is compiled for other cards must not be launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || \
    (defined(__CUDA_ARCH_SPECIFIC__) && __CUDA_ARCH_SPECIFIC__ == 900)
#define ONEFOLD_HAS_WGMMA 1
#endif

__device__ inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// A barrier whose phase ends when as many have arrived as it was made for, and all bytes that it
// was told of have come. Its phases have the parities 0, 1, 0, ...
struct Barrier {
  uint64_t state;

  __device__ void make(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ void arrive_and_expect(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  __device__ void wait(uint32_t parity) {
    uint32_t done = 0;
    while (!done)
      asm volatile(
          "{ .reg .pred p;\n"
          "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "  selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
  }
};

// Writes of threads to shared memory are seen by what reads or writes it next, wgmma and copies.
__device__ inline void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A box of a tensor of three dimensions, into shared memory; what lies outside is 0.
__device__ inline void copy_box(const CUtensorMap& map, int x, int y, int z, void* dst,
                                Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(dst)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
      : "memory");
#endif
}

// Where wgmma finds an operand whose rows of 128 bytes lie below each other, swizzled as copies
// write them: `step_bytes` apart what is beyond 64 elements of a row, if rows are terms.
__device__ inline uint64_t operand_at(uint32_t address, uint32_t step_bytes) {
  constexpr uint64_t kSwizzled128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 8 * 128;
  return kSwizzled128 | (kEightRows >> 4) << 32 | static_cast<uint64_t>(step_bytes >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}

__device__ inline void begin_products() {
#ifdef ONEFOLD_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void end_products() {
#ifdef ONEFOLD_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until all but the last `kLeft` batches are done.
template <int kLeft>
__device__ void wait_for_products() {
#ifdef ONEFOLD_HAS_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
}

#define ONEFOLD_WGMMA(TYPES)                                                                       \
  asm volatile(                                                                                    \
      "{ .reg .pred p;\n"                                                                          \
      "setp.ne.b32 p, %130, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPES                                         \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, %128, %129, p, 1, 1, %131, %132; }"                                                      \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),  \
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]),                \
        "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]),            \
        "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]),            \
        "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),            \
        "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]),            \
        "+f"(sums[31]), "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]),            \
        "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]),            \
        "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]),            \
        "+f"(sums[46]), "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]),            \
        "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]),            \
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]),            \
        "+f"(sums[61]), "+f"(sums[62]), "+f"(sums[63]), "+f"(sums[64]), "+f"(sums[65]),            \
        "+f"(sums[66]), "+f"(sums[67]), "+f"(sums[68]), "+f"(sums[69]), "+f"(sums[70]),            \
        "+f"(sums[71]), "+f"(sums[72]), "+f"(sums[73]), "+f"(sums[74]), "+f"(sums[75]),            \
        "+f"(sums[76]), "+f"(sums[77]), "+f"(sums[78]), "+f"(sums[79]), "+f"(sums[80]),            \
        "+f"(sums[81]), "+f"(sums[82]), "+f"(sums[83]), "+f"(sums[84]), "+f"(sums[85]),            \
        "+f"(sums[86]), "+f"(sums[87]), "+f"(sums[88]), "+f"(sums[89]), "+f"(sums[90]),            \
        "+f"(sums[91]), "+f"(sums[92]), "+f"(sums[93]), "+f"(sums[94]), "+f"(sums[95]),            \
        "+f"(sums[96]), "+f"(sums[97]), "+f"(sums[98]), "+f"(sums[99]), "+f"(sums[100]),           \
        "+f"(sums[101]), "+f"(sums[102]), "+f"(sums[103]), "+f"(sums[104]), "+f"(sums[105]),       \
        "+f"(sums[106]), "+f"(sums[107]), "+f"(sums[108]), "+f"(sums[109]), "+f"(sums[110]),       \
        "+f"(sums[111]), "+f"(sums[112]), "+f"(sums[113]), "+f"(sums[114]), "+f"(sums[115]),       \
        "+f"(sums[116]), "+f"(sums[117]), "+f"(sums[118]), "+f"(sums[119]), "+f"(sums[120]),       \
        "+f"(sums[121]), "+f"(sums[122]), "+f"(sums[123]), "+f"(sums[124]), "+f"(sums[125]),       \
        "+f"(sums[126]), "+f"(sums[127])                                                           \
      : "l"(a), "l"(b), "r"(added ? 1 : 0), "n"(kATerms ? 1 : 0), "n"(kBTerms ? 1 : 0))

// sums [64, 256] of the group's threads (+)= a · b, over 16 terms. kATerms, kBTerms: the operand's
// rows in shared memory are terms.
template <class T, bool kATerms, bool kBTerms>
__device__ void multiply(float (&sums)[128], uint64_t a, uint64_t b, bool added) {
#ifdef ONEFOLD_HAS_WGMMA
  if constexpr (std::is_same_v<T, bf16>)
    ONEFOLD_WGMMA("bf16.bf16");
  else
    ONEFOLD_WGMMA("f16.f16");
#endif
}

#undef ONEFOLD_WGMMA

}  // namespace onefold::cuda

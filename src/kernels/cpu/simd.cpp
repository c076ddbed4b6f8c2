// What this processor is: the SIMD target that dispatch chooses, asked of dispatch itself, and what
// follows from it.
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

const char* Name() { return hwy::TargetName(HWY_TARGET); }

// AVX-512 and what came after it: better targets have smaller numbers.
#if HWY_ARCH_X86
bool IsAvx512() { return HWY_TARGET <= HWY_AVX3; }
#else
bool IsAvx512() { return false; }
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold {
namespace cpu {
namespace {
HWY_EXPORT(Name);
HWY_EXPORT(IsAvx512);
}  // namespace
}  // namespace cpu

const char* cpu_simd_name() {
  using namespace cpu;
  return HWY_DYNAMIC_DISPATCH(Name)();
}

// It takes adders beside the multipliers, which AMD's processors have and Intel's have not, and the
// 32 registers of AVX-512.
// Asked for each product, and so not of hwy::SupportedTargets(), which asks the processor each
// time: in a virtual machine that took 20 times as long as all the rest of a plan.
bool cpu_gains_by_pairing() {
#if defined(__x86_64__)
  using namespace cpu;
  return __builtin_cpu_is("amd") && HWY_DYNAMIC_DISPATCH(IsAvx512)();
#else
  return false;
#endif
}

}  // namespace onefold
#endif

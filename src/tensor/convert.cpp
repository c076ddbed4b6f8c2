#include "tensor/convert.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

namespace onefold {
namespace {

void require_values(DType dtype, size_t bytes, size_t count) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "values of {} as fp32", dtype_name(dtype));
  require(bytes == count * static_cast<size_t>(dtype_bytes(dtype)), "{} bytes of {} for {} values",
          bytes, dtype_name(dtype), count);
}

// A loop for each type, which the compiler makes vectors of.
template <auto kWiden>
void widen_all(std::span<const std::byte> src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, src.data() + i * sizeof(bits), sizeof(bits));
    dst[i] = kWiden(bits);
  }
}

// How many finite values became infinite.
template <auto kNarrow>
int64_t narrow_all(std::span<const float> src, std::span<std::byte> dst, uint16_t infinity) {
  int64_t overflows = 0;
  for (size_t i = 0; i < src.size(); ++i) {
    const uint16_t bits = kNarrow(src[i]);
    overflows += (bits & 0x7FFF) == infinity && std::isfinite(src[i]);
    std::memcpy(dst.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return overflows;
}

}  // namespace

void widen(DType dtype, std::span<const std::byte> src, std::span<float> dst) {
  require_values(dtype, src.size(), dst.size());
  if (dst.empty()) return;
  if (dtype == DType::f32)
    std::memcpy(dst.data(), src.data(), src.size());
  else if (dtype == DType::bf16)
    widen_all<bf16_to_f32>(src, dst);
  else
    widen_all<f16_to_f32>(src, dst);
}

int64_t narrow(DType dtype, std::span<const float> src, std::span<std::byte> dst) {
  require_values(dtype, dst.size(), src.size());
  if (src.empty()) return 0;
  if (dtype == DType::bf16) return narrow_all<f32_to_bf16>(src, dst, 0x7F80);
  if (dtype == DType::f16) return narrow_all<f32_to_f16>(src, dst, 0x7C00);
  std::memcpy(dst.data(), src.data(), dst.size());
  return 0;
}

}  // namespace onefold

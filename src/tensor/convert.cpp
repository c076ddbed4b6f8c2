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

}  // namespace

void widen(DType dtype, std::span<const std::byte> src, std::span<float> dst) {
  require_values(dtype, src.size(), dst.size());
  if (dst.empty()) return;
  if (dtype == DType::f32) {
    std::memcpy(dst.data(), src.data(), src.size());
    return;
  }
  const auto value = dtype == DType::bf16 ? bf16_to_f32 : f16_to_f32;
  for (size_t i = 0; i < dst.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, src.data() + i * sizeof(bits), sizeof(bits));
    dst[i] = value(bits);
  }
}

int64_t narrow(DType dtype, std::span<const float> src, std::span<std::byte> dst) {
  require_values(dtype, dst.size(), src.size());
  if (src.empty()) return 0;
  if (dtype == DType::f32) {
    std::memcpy(dst.data(), src.data(), dst.size());
    return 0;
  }
  const bool brain = dtype == DType::bf16;
  const auto bits_of = brain ? f32_to_bf16 : f32_to_f16;
  const uint16_t infinity = brain ? 0x7F80 : 0x7C00;
  int64_t overflows = 0;
  for (size_t i = 0; i < src.size(); ++i) {
    const uint16_t bits = bits_of(src[i]);
    overflows += (bits & 0x7FFF) == infinity && std::isfinite(src[i]);
    std::memcpy(dst.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return overflows;
}

}  // namespace onefold

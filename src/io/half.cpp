#include "io/half.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace onefold {
namespace {

template <float (*widen)(uint16_t)>
void widen_all(std::span<const std::byte> src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, src.data() + i * sizeof(bits), sizeof(bits));
    dst[i] = widen(bits);
  }
}

template <uint16_t (*narrow)(float), uint16_t infinity>
int64_t narrow_all(std::span<const float> src, std::span<std::byte> dst) {
  int64_t overflows = 0;
  for (size_t i = 0; i < src.size(); ++i) {
    const uint16_t bits = narrow(src[i]);
    overflows += (bits & 0x7FFF) == infinity && std::isfinite(src[i]);
    std::memcpy(dst.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return overflows;
}

template <typename T, typename Widen>
void widen_to_f64(std::span<const std::byte> src, std::span<double> dst, Widen widen) {
  require(src.size() == dst.size() * sizeof(T), "{} bytes for {} values", src.size(), dst.size());
  for (size_t i = 0; i < dst.size(); ++i) {
    T value;
    std::memcpy(&value, src.data() + i * sizeof(T), sizeof(T));
    dst[i] = static_cast<double>(widen(value));
  }
}

}  // namespace

bool is_model_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void to_f32(const std::string& dtype, std::span<const std::byte> src, std::span<float> dst) {
  require(is_model_dtype(dtype) && src.size() == dst.size() * (dtype == "F32" ? 4 : 2),
          "{} bytes of {} for {} values", src.size(), dtype, dst.size());
  if (dst.empty()) return;
  if (dtype == "F32")
    std::memcpy(dst.data(), src.data(), src.size());
  else if (dtype == "F16")
    widen_all<f16_to_f32>(src, dst);
  else
    widen_all<bf16_to_f32>(src, dst);
}

void to_f64(const std::string& dtype, std::span<const std::byte> src, std::span<double> dst) {
  const auto identity = [](auto value) { return value; };
  if (dtype == "F64") return widen_to_f64<double>(src, dst, identity);
  if (dtype == "F32") return widen_to_f64<float>(src, dst, identity);
  if (dtype == "F16")
    return widen_to_f64<uint16_t>(src, dst, [](uint16_t bits) { return f16_to_f32(bits); });
  if (dtype == "BF16")
    return widen_to_f64<uint16_t>(src, dst, [](uint16_t bits) { return bf16_to_f32(bits); });
  if (dtype == "I64") return widen_to_f64<int64_t>(src, dst, identity);
  if (dtype == "I32") return widen_to_f64<int32_t>(src, dst, identity);
  if (dtype == "I16") return widen_to_f64<int16_t>(src, dst, identity);
  if (dtype == "I8") return widen_to_f64<int8_t>(src, dst, identity);
  if (dtype == "U64") return widen_to_f64<uint64_t>(src, dst, identity);
  if (dtype == "U32") return widen_to_f64<uint32_t>(src, dst, identity);
  if (dtype == "U16") return widen_to_f64<uint16_t>(src, dst, identity);
  if (dtype == "U8") return widen_to_f64<uint8_t>(src, dst, identity);
  if (dtype == "BOOL") return widen_to_f64<uint8_t>(src, dst, [](uint8_t v) { return v != 0; });
  internal_error("no conversion from {}", dtype);
}

int64_t from_f32(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst) {
  require(is_model_dtype(dtype) && dst.size() == src.size() * (dtype == "F32" ? 4 : 2),
          "{} bytes of {} for {} values", dst.size(), dtype, src.size());
  if (dtype == "F16") return narrow_all<f32_to_f16, 0x7C00>(src, dst);
  if (dtype == "BF16") return narrow_all<f32_to_bf16, 0x7F80>(src, dst);
  if (!src.empty()) std::memcpy(dst.data(), src.data(), dst.size());
  return 0;
}

}  // namespace onefold

#include "io/half.h"

#include <cstring>

#include "base/error.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

DType dtype_named(const std::string& dtype) {
  require(is_model_dtype(dtype), "no conversion from {}", dtype);
  if (dtype == "F32") return DType::f32;
  return dtype == "F16" ? DType::f16 : DType::bf16;
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
  widen(dtype_named(dtype), src, dst);
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
  return narrow(dtype_named(dtype), src, dst);
}

}  // namespace onefold

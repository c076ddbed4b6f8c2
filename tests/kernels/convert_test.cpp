// Vector conversions have the bits of base/half.h on every SIMD target.
#include "kernels/cpu/convert.h"

#include <bit>
#include <cmath>

#include "base/half.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

struct Type {
  DType dtype;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};
const Type kTypes[] = {{DType::bf16, bf16_to_f32, f32_to_bf16},
                       {DType::f16, f16_to_f32, f32_to_f16}};

// Columns that leave every number of lanes to the last vector of a row.
constexpr int64_t kCols = 251;

// A matrix over all of `values`, the last row filled up with zeros.
template <class T>
Tensor rows_of(std::vector<T>& values, DType dtype) {
  while (values.size() % kCols != 0) values.push_back(T{});
  return matrix(values.data(), static_cast<int64_t>(values.size()) / kCols, kCols, dtype);
}

TEST(HalfRows, WidenExactly) {
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    std::vector<uint16_t> bits;
    for (uint32_t i = 0; i < 0x10000; ++i) bits.push_back(static_cast<uint16_t>(i));
    const Tensor src = rows_of(bits, type.dtype);
    for_each_target([&] {
      std::vector<float> wide(bits.size());
      cpu::widen_rows(src, wide.data(), kCols);
      for (size_t i = 0; i < bits.size(); ++i) {
        const float expected = type.widen(bits[i]);
        if (std::isnan(expected))
          ASSERT_TRUE(std::isnan(wide[i])) << bits[i];
        else
          ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << bits[i];
      }
    });
  }
}

// Every number of the type, the middle to its neighbour, and what lies on both sides of that; and
// numbers that are special in f32.
std::vector<float> hard_to_round(const Type& type) {
  std::vector<float> values = {
      std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
      std::numeric_limits<float>::max(),        std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(),  std::bit_cast<float>(0x7F800001u),
      std::bit_cast<float>(0x7FFFFFFFu)};
  for (uint32_t i = 0; i < 0x7FFF; ++i) {
    const float low = type.widen(static_cast<uint16_t>(i)),
                high = type.widen(static_cast<uint16_t>(i + 1));
    if (!std::isfinite(high)) continue;
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    values.insert(values.end(),
                  {low, std::nextafter(middle, low), middle, std::nextafter(middle, high)});
  }
  for (size_t i = 0, count = values.size(); i < count; ++i) values.push_back(-values[i]);
  return values;
}

TEST(HalfRows, NarrowToTheNearestEven) {
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    std::vector<float> values = hard_to_round(type);
    const Tensor src = rows_of(values, DType::f32);
    for_each_target([&] {
      std::vector<uint16_t> bits(values.size());
      cpu::narrow_rows(src.f32(), kCols, matrix(bits.data(), src.rows, kCols, type.dtype));
      for (size_t i = 0; i < bits.size(); ++i) {
        if (std::isnan(values[i]))
          ASSERT_TRUE(std::isnan(type.widen(bits[i]))) << i;
        else
          ASSERT_EQ(bits[i], type.narrow(values[i])) << values[i];
      }
    });
  }
}

}  // namespace
}  // namespace onefold::test

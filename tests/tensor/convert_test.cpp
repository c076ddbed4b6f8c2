#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace onefold {
namespace {

TEST(Convert, ValuesGoToATypeAndBack) {
  const std::vector<float> values = {0, -0.0f, 1, -1.5f, 65504, 1e-3f, INFINITY, 3.14159265f};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
    narrow(dtype, values, bytes);
    std::vector<float> back(values.size());
    widen(dtype, bytes, back);
    const float unit = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-8f : 0x1p-11f;
    for (size_t i = 0; i < values.size(); ++i)
      if (std::isinf(values[i]))
        EXPECT_EQ(back[i], values[i]);
      else
        EXPECT_LE(std::abs(back[i] - values[i]),
                  unit * std::abs(values[i]) + (unit > 0 ? 0x1p-25f : 0))
            << i;
    EXPECT_TRUE(std::signbit(back[1]));
  }
}

TEST(Convert, RefusesOtherTypesAndSizes) {
  std::vector<std::byte> bytes(8);
  std::vector<float> values(2);
  EXPECT_THROW(widen(DType::i32, bytes, values), InternalError);
  EXPECT_THROW(widen(DType::bf16, bytes, values), InternalError);
  EXPECT_THROW(narrow(DType::f64, values, bytes), InternalError);
}

}  // namespace
}  // namespace onefold

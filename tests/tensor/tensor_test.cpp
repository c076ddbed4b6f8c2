#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <string>

namespace onefold {
namespace {

constexpr DType kAll[] = {DType::f32,  DType::i32, DType::f64, DType::i64,
                          DType::bf16, DType::f16, DType::u8};

TEST(DTypes, HaveTheBytesTheirNamesSay) {
  for (const DType dtype : kAll) {
    const std::string name = dtype_name(dtype);
    const int bits = std::stoi(name.substr(name.find_first_of("0123456789")));
    EXPECT_EQ(dtype_bytes(dtype) * 8, bits) << name;
  }
}

TEST(DTypes, OnlyTheAccessorOfATypeGivesItsElements) {
  alignas(8) char memory[64];
  for (const DType dtype : kAll) {
    const Tensor tensor = matrix(memory, 2, 3, dtype);
    const auto gives = [&](DType expected, auto accessor) {
      if (dtype == expected)
        EXPECT_EQ(static_cast<void*>(accessor()), memory) << dtype_name(dtype);
      else
        EXPECT_THROW(accessor(), InternalError) << dtype_name(dtype);
    };
    gives(DType::f32, [&] { return tensor.f32(); });
    gives(DType::i32, [&] { return tensor.i32(); });
    gives(DType::f64, [&] { return tensor.f64(); });
    gives(DType::i64, [&] { return tensor.i64(); });
    gives(DType::u8, [&] { return tensor.u8(); });
    gives(DType::bf16, [&] { return tensor.as<Bf16>(); });
    gives(DType::f16, [&] { return tensor.as<F16>(); });
  }
}

TEST(Tensors, RangesAreCutByTheElementsOfTheType) {
  alignas(8) char memory[64];
  for (const DType dtype : kAll) {
    const Tensor tensor = matrix(memory, 2, 3, dtype);
    EXPECT_EQ(tensor.row_range(1, 1).data, memory + 3 * dtype_bytes(dtype)) << dtype_name(dtype);
    EXPECT_EQ(tensor.col_range(2, 1).data, memory + 2 * dtype_bytes(dtype)) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace onefold

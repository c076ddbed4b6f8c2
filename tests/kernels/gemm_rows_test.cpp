// A product that is computed in runs of rows has the bits of the whole, whatever the data.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernel_cases/host_tensor.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

struct Shape {
  int64_t rows, cols, terms;
  bool b_transposed;
};

// Sizes of elements differ by many orders of magnitude, some are zero, and a few rows hold what is
// not finite: bits differ if anything about a sum does.
std::vector<float> hostile(int64_t rows, int64_t cols, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < values.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 8388608.0f - 1;
    const int scale = static_cast<int>(state >> 3 & 31) - 16;
    values[i] = state % 17 == 0 ? 0 : std::ldexp(unit, scale);
    if (state % 211 == 0) values[i] = 3e4f * unit;
  }
  const auto width = static_cast<size_t>(cols);
  if (values.size() > 9 * width) {
    values[3 * width] = std::numeric_limits<float>::infinity();
    values[8 * width + 1] = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}

class GemmRows : public testing::Test {
 protected:
  Tensor tensor(int64_t rows, int64_t cols, DType type, uint32_t seed) {
    blocks_.emplace_back(static_cast<size_t>(rows * cols) * 4 + 64);
    void* data = blocks_.back().data();
    std::size_t space = blocks_.back().size();
    const Tensor made = matrix(std::align(64, space - 64, data, space), rows, cols, type);
    const std::vector<float> values = hostile(rows, cols, seed);
    cases::HostTensor rounded(rows, cols, 0, type);
    for (int64_t i = 0; i < rows * cols; ++i)
      rounded.set(i / cols, i % cols, values[static_cast<size_t>(i)]);
    std::memcpy(made.data, rounded.bytes().data(), rounded.bytes().size());
    return made;
  }
  void multiply(Kernels& kernels, Gemm product) {
    std::vector<std::byte> room(static_cast<size_t>(kernels.gemm_scratch_bytes(product)) + 64);
    void* data = room.data();
    std::size_t space = room.size();
    const auto bytes = static_cast<int64_t>(space) - 64;
    product.scratch = matrix(std::align(64, space - 64, data, space), 1, bytes, DType::u8);
    kernels.gemm(product);
  }

  std::vector<std::vector<std::byte>> blocks_;
};

TEST_F(GemmRows, HaveTheBitsOfTheWholeOnEveryTarget) {
  // Some of which, cut by themselves, would have other tiles than the whole.
  constexpr Shape kShapes[] = {{134, 24, 47, true},   {201, 129, 300, true}, {130, 7, 65, false},
                               {513, 48, 64, false},  {97, 192, 770, false}, {200, 200, 300, true},
                               {512, 768, 385, true}, {512, 768, 129, false}};
  for_each_target([&] {
    for (const int threads : {1, 3}) {
      const auto device = open_device("cpu", threads);
      Kernels& kernels = device->kernels();
      int runs = 0;
      for (const DType type : {DType::f32, DType::bf16, DType::f16})
        for (const Shape& s : kShapes) {
          blocks_.clear();
          const Tensor a = tensor(s.rows, s.terms, type, 1), bias = tensor(1, s.cols, type, 2),
                       residual = tensor(s.rows, s.cols, type, 3),
                       b = s.b_transposed ? tensor(s.cols, s.terms, type, 4)
                                          : tensor(s.terms, s.cols, type, 4),
                       whole = tensor(s.rows, s.cols, type, 5),
                       by_rows = tensor(s.rows, s.cols, type, 6);
          multiply(kernels, {.a = a,
                             .b = b,
                             .dst = whole,
                             .b_transposed = s.b_transposed,
                             .bias = bias,
                             .residual = residual});
          const int64_t unit = kernels.row_unit(s.rows, s.cols);
          for (int64_t first = 0; first < s.rows; first += unit, ++runs) {
            const int64_t count = std::min(unit, s.rows - first);
            multiply(kernels, {.a = a.row_range(first, count),
                               .b = b,
                               .dst = by_rows.row_range(first, count),
                               .b_transposed = s.b_transposed,
                               .bias = bias,
                               .residual = residual.row_range(first, count),
                               .of_rows = s.rows});
          }
          EXPECT_EQ(std::memcmp(whole.data, by_rows.data,
                                static_cast<size_t>(s.rows * s.cols * dtype_bytes(type))),
                    0)
              << dtype_name(type) << " " << s.rows << "x" << s.cols << "x" << s.terms;
        }
      EXPECT_GT(runs, 2 * 3 * static_cast<int>(std::size(kShapes)));
    }
  });
}

}  // namespace
}  // namespace onefold::test

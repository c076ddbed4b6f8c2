// The matrix unit's products over emulated instructions. On a processor that has the unit, the
// kernels' cases test it itself.
#define ONEFOLD_AMX_INTRINSICS "kernels/emulated_amx.h"
#define has_amx emulated_has_amx
#define amx_pack emulated_amx_pack
#define amx_multiply emulated_amx_multiply
#include "kernels/cpu/amx.cpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace onefold::test {
namespace {

using cpu::Side;

struct Operand {
  int64_t lines, terms, stride;
  bool by_terms;
  std::vector<Bf16> values;

  // Multiples of 1/4 up to 2: sums of their products are exact.
  Operand(int64_t lines, int64_t terms, bool by_terms, std::mt19937& random)
      : lines(lines),
        terms(terms),
        stride((by_terms ? lines : terms) + static_cast<int64_t>(random() % 5)),
        by_terms(by_terms),
        values(static_cast<size_t>((by_terms ? terms : lines) * stride)) {
    for (Bf16& value : values) value = narrowed<Bf16>((static_cast<float>(random() % 17) - 8) / 4);
  }
  float at(int64_t line, int64_t term) const {
    return widened(
        values[static_cast<size_t>(by_terms ? term * stride + line : line * stride + term)]);
  }
  std::vector<Bf16> packed(Side side) const {
    // What is not written must be seen.
    std::vector<Bf16> dst(static_cast<size_t>(cpu::packed_elems(lines, terms)),
                          narrowed<Bf16>(1e9f));
    cpu::amx_pack(side, values.data(), stride, by_terms, lines, terms, dst.data());
    return dst;
  }
};

void expect_product(int64_t m, int64_t n, int64_t k, bool a_by_terms, bool b_by_terms, bool onto,
                    std::mt19937& random) {
  const Operand a(m, k, a_by_terms, random), b(n, k, b_by_terms, random);
  const int64_t stride = n + static_cast<int64_t>(random() % 7);
  std::vector<float> c(static_cast<size_t>(m * stride), 3.0f), expected = c;
  for (int64_t row = 0; row < m; ++row)
    for (int64_t col = 0; col < n; ++col) {
      double sum = onto ? 3 : 0;
      for (int64_t term = 0; term < k; ++term) sum += a.at(row, term) * b.at(col, term);
      expected[static_cast<size_t>(row * stride + col)] = static_cast<float>(sum);
    }
  cpu::amx_multiply(a.packed(Side::a).data(), b.packed(Side::b).data(), m, n, k, onto, c.data(),
                    stride);
  EXPECT_EQ(c, expected) << m << "x" << n << "x" << k << (a_by_terms ? " T" : " N")
                         << (b_by_terms ? "N" : "T") << (onto ? " onto" : "");
}

TEST(MatrixUnit, MultipliesPackedOperandsOfEveryOrientation) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "there is no such unit";
#endif
  std::mt19937 random(1);
  const auto size = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  for (int round = 0; round < 6; ++round)
    for (int bits = 0; bits < 8; ++bits)
      expect_product(size(80), size(80), size(round == 0 ? 1200 : 100), (bits & 1) != 0,
                     (bits & 2) != 0, (bits & 4) != 0, random);
}

}  // namespace
}  // namespace onefold::test

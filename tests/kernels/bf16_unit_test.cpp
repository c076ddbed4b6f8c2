// The matrix unit's products over emulated instructions. On a processor that has the unit, the
// kernels' cases test it itself.
#include "kernels/emulated_unit.h"
#define packed_gemm_suits emulated_packed_gemm_suits
#define packed_gemm_scratch_bytes emulated_packed_gemm_scratch_bytes
#define packed_gemm emulated_packed_gemm
#include "kernels/cpu/bf16_unit.cpp"
#include "kernels/cpu/gemm_packed.cpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "sanitized.h"
#include "tensor/ledger.h"

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
    cpu::unit_pack(side, values.data(), stride, by_terms, lines, terms, dst.data());
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
  const std::vector<Bf16> packed_a = a.packed(Side::a), packed_b = b.packed(Side::b);
  const bool rows = !a_by_terms && m % 32 == 0 && k % 32 == 0;  // may be multiplied where they are
  const cpu::UnitTurn turn;
  cpu::unit_multiply(
      rows ? cpu::rows_as_lines(a.values.data(), a.stride) : cpu::packed_lines(packed_a.data(), k),
      cpu::packed_columns(packed_b.data(), k), m, n, k, onto, c.data(), stride);
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
  for (int bits = 0; bits < 8; ++bits)
    expect_product(96, size(80), 64 * size(18), false, (bits & 2) != 0, (bits & 4) != 0, random);
}

struct PackedCase {
  int64_t m, n, k;
  bool a_transposed, b_transposed, accumulate, narrow, added;  // with a bias and a residual
  int threads;
};

// Against sums that are exact in fp32.
void expect_packed_gemm(const PackedCase& c, std::mt19937& random) {
  const Operand a(c.m, c.k, c.a_transposed, random), b(c.n, c.k, !c.b_transposed, random);
  const Operand bias(1, c.n, false, random), residual(c.m, c.n, false, random);
  const auto view = [](const Operand& x) {
    return Tensor{const_cast<Bf16*>(x.values.data()), DType::bf16, x.by_terms ? x.terms : x.lines,
                  x.by_terms ? x.lines : x.terms, x.stride};
  };
  const DType type = c.narrow ? DType::bf16 : DType::f32;
  std::vector<float> wide(static_cast<size_t>(c.m * c.n), 3.0f);
  std::vector<Bf16> narrow(wide.size(), narrowed<Bf16>(3.0f));
  void* const data = c.narrow ? static_cast<void*>(narrow.data()) : static_cast<void*>(wide.data());
  Gemm g{.a = view(a),
         .b = view(b),
         .dst = matrix(data, c.m, c.n, type),
         .a_transposed = c.a_transposed,
         .b_transposed = c.b_transposed,
         .accumulate = c.accumulate};
  if (c.added) g.bias = view(bias), g.residual = view(residual);
  const cpu::SlabLimits limits{.lines = 96, .terms = 64};
  ThreadPool pool(c.threads);
  const std::unique_ptr<MemorySource> memory = make_host_memory();
  Ledger ledger(*memory);
  const int64_t bytes = cpu::packed_gemm_scratch_bytes(g, c.threads, limits);
  const Buffer scratch = ledger.allocate(Kind::workspace, bytes, "scratch");
  std::memset(scratch.data(), 0xFF, static_cast<size_t>(bytes));
  g.scratch = scratch.as(1, bytes, DType::u8);
  cpu::packed_gemm(pool, g, limits);
  for (int64_t row = 0; row < c.m; ++row)
    for (int64_t col = 0; col < c.n; ++col) {
      float sum = c.accumulate ? 3.0f : 0.0f;
      for (int64_t term = 0; term < c.k; ++term) sum += a.at(row, term) * b.at(col, term);
      if (c.added) sum += bias.at(0, col), sum += residual.at(row, col);
      const auto at = static_cast<size_t>(row * c.n + col);
      ASSERT_EQ(c.narrow ? widened(narrow[at]) : wide[at],
                c.narrow ? widened(narrowed<Bf16>(sum)) : sum)
          << c.m << "x" << c.n << "x" << c.k << " at " << row << ", " << col << ", " << c.threads
          << " threads";
    }
}

// Of one slab and of many, whose packing, multiplications and sums wait for each other.
TEST(MatrixUnit, MultipliesSlabsOnAnyNumberOfThreads) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "there is no such unit";
#endif
  std::mt19937 random(2);
  const auto size = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  for (int bits = 0; bits < 64; bits += kSanitized ? 7 : 1) {
    const bool even = (bits & 32) != 0;  // rows of a are multiplied where they are
    expect_packed_gemm({.m = even ? 32 * size(9) : size(300),
                        .n = size(300),
                        .k = even && bits % 3 != 0 ? 32 * size(7) : size(220),
                        .a_transposed = (bits & 1) != 0,
                        .b_transposed = (bits & 2) != 0,
                        .accumulate = (bits & 4) != 0,
                        .narrow = (bits & 8) != 0,
                        .added = (bits & 16) != 0,
                        .threads = static_cast<int>(1 + random() % 5)},
                       random);
  }
}

}  // namespace
}  // namespace onefold::test

// Attention on the matrix unit, over the emulated instructions of bf16_unit_test.cpp, against
// attention in floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/cpu_kernels.h"

namespace onefold::cpu {
inline bool there_is_a_unit() { return true; }
void emulated_unit_pack(Side side, const Bf16* x, int64_t stride, bool by_terms, int64_t lines,
                        int64_t terms, Bf16* dst);
LinesOfA emulated_packed_lines(const Bf16* packed_a, int64_t terms);
LinesOfA emulated_rows_as_lines(const Bf16* x, int64_t stride);
void emulated_unit_multiply(const LinesOfA& a, const Bf16* packed_b, int64_t m, int64_t n,
                            int64_t terms, bool onto, float* c, int64_t c_stride);
}  // namespace onefold::cpu

#define has_bf16_unit there_is_a_unit
#define has_bf16_tiles there_is_a_unit
#define unit_pack emulated_unit_pack
#define packed_lines emulated_packed_lines
#define rows_as_lines emulated_rows_as_lines
#define unit_multiply emulated_unit_multiply
#define attention_forward emulated_attention_forward
#define attention_backward emulated_attention_backward
#define attention_forward_scratch_bytes emulated_attention_forward_scratch_bytes
#define attention_backward_scratch_bytes emulated_attention_backward_scratch_bytes
#define OnlineSoftmax EmulatedOnlineSoftmax
#define FinishRows EmulatedFinishRows
#define ScaleTile EmulatedScaleTile
#define CapTile EmulatedCapTile
#define BiasTile EmulatedBiasTile
#define SplitTile EmulatedSplitTile
#define RowDots EmulatedRowDots
#define BackwardTile EmulatedBackwardTile
#include "kernels/cpu/attention.cpp"
#include "sanitized.h"
#undef attention_forward
#undef attention_backward
#undef attention_forward_scratch_bytes
#undef attention_backward_scratch_bytes

#if HWY_ONCE
namespace onefold::test {
namespace {

struct Attended {
  std::vector<Bf16> q, k, v, dout, out, dq, dk, dv;
  std::vector<float> lse;
};

std::vector<Bf16> normal_numbers(int64_t elems, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(static_cast<size_t>(elems));
  for (Bf16& value : values) value = narrowed<Bf16>(normal(random));
  return values;
}

// Forward, then backward.
Attended attend(const AttentionShape& s, bool on_unit) {
  std::mt19937 random(3);
  const int64_t rows = s.batch * s.query_length, wide = s.heads * s.head_dim,
                narrow = s.kv_heads * s.head_dim;
  Attended t{normal_numbers(rows * wide, random),
             normal_numbers(rows * narrow, random),
             normal_numbers(rows * narrow, random),
             normal_numbers(rows * wide, random),
             std::vector<Bf16>(static_cast<size_t>(rows * wide)),
             std::vector<Bf16>(static_cast<size_t>(rows * wide)),
             std::vector<Bf16>(static_cast<size_t>(rows * narrow)),
             std::vector<Bf16>(static_cast<size_t>(rows * narrow)),
             std::vector<float>(static_cast<size_t>(s.heads * rows))};
  const auto view = [&](std::vector<Bf16>& x) {
    return matrix(x.data(), rows, static_cast<int64_t>(x.size()) / rows, DType::bf16);
  };
  const Tensor lse = matrix(t.lse.data(), s.batch * s.heads, s.query_length);
  constexpr int kThreads = 2;
  ThreadPool pool(kThreads);
  const auto bytes =
      on_unit ? std::max(cpu::emulated_attention_forward_scratch_bytes(s, kThreads, true),
                         cpu::emulated_attention_backward_scratch_bytes(s, kThreads, true))
              : std::max(cpu::attention_forward_scratch_bytes(s, kThreads, cpu_multiplies_bf16()),
                         cpu::attention_backward_scratch_bytes(s, kThreads, cpu_multiplies_bf16()));
  std::vector<std::byte> room(static_cast<size_t>(bytes) + 64);
  void* aligned = room.data();
  size_t space = room.size();
  const Tensor scratch =
      matrix(std::align(64, static_cast<size_t>(bytes), aligned, space), 1, bytes, DType::u8);
  const auto forward = on_unit ? cpu::emulated_attention_forward : cpu::attention_forward;
  const auto backward = on_unit ? cpu::emulated_attention_backward : cpu::attention_backward;
  forward(pool, s, view(t.q), view(t.k), view(t.v), view(t.out), lse, {}, scratch);
  backward(pool, s, view(t.q), view(t.k), view(t.v), view(t.out), view(t.dout), lse, view(t.dq),
           view(t.dk), view(t.dv), {}, scratch);
  return t;
}

// Results of both are sums in fp32 that are rounded once: they differ by a unit where a sum is near
// the middle of two numbers. Backward starts from results that differ so.
void expect_close(const char* what, const std::vector<Bf16>& actual,
                  const std::vector<Bf16>& expected) {
  double difference = 0, norm = 0, largest = 0, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = widened(actual[i]), b = widened(expected[i]);
    difference += (a - b) * (a - b);
    norm += b * b;
    largest = std::max(largest, std::abs(b));
    worst = std::max(worst, std::abs(a - b));
  }
  EXPECT_LE(std::sqrt(difference / norm), 0x1p-10) << what;
  EXPECT_LE(worst, 0x1p-7 * largest) << what;
}

TEST(MatrixUnit, AttendsAsFloatsDo) {
  for (const AttentionShape& s :
       {AttentionShape{2, 160, 160, 4, 2, 64, {}, DType::bf16},
        AttentionShape{1, 131, 131, 2, 2, 40, {}, DType::bf16},
        AttentionShape{1, 288, 288, 2, 1, 128, {}, DType::bf16},
        AttentionShape{1, 300, 300, 2, 1, 64, {}, DType::bf16, 0, 60, 0.1f, 4}}) {
    if (kSanitized && s.query_length > 200) continue;
    SCOPED_TRACE(s.query_length);
    const Attended actual = attend(s, true), expected = attend(s, false);
    expect_close("out", actual.out, expected.out);
    expect_close("dq", actual.dq, expected.dq);
    expect_close("dk", actual.dk, expected.dk);
    expect_close("dv", actual.dv, expected.dv);
  }
}

}  // namespace
}  // namespace onefold::test
#endif

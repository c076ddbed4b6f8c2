// Attention on the matrix unit, over the emulated instructions of bf16_unit_test.cpp, against
// attention in floats.
#include "kernels/emulated_unit.h"
#define unit_attention_forward emulated_unit_attention_forward
#define unit_attention_backward emulated_unit_attention_backward
#define unit_attention_forward_elems emulated_unit_attention_forward_elems
#define unit_attention_backward_elems emulated_unit_attention_backward_elems
#include "kernels/cpu/attention_unit.cpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "sanitized.h"

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

constexpr int kThreads = 2;

// The larger scratch of both directions.
int64_t scratch_bytes(const AttentionShape& s, bool on_unit) {
  if (on_unit)
    return 4 * std::max(kThreads * cpu::unit_attention_forward_elems(s),
                        cpu::unit_attention_backward_elems(s, kThreads));
  return std::max(cpu::attention_forward_scratch_bytes(s, kThreads, cpu_multiplies_bf16()),
                  cpu::attention_backward_scratch_bytes(s, kThreads, cpu_multiplies_bf16()));
}

// Forward, then backward unless queries go on from a cache.
Attended attend(const AttentionShape& s, const Dropout& dropout, bool on_unit) {
  std::mt19937 random(3);
  const int64_t rows = s.batch * s.query_length, keys = s.batch * s.key_length,
                wide = s.heads * s.head_dim, narrow = s.kv_heads * s.head_dim;
  const auto zeros = [](int64_t elems) { return std::vector<Bf16>(static_cast<size_t>(elems)); };
  Attended t{normal_numbers(rows * wide, random),
             normal_numbers(keys * narrow, random),
             normal_numbers(keys * narrow, random),
             normal_numbers(rows * wide, random),
             zeros(rows * wide),
             zeros(rows * wide),
             zeros(keys * narrow),
             zeros(keys * narrow),
             std::vector<float>(static_cast<size_t>(s.heads * rows))};
  const auto view = [](std::vector<Bf16>& x, int64_t cols) {
    return matrix(x.data(), static_cast<int64_t>(x.size()) / cols, cols, DType::bf16);
  };
  const Tensor q = view(t.q, wide), k = view(t.k, narrow), v = view(t.v, narrow),
               out = view(t.out, wide), dout = view(t.dout, wide), dq = view(t.dq, wide),
               dk = view(t.dk, narrow), dv = view(t.dv, narrow),
               lse = matrix(t.lse.data(), s.batch * s.heads, s.query_length);
  ThreadPool pool(kThreads);
  const int64_t bytes = scratch_bytes(s, on_unit);
  // What is read before it is written must be seen.
  std::vector<std::byte> room(static_cast<size_t>(bytes) + 64, std::byte{0xFF});
  void* aligned = room.data();
  size_t space = room.size();
  const Tensor scratch =
      matrix(std::align(64, static_cast<size_t>(bytes), aligned, space), 1, bytes, DType::u8);
  const bool backward = !s.causal || s.query_length == s.key_length;
  if (on_unit) {
    cpu::unit_attention_forward(pool, s, {q, k, v, out, lse}, dropout, scratch.as_f32());
    if (backward)
      cpu::unit_attention_backward(pool, s, {q, k, v, out, dout, lse, dq, dk, dv}, dropout,
                                   scratch.as_f32());
  } else {
    cpu::attention_forward(pool, s, q, k, v, out, lse, dropout, scratch);
    if (backward)
      cpu::attention_backward(pool, s, q, k, v, out, dout, lse, dq, dk, dv, dropout, scratch);
  }
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

void expect_as_floats(const AttentionShape& s, const Dropout& dropout = {}) {
  if (kSanitized && s.query_length > 200) return;
  SCOPED_TRACE(s.query_length);
  const Attended actual = attend(s, dropout, true), expected = attend(s, dropout, false);
  expect_close("out", actual.out, expected.out);
  if (s.causal && s.query_length != s.key_length) return;
  expect_close("dq", actual.dq, expected.dq);
  expect_close("dk", actual.dk, expected.dk);
  expect_close("dv", actual.dv, expected.dv);
}

TEST(MatrixUnit, AttendsAsFloatsDo) {
  expect_as_floats({2, 160, 160, 4, 2, 64, {}, DType::bf16});
  expect_as_floats({1, 131, 131, 2, 2, 40, {}, DType::bf16});
  expect_as_floats({1, 288, 288, 2, 1, 128, {}, DType::bf16});
  expect_as_floats({1, 300, 300, 2, 1, 64, {}, DType::bf16, 0, 60, 0.1f, 4});
  expect_as_floats({1, 5, 5, 1, 1, 8, {}, DType::bf16});
  expect_as_floats({1, 2, 2, 1, 1, 32, {}, DType::bf16});
  // Groups that are one part, and groups of four parts of which the last is shorter.
  expect_as_floats({16, 33, 33, 8, 4, 32, {}, DType::bf16});
  expect_as_floats({6, 160, 160, 14, 2, 32, {}, DType::bf16});
}

TEST(MatrixUnit, AttendsFromACacheAndOverOthersKeysAsFloatsDo) {
  expect_as_floats({1, 70, 270, 2, 1, 64, {}, DType::bf16});
  expect_as_floats({.batch = 1,
                    .query_length = 70,
                    .key_length = 170,
                    .heads = 2,
                    .kv_heads = 1,
                    .head_dim = 32,
                    .dtype = DType::bf16,
                    .causal = false});
}

TEST(MatrixUnit, AttendsWithinDocumentsAndWithDropoutAsFloatsDo) {
  std::vector<int32_t> starts(2 * 190);
  for (size_t i = 0; i < starts.size(); ++i)
    starts[i] = i % 190 < 20 ? 0 : i % 190 < 150 ? 20 : 150;
  std::vector<int64_t> samples = {5, 7};
  expect_as_floats({.batch = 2,
                    .query_length = 190,
                    .key_length = 190,
                    .heads = 2,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .starts = matrix(starts.data(), 1, 2 * 190, DType::i32),
                    .dtype = DType::bf16},
                   {.rate = 0.3f,
                    .key = philox_key(1, Draw::test),
                    .samples = matrix(samples.data(), 1, 2, DType::i64)});
}

}  // namespace
}  // namespace onefold::test

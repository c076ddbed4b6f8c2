// Gradients of long sequences' attention on a card, which its library computes in parts, against
// the tiled kernels, which do not cut them. Too long for the double oracle of the cases.
#include <cmath>

#include "device/attention_parts.h"
#include "kernel_cases/oracle.h"
#include "kernel_cases/runner.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

using cases::Call;
using cases::Case;
using cases::HostTensor;

constexpr int64_t kHeads = 8, kKeyHeads = 2, kHeadDim = 32;

struct Long {
  int64_t queries, keys;
  bool causal;
  DType dtype;

  AttentionShape shape() const {
    return {.batch = 1,
            .query_length = queries,
            .key_length = keys,
            .heads = kHeads,
            .kv_heads = kKeyHeads,
            .head_dim = kHeadDim,
            .dtype = dtype,
            .causal = causal};
  }
};

// Some rows are eight times as large as others: they take most of what many queries see.
HostTensor rows_with_spikes(int64_t rows, int64_t cols, uint64_t seed, int64_t gap, DType dtype) {
  HostTensor tensor = cases::normals(rows, cols, seed, gap);
  for (int64_t row = 0; row < rows; row += 997)
    for (int64_t col = 0; col < cols; ++col) tensor.set(row, col, 8 * tensor.at(row, col));
  return tensor.as(dtype);
}

// The library takes rows of whole vectors alone.
std::vector<HostTensor> gradients_of(const Long& l, bool by_library) {
  const int64_t cols = kHeads * kHeadDim, kv_cols = kKeyHeads * kHeadDim;
  Case c;
  const auto result = [&](const char* name, int64_t rows, int64_t width, DType dtype) {
    return c.output(name, HostTensor(rows, width, 0, dtype).clear());
  };
  const int q = c.input("q", rows_with_spikes(l.queries, cols, 1, by_library ? 8 : 4, l.dtype)),
            k = c.input("k", rows_with_spikes(l.keys, kv_cols, 2, 8, l.dtype)),
            v = c.input("v", rows_with_spikes(l.keys, kv_cols, 3, 8, l.dtype)),
            dout = c.input("dout", rows_with_spikes(l.queries, cols, 4, 8, l.dtype)),
            out = result("out", l.queries, cols, l.dtype),
            lse = result("lse", kHeads, l.queries, DType::f32),
            dq = result("dq", l.queries, cols, l.dtype),
            dk = result("dk", l.keys, kv_cols, l.dtype),
            dv = result("dv", l.keys, kv_cols, l.dtype);
  const AttentionShape shape = l.shape();
  c.prepare = [=](Call& call) {
    call.kernels().attention_forward(
        shape, call[q], call[k], call[v], call[out], call[lse], {},
        call.scratch(call.kernels().attention_forward_scratch_bytes(shape)));
  };
  c.run = [=](Call& call) {
    call.kernels().attention_backward(
        shape, call[q], call[k], call[v], call[out], call[dout], call[lse], call[dq], call[dk],
        call[dv], {}, call.scratch(call.kernels().attention_backward_scratch_bytes(shape)));
  };
  cases::CaseResult all =
      cases::run_case(test_devices()[0]->device(), test_devices()[0]->ledger(), c);
  EXPECT_EQ(all.failures, std::vector<std::string>());
  std::vector<HostTensor> gradients;
  for (const int tensor : {dq, dk, dv})
    gradients.push_back(std::move(all.tensors[static_cast<size_t>(tensor)]));
  return gradients;
}

// Of each thousand rows by themselves, so that none can hide behind larger ones elsewhere.
double largest_distance(const HostTensor& a, const HostTensor& b) {
  double most = 0;
  for (int64_t first = 0; first < b.rows(); first += 1000) {
    double difference = 0, size = 0;
    for (int64_t row = first; row < std::min(first + 1000, b.rows()); ++row)
      for (int64_t col = 0; col < b.cols(); ++col) {
        const double exact = b.number(row, col), one = a.number(row, col) - exact;
        difference += one * one;
        size += exact * exact;
      }
    const double distance = std::sqrt(difference / size);
    most = std::isnan(distance) ? distance : std::max(most, distance);
    if (std::isnan(most)) return most;
  }
  return most;
}

TEST(LongAttention, InPartsHasTheGradientsOfTheTiledKernels) {
  if (test_device_is_cpu()) GTEST_SKIP() << "the CPU's kernels cut nothing";
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Long& l : {Long{36000, 36000, true, dtype}, Long{18000, 72000, false, dtype}}) {
      SCOPED_TRACE(fmt::format("{} over {} in {}", l.queries, l.keys, dtype_name(dtype)));
      ASSERT_GT(cuda::attention_parts(l.shape()).rows, 0);
      ASSERT_LT(2 * cuda::attention_parts(l.shape()).rows, l.keys) << "too few parts";
      testing::internal::CaptureStderr();
      const std::vector<HostTensor> parts = gradients_of(l, true);
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the library declined";
      const std::vector<HostTensor> whole = gradients_of(l, false);
      for (size_t i = 0; i < parts.size(); ++i)
        EXPECT_LT(largest_distance(parts[i], whole[i]), 0.02) << i;
    }
}

// Scratch is bounded, whatever the length: without parts it would be 1 TiB here.
TEST(LongAttention, PlansOfLongSequencesStaySmall) {
  const AttentionShape shape{.batch = 1,
                             .query_length = 131072,
                             .key_length = 131072,
                             .heads = 32,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .dtype = DType::bf16};
  const cuda::AttentionParts parts = cuda::attention_parts(shape);
  EXPECT_EQ(parts.rows % 128, 0);
  EXPECT_LE(shape.heads * parts.rows * parts.rows * 2, int64_t{9} << 28);
  EXPECT_LT(parts.end, int64_t{4} << 30);
  AttentionShape shorter = shape;
  shorter.query_length = shorter.key_length = 16384;
  EXPECT_EQ(cuda::attention_parts(shorter).rows, 0);
}

}  // namespace
}  // namespace onefold::test

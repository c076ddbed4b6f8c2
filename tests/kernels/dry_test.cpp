// What the dry device's kernels count. That they run without memory is in cases_test.cpp.
#include "device/dry_kernels.h"

#include "kernels/support.h"

namespace onefold::test {
namespace {

// A tensor as the dry device has them: sizes without memory. A kernel that touched it would crash.
Tensor no_memory(int64_t rows, int64_t cols, DType dtype = DType::f32) {
  return matrix(nullptr, rows, cols, dtype);
}

// Two operations for each key that a query sees and each element of a head. The key on the diagonal
// counts half: a whole sequence is half a square.
double causal_product_flops(const AttentionShape& s) {
  double pairs = 0;
  for (int64_t query = 0; query < s.query_length; ++query)
    pairs += static_cast<double>(query + s.key_length - s.query_length) + 0.5;
  return 2 * pairs * static_cast<double>(s.batch * s.heads * s.head_dim);
}

TEST(DryKernels, CountTwoOperationsForEachMultiplicationOfAGemm) {
  DryKernels kernels(make_cpu_scratch(1, false));
  EXPECT_EQ(kernels.work().flops, 0);
  kernels.gemm({.a = no_memory(3, 5), .b = no_memory(5, 7), .dst = no_memory(3, 7)});
  EXPECT_EQ(kernels.work().flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(kernels.work().bytes, 4 * (3 * 5 + 5 * 7 + 3 * 7));
  kernels.gemm(
      {.a = no_memory(3, 5), .b = no_memory(7, 5), .dst = no_memory(3, 7), .b_transposed = true});
  EXPECT_EQ(kernels.work().flops, 2 * 2 * 3 * 5 * 7);
  kernels.gemm(
      {.a = no_memory(5, 3), .b = no_memory(5, 7), .dst = no_memory(3, 7), .a_transposed = true});
  EXPECT_EQ(kernels.work().flops, 3 * 2 * 3 * 5 * 7);
}

TEST(DryKernels, CountWhatIsAddedToAsReadAndWritten) {
  DryKernels kernels(make_cpu_scratch(1, false));
  kernels.gemm(
      {.a = no_memory(3, 5), .b = no_memory(5, 7), .dst = no_memory(3, 7), .accumulate = true});
  EXPECT_EQ(kernels.work().bytes, 4 * (3 * 5 + 5 * 7 + 2 * 3 * 7));
  const double before = kernels.work().bytes;
  const Tensor x = no_memory(4, 6);
  kernels.norm_backward(Norm::rmsnorm, x, 1, {}, 0, x, x, true, {}, {}, {}, false, {});
  EXPECT_EQ(kernels.work().bytes - before, 4 * 4 * 24);
}

TEST(DryKernels, CountMoreThanAnIntegerHolds) {
  DryKernels kernels(make_cpu_scratch(1, false));
  constexpr int64_t kSide = int64_t{1} << 22;
  kernels.gemm(
      {.a = no_memory(kSide, kSide), .b = no_memory(kSide, kSide), .dst = no_memory(kSide, kSide)});
  EXPECT_EQ(kernels.work().flops, 0x1p67);
}

TEST(DryKernels, CountTwoCausalProductsForwardAndFiveBackward) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1, 1, 1}, AttentionShape{2, 64, 64, 6, 2, 16},
        AttentionShape{1, 257, 257, 3, 3, 7}, AttentionShape{2, 1, 131, 4, 1, 64}}) {
    DryKernels kernels(make_cpu_scratch(1, false));
    const double product = causal_product_flops(shape);
    kernels.attention_forward(shape, {}, {}, {}, {}, {}, {}, {});
    EXPECT_EQ(kernels.work().flops, 2 * product);
    kernels.attention_backward(shape, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {});
    EXPECT_EQ(kernels.work().flops, 7 * product);
  }
}

TEST(DryKernels, CountTheBytesThatAStepReadsAndWrites) {
  DryKernels kernels(make_cpu_scratch(1, false));
  const Tensor x = no_memory(1, 10);
  const AdamWStep step{{}, {x, x}, x, x};
  kernels.adamw({}, {&step, 1});  // gradients are read; parameters and moments written too
  EXPECT_EQ(kernels.work().bytes, 28 * 10);
}

TEST(DryKernels, AskForTheScratchOfTheDeviceTheyStandInFor) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const auto cpu = make_cpu_kernels(pool);
    const DryKernels dry(make_cpu_scratch(threads, cpu_multiplies_bf16()));
    for (const int64_t rows : {1, 37, 1031})
      for (const int64_t cols : {1, 64, 769}) {
        EXPECT_EQ(dry.norm_backward_scratch_bytes(rows, cols, 1),
                  cpu->norm_backward_scratch_bytes(rows, cols, 1));
        EXPECT_EQ(dry.norm_backward_scratch_bytes(rows, 12 * cols, 12),
                  cpu->norm_backward_scratch_bytes(rows, 12 * cols, 12));
        const Gemm gemm{
            .a = no_memory(rows, 300), .b = no_memory(300, cols), .dst = no_memory(rows, cols)};
        EXPECT_EQ(dry.gemm_scratch_bytes(gemm), cpu->gemm_scratch_bytes(gemm));
        const Gemm half{.a = no_memory(rows, 300, DType::bf16),
                        .b = no_memory(300, cols, DType::bf16),
                        .dst = no_memory(rows, cols, DType::bf16)};
        EXPECT_GT(cpu->gemm_scratch_bytes(half), 0);
        EXPECT_EQ(dry.gemm_scratch_bytes(half), cpu->gemm_scratch_bytes(half));
        EXPECT_EQ(dry.embedding_backward_scratch_bytes(rows, cols),
                  cpu->embedding_backward_scratch_bytes(rows, cols));
        EXPECT_EQ(dry.column_sum_scratch_bytes(rows, cols),
                  cpu->column_sum_scratch_bytes(rows, cols));
        EXPECT_EQ(dry.sum_squares_scratch_bytes(rows * cols),
                  cpu->sum_squares_scratch_bytes(rows * cols));
        const AttentionShape shape{2, rows, rows, 6, 2, cols};
        EXPECT_EQ(dry.attention_forward_scratch_bytes(shape),
                  cpu->attention_forward_scratch_bytes(shape));
        EXPECT_EQ(dry.attention_backward_scratch_bytes(shape),
                  cpu->attention_backward_scratch_bytes(shape));
      }
  }
}

}  // namespace
}  // namespace onefold::test

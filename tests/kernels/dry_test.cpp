#include "kernels/dry/dry_kernels.h"

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
  ThreadPool pool(1);
  DryKernels kernels(make_cpu_kernels(pool));
  EXPECT_EQ(kernels.flops(), 0);
  kernels.gemm({.a = no_memory(3, 5), .b = no_memory(5, 7), .dst = no_memory(3, 7)});
  EXPECT_EQ(kernels.flops(), 2 * 3 * 5 * 7);
  kernels.gemm(
      {.a = no_memory(3, 5), .b = no_memory(7, 5), .dst = no_memory(3, 7), .b_transposed = true});
  EXPECT_EQ(kernels.flops(), 2 * 2 * 3 * 5 * 7);
  kernels.gemm(
      {.a = no_memory(5, 3), .b = no_memory(5, 7), .dst = no_memory(3, 7), .a_transposed = true});
  EXPECT_EQ(kernels.flops(), 3 * 2 * 3 * 5 * 7);
}

TEST(DryKernels, CountMoreThanAnIntegerHolds) {
  ThreadPool pool(1);
  DryKernels kernels(make_cpu_kernels(pool));
  constexpr int64_t kSide = int64_t{1} << 22;
  kernels.gemm(
      {.a = no_memory(kSide, kSide), .b = no_memory(kSide, kSide), .dst = no_memory(kSide, kSide)});
  EXPECT_EQ(kernels.flops(), 0x1p67);
}

TEST(DryKernels, CountTwoCausalProductsForwardAndFiveBackward) {
  ThreadPool pool(1);
  for (const AttentionShape shape : {AttentionShape{1, 1, 1, 1, 1, 1},
                                     {2, 64, 64, 6, 2, 16},
                                     {1, 257, 257, 3, 3, 7},
                                     {2, 1, 131, 4, 1, 64}}) {
    DryKernels kernels(make_cpu_kernels(pool));
    const double product = causal_product_flops(shape);
    kernels.attention_forward(shape, {}, {}, {}, {}, {}, {}, {});
    EXPECT_EQ(kernels.flops(), 2 * product);
    kernels.attention_backward(shape, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {});
    EXPECT_EQ(kernels.flops(), 7 * product);
  }
}

TEST(DryKernels, AskForTheScratchOfTheDeviceTheyStandInFor) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const auto cpu = make_cpu_kernels(pool);
    const DryKernels dry(make_cpu_kernels(pool));
    for (const int64_t rows : {1, 37, 1031})
      for (const int64_t cols : {1, 64, 769}) {
        EXPECT_EQ(dry.norm_backward_scratch(rows, cols, 1),
                  cpu->norm_backward_scratch(rows, cols, 1));
        EXPECT_EQ(dry.norm_backward_scratch(rows, 12 * cols, 12),
                  cpu->norm_backward_scratch(rows, 12 * cols, 12));
        const Gemm gemm{
            .a = no_memory(rows, 300), .b = no_memory(300, cols), .dst = no_memory(rows, cols)};
        EXPECT_EQ(dry.gemm_scratch(gemm), cpu->gemm_scratch(gemm));
        EXPECT_EQ(dry.embedding_backward_scratch(rows, cols),
                  cpu->embedding_backward_scratch(rows, cols));
        EXPECT_EQ(dry.column_sum_scratch(rows, cols), cpu->column_sum_scratch(rows, cols));
        EXPECT_EQ(dry.sum_squares_scratch(rows * cols), cpu->sum_squares_scratch(rows * cols));
        const AttentionShape shape{2, rows, rows, 6, 2, cols};
        EXPECT_EQ(dry.attention_forward_scratch(shape), cpu->attention_forward_scratch(shape));
        EXPECT_EQ(dry.attention_backward_scratch(shape), cpu->attention_backward_scratch(shape));
      }
  }
}

TEST(DryKernels, TouchNoMemory) {
  ThreadPool pool(1);
  DryKernels kernels(make_cpu_kernels(pool));
  const Tensor x = no_memory(6, 8), vector = no_memory(1, 8), scratch = no_memory(1, 4096);
  const Tensor tokens = no_memory(1, 6, DType::i32), lse = no_memory(4, 3);
  const AttentionShape shape{2, 3, 3, 2, 2, 4};
  const Dropout dropout{0.5f, {}, nullptr};
  kernels.gemm(
      {.a = x, .b = no_memory(8, 8), .dst = x, .accumulate = true, .bias = vector, .residual = x});
  for (const Norm norm : {Norm::layernorm, Norm::rmsnorm}) {
    kernels.norm_forward(norm, x, 1, vector, vector, 1e-5f, x);
    kernels.norm_backward(norm, x, 1, vector, 1e-5f, x, x, true, vector, vector, true, scratch);
  }
  kernels.activation_forward(Activation::silu, true, no_memory(6, 16), x);
  kernels.activation_backward(Activation::silu, true, no_memory(6, 16), x, no_memory(6, 16), x);
  kernels.rope(x, 2, no_memory(3, 4), 0, 3, false);
  kernels.attention_forward(shape, x, x, x, x, lse, dropout, scratch);
  kernels.attention_backward(shape, x, x, x, x, x, lse, x, x, x, dropout, scratch);
  kernels.dropout(x, dropout, 3, x, x);
  kernels.embedding_forward(tokens, no_memory(11, 8), no_memory(3, 8), 0, 3, x);
  kernels.embedding_backward(tokens, x, 3, no_memory(11, 8), true, no_memory(3, 8), true, scratch);
  kernels.cross_entropy(x, tokens, 1, no_memory(1, 6));
  kernels.column_sum(x, vector, true, scratch);
  kernels.copy(x, x);
  kernels.fill(x, 1);
  kernels.add(x, x, x);
  EXPECT_EQ(kernels.sum_squares(x.flat(), scratch), 0);
  kernels.adamw({}, vector, vector, vector, vector);
  kernels.sgd({}, vector, vector, vector);
}

}  // namespace
}  // namespace onefold::test

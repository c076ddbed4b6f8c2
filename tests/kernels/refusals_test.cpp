// What kernels refuse: sizes that disagree on every device, and on the CPU values that are out of
// range.
#include "kernel_cases/host_tensor.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

using cases::row_of;

class Refusals : public testing::Test {
 protected:
  Kernels& kernels() { return test_devices().front()->device().kernels(); }

  // A tensor of zeros on the device, or of these values.
  Tensor tensor(int64_t rows, int64_t cols, DType dtype = DType::f32) {
    return copied(cases::HostTensor(rows, cols, 0, dtype));
  }
  Tensor copied(const cases::HostTensor& values) {
    TestDevice& on = *test_devices().front();
    const auto bytes = static_cast<int64_t>(values.bytes().size());
    blocks_.push_back(on.ledger().allocate(Kind::workspace, bytes, "refusals"));
    upload<std::byte>(on.device(), values.bytes(), blocks_.back().as(1, bytes, DType::u8));
    return values.over(blocks_.back().data());
  }
  Tensor scratch(int64_t bytes) { return tensor(1, bytes, DType::u8); }

  void adamw(const StepControl& control, const Stepped& stepped, const Moment& moment1,
             const Moment& moment2) {
    const AdamWStep step{{}, stepped, moment1, moment2};
    kernels().adamw(control, {&step, 1});
  }
  void sgd(const StepControl& control, const Stepped& stepped, Tensor momentum) {
    const SgdStep step{{.momentum = 0.9f}, stepped, momentum};
    kernels().sgd(control, {&step, 1});
  }

 private:
  std::vector<Buffer> blocks_;
};

TEST_F(Refusals, GemmOfSizesThatDisagree) {
  Gemm good{.a = tensor(3, 5),
            .b = tensor(5, 7),
            .dst = tensor(3, 7),
            .bias = tensor(1, 7),
            .residual = tensor(3, 7)};
  good.scratch = scratch(kernels().gemm_scratch_bytes(good));
  EXPECT_NO_THROW(kernels().gemm(good));
  const std::vector<std::function<void(Gemm&)>> changes = {
      [](Gemm& g) { g.a = g.a.row_range(0, 2); },
      [](Gemm& g) { g.a = g.a.col_range(0, 4); },
      [](Gemm& g) { g.b = g.b.row_range(0, 4); },
      [](Gemm& g) { g.b = g.b.col_range(0, 6); },
      [](Gemm& g) { g.dst = g.dst.row_range(0, 2); },
      [](Gemm& g) { g.dst = g.dst.col_range(0, 6); },
      [](Gemm& g) { g.a_transposed = true; },
      [](Gemm& g) { g.b_transposed = true; },
      [](Gemm& g) { g.bias = g.bias.col_range(0, 6); },
      [](Gemm& g) { g.residual = g.residual.row_range(0, 2); },
      [](Gemm& g) { g.residual = g.residual.col_range(0, 6); },
      [](Gemm& g) { g.b.dtype = DType::i32; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Gemm bad = good;
    changes[i](bad);
    EXPECT_THROW(kernels().gemm(bad), InternalError) << "change " << i;
  }
}

TEST_F(Refusals, NormOfSizesThatDisagree) {
  const Tensor x = tensor(2, 6), four = tensor(1, 4);
  for (const int64_t groups : {1, 4})
    EXPECT_THROW(kernels().norm_forward(Norm::rmsnorm, x, groups, four, {}, 1e-5f, x),
                 InternalError);
  const Tensor six = tensor(1, 6);
  EXPECT_THROW(kernels().norm_forward(Norm::layernorm, x, 1, six, four, 1e-5f, x), InternalError);
  EXPECT_THROW(kernels().norm_backward(Norm::layernorm, x, 1, six, 1e-5f, x, x, false, four, {}, {},
                                       false, scratch(4096)),
               InternalError);
  // Sums of what dx was, where it is overwritten.
  EXPECT_THROW(kernels().norm_backward(Norm::layernorm, x, 1, six, 1e-5f, x, x, false, six, {}, six,
                                       false, scratch(4096)),
               InternalError);
}

TEST_F(Refusals, ScratchThatIsTooSmall) {
  Kernels& k = kernels();
  const Tensor x = tensor(40, 6), six = tensor(1, 6), tokens = tensor(1, 40, DType::i32);
  const auto less = [&](int64_t bytes) { return bytes > 1 ? scratch(bytes - 1) : Tensor{}; };
  if (const int64_t bytes = k.norm_backward_scratch_bytes(40, 6, 1); bytes > 0) {
    EXPECT_THROW(k.norm_backward(Norm::layernorm, x, 1, six, 1e-5f, x, x, false, six, {}, {}, false,
                                 less(bytes)),
                 InternalError);
  }
  if (const int64_t bytes = k.column_sum_scratch_bytes(40, 6); bytes > 0) {
    EXPECT_THROW(k.column_sum(x, six, false, less(bytes)), InternalError);
  }
  if (const int64_t bytes = k.sum_squares_scratch_bytes(240); bytes > 0) {
    const Tensor dst = tensor(1, 1, DType::f64);
    const Squares one{x, dst};
    EXPECT_THROW(k.sum_squares({&one, 1}, dst, dst, less(bytes)), InternalError);
  }
  if (const int64_t bytes = k.embedding_backward_scratch_bytes(40, 3); bytes > 0) {
    EXPECT_THROW(
        k.embedding_backward(tokens, x, {0, 40}, tensor(3, 6), false, {}, false, less(bytes)),
        InternalError);
  }
  const AttentionShape shape{1, 40, 40, 2, 2, 3};
  if (const int64_t bytes = k.attention_forward_scratch_bytes(shape); bytes > 0) {
    EXPECT_THROW(k.attention_forward(shape, x, x, x, tensor(40, 6), tensor(2, 40), {}, less(bytes)),
                 InternalError);
  }
}

TEST_F(Refusals, ActivationOfSizesThatDisagree) {
  const Tensor x = tensor(2, 6), three = tensor(2, 3);
  EXPECT_THROW(kernels().activation_forward(Activation::relu, false, x, three), InternalError);
  EXPECT_THROW(kernels().activation_forward(Activation::relu, true, x, x), InternalError);
  EXPECT_THROW(kernels().activation_backward(Activation::relu, true, x, three, three, {}, {}),
               InternalError);
}

TEST_F(Refusals, PositionsBeyondTheTable) {
  const Tensor table = tensor(4, 8), x = tensor(5, 8), starts = tensor(1, 5, DType::i32);
  EXPECT_THROW(kernels().rope(x, 1, table, {0, 5}, false), InternalError);
  EXPECT_THROW(kernels().rope(x, 1, table, {0, 5, starts}, false), InternalError);
  EXPECT_THROW(kernels().rope(x, 1, tensor(9, 8), {1, 5, starts}, false), InternalError);
  EXPECT_THROW(kernels().rope(x, 1, tensor(9, 8), {0, 5, starts.col_range(0, 4)}, false),
               InternalError);
  const Tensor tokens = tensor(1, 5, DType::i32), words = tensor(3, 8);
  EXPECT_THROW(kernels().embedding_forward(tokens, words, table, {0, 5}, x), InternalError);
  EXPECT_THROW(
      kernels().embedding_backward(tokens, x, {0, 5}, words, false, table, false, scratch(4096)),
      InternalError);
}

TEST_F(Refusals, AttentionOfACacheWhereThereCanBeNone) {
  const AttentionShape shape{1, 2, 3, 1, 1, 4};
  const Tensor q = tensor(2, 4), kv = tensor(3, 4), lse = tensor(1, 2), room = scratch(1 << 20);
  EXPECT_NO_THROW(kernels().attention_forward(shape, q, kv, kv, tensor(2, 4), lse, {}, room));
  EXPECT_THROW(kernels().attention_backward(shape, q, kv, kv, q, q, lse, tensor(2, 4), tensor(3, 4),
                                            tensor(3, 4), {}, room),
               InternalError);
  AttentionShape documents = shape;
  documents.starts = tensor(1, 2, DType::i32);
  EXPECT_THROW(kernels().attention_forward(documents, q, kv, kv, tensor(2, 4), lse, {}, room),
               InternalError);
}

TEST_F(Refusals, DropoutRatesOutsideZeroToOne) {
  const Tensor x = tensor(1, 4), samples = tensor(1, 1, DType::i64);
  for (const float rate : {1.0f, -0.1f})
    EXPECT_THROW(kernels().dropout(x, {rate, {}, samples}, 1, {}, x), InternalError);
}

// Activations and parameters of a call are of one type; gradients of parameters may be f32.
TEST_F(Refusals, TypesThatDisagree) {
  Kernels& k = kernels();
  const Tensor x = tensor(2, 6, DType::bf16), wide = tensor(2, 6), six = tensor(1, 6, DType::bf16),
               other = tensor(1, 6, DType::f16);
  const auto gemm = [&](Tensor a, Tensor b, Tensor dst) {
    Gemm g{.a = a, .b = b, .dst = dst, .b_transposed = true};
    g.scratch = scratch(4 << 20);
    k.gemm(g);
  };
  EXPECT_THROW(gemm(x, wide, tensor(2, 2, DType::bf16)), InternalError);
  EXPECT_THROW(gemm(wide, wide, tensor(2, 2, DType::bf16)), InternalError);
  EXPECT_THROW(gemm(x, x, tensor(2, 2, DType::f16)), InternalError);
  EXPECT_THROW(k.norm_forward(Norm::rmsnorm, x, 1, other, {}, 1e-5f, x), InternalError);
  EXPECT_THROW(k.norm_forward(Norm::rmsnorm, x, 1, six, {}, 1e-5f, wide), InternalError);
  EXPECT_THROW(k.activation_forward(Activation::relu, false, wide, x), InternalError);
  EXPECT_THROW(k.add(x, x, wide), InternalError);
  EXPECT_THROW(k.fill(tensor(1, 4, DType::i32), 0), InternalError);
  const AttentionShape shape{1, 2, 2, 1, 1, 6};  // of f32
  EXPECT_THROW(k.attention_forward(shape, x, x, x, x, tensor(1, 2), {}, scratch(1 << 20)),
               InternalError);
}

TEST_F(Refusals, OptimizersOfTypesThatDoNotGoTogether) {
  const Tensor x = tensor(1, 8), half = tensor(1, 8, DType::bf16);
  const StepControl control{tensor(1, 1), copied(row_of(std::vector<int32_t>{1}))};
  const StochasticRounding rounding{{1, 2}, 0};
  EXPECT_THROW(adamw(control, {x, x, x}, x, x), InternalError);
  EXPECT_THROW(adamw(control, {x, x}, half, half), InternalError);
  EXPECT_THROW(adamw(control, {x, x, {}, rounding}, half, x), InternalError);
  EXPECT_THROW(sgd(control, {x, x}, half), InternalError);
  EXPECT_THROW(adamw(control, {half, tensor(1, 8, DType::f16), x}, x, x), InternalError);
}

TEST_F(Refusals, CopyBetweenTypes) {
  EXPECT_THROW(kernels().copy(tensor(1, 4, DType::i32), tensor(1, 4)), InternalError);
  EXPECT_THROW(kernels().copy(tensor(1, 4), tensor(1, 5)), InternalError);
}

TEST_F(Refusals, OptimizerTensorsOfOtherLengths) {
  const Tensor x = tensor(1, 8), shorter = tensor(1, 7);
  const StepControl control{tensor(1, 1), tensor(1, 1, DType::i32)};
  EXPECT_THROW(adamw(control, {x, shorter}, x, x), InternalError);
  EXPECT_THROW(sgd(control, {x, x}, shorter), InternalError);
}

// Values, which only the CPU looks at before it uses them.

TEST_F(Refusals, TargetsBeyondTheClasses) {
  if (!test_device_is_cpu()) GTEST_SKIP() << "only the CPU looks";
  EXPECT_THROW(kernels().cross_entropy(tensor(2, 5), copied(row_of(std::vector<int32_t>{0, 5})), {},
                                       tensor(1, 2)),
               InternalError);
}

TEST_F(Refusals, TokensOutsideTheVocabulary) {
  if (!test_device_is_cpu()) GTEST_SKIP() << "only the CPU looks";
  const Tensor table = tensor(4, 3), x = tensor(2, 3);
  const auto tokens_with = [&](int32_t token) {
    return copied(row_of(std::vector<int32_t>{0, token}));
  };
  for (const int32_t token : {-1, 4})
    EXPECT_THROW(kernels().embedding_forward(tokens_with(token), table, {}, {0, 2}, x),
                 InternalError);
  // Of gradients, the first one behind the table is in another share's.
  for (const int32_t token : {-1, 5})
    EXPECT_THROW(kernels().embedding_backward(tokens_with(token), x, {0, 2}, table, false, {},
                                              false, scratch(4096)),
                 InternalError);
}

TEST_F(Refusals, DocumentsThatBeginAfterTheirRows) {
  if (!test_device_is_cpu()) GTEST_SKIP() << "only the CPU looks";
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{0, 0, 3}, std::vector<int32_t>{0, -1, 0}})
    EXPECT_THROW(
        kernels().rope(tensor(3, 8), 1, tensor(3, 8), {0, 3, copied(row_of(starts))}, false),
        InternalError);
}

}  // namespace
}  // namespace onefold::test

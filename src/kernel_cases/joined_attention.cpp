// Attention over two sets of keys, one after the other, as rings have it: forward joined by
// merge_attention, and backward of each set with the results over both.
#include <cmath>

#include "kernel_cases/attention_oracle.h"
#include "kernel_cases/families.h"

namespace onefold::cases {
namespace {

// One sequence, whose queries see all keys; the second set begins at key `cut`.
struct Joined {
  AttentionParams whole;
  int64_t cut;
};

// Multiples of 1/16, as of other attention (attention.cpp): scores are exact.
HostTensor sixteenths(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  HostTensor tensor = normals(rows, cols, seed, 8);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      tensor.set(row, col, std::round(16 * tensor.at(row, col)) / 16);
  return tensor.as(dtype);
}

AttentionShape shape_of(const AttentionParams& p, int64_t keys) {
  return {.batch = 1,
          .query_length = p.queries,
          .key_length = keys,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .dtype = p.dtype,
          .causal = false};
}

Case joined_case(const Joined& j) {
  const AttentionParams p = j.whole;
  const int64_t cols = p.heads * p.head_dim, kv_cols = p.kv_heads * p.head_dim;
  Case c;
  const auto result = [&](const char* name, int64_t rows, int64_t width, DType dtype) {
    return c.output(name, HostTensor(rows, width, 8, dtype).clear());
  };
  const int q = c.input("q", sixteenths(p.dtype, p.queries, cols, 1)),
            k = c.input("k", sixteenths(p.dtype, p.keys, kv_cols, 2)),
            v = c.input("v", sixteenths(p.dtype, p.keys, kv_cols, 3)),
            dout = c.input("dout", sixteenths(p.dtype, p.queries, cols, 4)),
            out = result("out", p.queries, cols, p.dtype),
            more = result("more", p.queries, cols, p.dtype),
            lse = result("lse", p.heads, p.queries, DType::f32),
            more_lse = result("more_lse", p.heads, p.queries, DType::f32),
            dq = result("dq", p.queries, cols, p.dtype),
            more_dq = result("more_dq", p.queries, cols, p.dtype),
            dk = result("dk", p.keys, kv_cols, p.dtype),
            dv = result("dv", p.keys, kv_cols, p.dtype);
  c.prepare = [=](Call& call) {
    Kernels& kernels = call.kernels();
    for (const bool second : {false, true}) {
      const int64_t first = second ? j.cut : 0, count = second ? p.keys - j.cut : j.cut;
      const AttentionShape shape = shape_of(p, count);
      kernels.attention_forward(shape, call[q], call[k].row_range(first, count),
                                call[v].row_range(first, count), call[second ? more : out],
                                call[second ? more_lse : lse], {},
                                call.scratch(kernels.attention_forward_scratch_bytes(shape)));
    }
    kernels.merge_attention(call[out], call[lse], call[more], call[more_lse]);
  };
  c.run = [=](Call& call) {
    Kernels& kernels = call.kernels();
    for (const bool second : {false, true}) {
      const int64_t first = second ? j.cut : 0, count = second ? p.keys - j.cut : j.cut;
      const AttentionShape shape = shape_of(p, count);
      const auto own = [&](int tensor) { return call[tensor].row_range(first, count); };
      kernels.attention_backward(shape, call[q], own(k), own(v), call[out], call[dout], call[lse],
                                 call[second ? more_dq : dq], own(dk), own(dv), {},
                                 call.scratch(kernels.attention_backward_scratch_bytes(shape)));
    }
    kernels.add(call[dq], call[more_dq], call[dq]);
  };
  const auto oracle = [=](const Case& in, bool by_library) {
    const Doubles x = in[q].doubles(), keys = in[k].doubles(), values = in[v].doubles(),
                  gradient = in[dout].doubles();
    const AttentionSoftmax softmax = attention_softmax(p, attention_scores(p, x, keys));
    const Doubles multipliers = attention_multipliers(p);
    const AttentionGradients exact = attention_gradients(p, softmax.probabilities, multipliers, x,
                                                         keys, values, gradient, {}),
                             size = attention_gradients(
                                 p, softmax.probabilities, multipliers, magnitudes(x),
                                 magnitudes(keys), magnitudes(values), magnitudes(gradient), {}, 1);
    // As of one set (attention.cpp), with the joining's errors: those of the two logarithms, and
    // of results that are stored once by each forward and once more as joined; and dq is a sum of
    // two that were stored. A library rounds probabilities and scores' gradients too.
    const double rounding = p.dtype == DType::bf16 ? 0x1p-8 : p.dtype == DType::f16 ? 0x1p-11 : 0;
    const double p_error =
        2 * probability_error(p, x, keys) + (4 * largest(magnitudes(softmax.lse)) + 12) * kUnit;
    const double error = 3 * p_error + 2 * chain_error(p.keys) + 2 * chain_error(p.queries, 4) +
                         2 * sum_error(p.head_dim) + 8 * kUnit + (by_library ? 6 : 4) * rounding;
    const double steps = by_library && p.dtype == DType::f16
                             ? 0x1p-25 * static_cast<double>(p.keys + p.queries) * 4 * 6
                             : 1e-30;
    const auto near = [&](int tensor, const Doubles& values_of, const Doubles& sizes) {
      return stored(p.dtype, within(tensor, values_of, sizes, error, steps));
    };
    return std::vector{near(dq, exact.dq, size.dq), near(dk, exact.dk, size.dk),
                       near(dv, exact.dv, size.dv), close(lse, softmax.lse, p_error + 1e-30)};
  };
  c.expected = [=](const Case& in) { return oracle(in, false); };
  if (p.dtype != DType::f32)
    c.expected_of_library = [=](const Case& in) { return oracle(in, true); };
  return c;
}

}  // namespace

void add_joined_attention_cases(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (Joined j : {Joined{{1, 5, 9, 6, 2, 4}, 4}, Joined{{1, 70, 200, 4, 2, 16}, 64},
                     Joined{{1, 129, 257, 2, 2, 64}, 129}, Joined{{1, 300, 140, 2, 1, 64}, 1}}) {
      j.whole.causal = false;
      j.whole.dtype = dtype;
      const AttentionParams& p = j.whole;
      list.push_back(
          {"parts",
           fmt::format("joined {} over {} and {}, {} heads on {} of {} backward{}", p.queries,
                       j.cut, p.keys - j.cut, p.heads, p.kv_heads, p.head_dim, type_suffix(dtype)),
           [=] { return joined_case(j); }});
    }
}

}  // namespace onefold::cases

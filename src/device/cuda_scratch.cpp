#include "device/cuda_scratch.h"

#include <cmath>

#include "device/attention_parts.h"
#include "kernels/kernels.h"

namespace onefold {
namespace cuda {
namespace {

constexpr int64_t kAttentionSliceBytes = int64_t{2} << 30;
// Beyond, a sequence is cut: 16,384 tokens of 32 heads are not. What parts cost is in
// docs/benchmarks.md.
constexpr int64_t kAttentionWholeBytes = int64_t{18} << 30;
constexpr int64_t kAttentionSlackBytes = int64_t{1} << 20;  // the library's own small tables
constexpr int64_t kFloat = sizeof(float), kInt = sizeof(int32_t), kHalf = 2;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The gradients of a sequence's scores, in 16 bits: the library's tiles are 64 queries by 128 keys.
int64_t score_bytes(const AttentionShape& s) {
  return s.heads * round_up(s.query_length, 64) * round_up(s.key_length, 128) * kHalf;
}

class CudaScratch final : public KernelScratch {
 public:
  int64_t gemm_scratch_bytes(const Gemm&) const override {
    return kProductWorkspaceBytes + kProductWorkspaceAlign;
  }
  // In fp32 each piece's mean and deviation, and partial sums; in 16 bits partial sums alone, but
  // more of them.
  int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const override {
    const int64_t pieces = rows * groups, size = cols / groups;
    return std::max(2 * pieces + RowChunks(pieces).count * 2 * size,
                    norm_chunks(pieces).count * 3 * size) *
           kFloat;
  }
  // Fp32 is not the library's.
  int64_t attention_forward_scratch_bytes(const AttentionShape& s) const override {
    return s.dtype == DType::f32 ? 0 : kAttentionSlackBytes;
  }
  // The own kernel keeps dout · out of each row.
  int64_t attention_backward_scratch_bytes(const AttentionShape& s) const override {
    const int64_t own = s.batch * s.heads * s.query_length * kFloat;
    return s.dtype == DType::f32 ? own : std::max(own, attention_parts(s).end);
  }
  // Counts and ends of tokens; rows by token, unordered and in order.
  int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const override {
    return 2 * (vocabulary + rows) * kInt;
  }
  int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const override {
    return RowChunks(rows).count * cols * kFloat;
  }
  int64_t sum_squares_scratch_bytes(int64_t elems) const override {
    const int64_t chunk = squares_chunk(elems);
    return (elems + chunk - 1) / chunk * static_cast<int64_t>(sizeof(double));
  }
  // Sums of scores by expert, and of squares of the log-sum-exp.
  int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) const override {
    return route_chunks(tokens).count * (experts + 1) * static_cast<int64_t>(sizeof(double));
  }
  // Each chunk's gradient is added to the whole vocabulary's: few large chunks, few such passes.
  int64_t logits_bytes() const override { return int64_t{4} << 30; }
};

}  // namespace

int64_t attention_slice(const AttentionShape& s) {
  const int64_t most =
      std::max<int64_t>(1, kAttentionSliceBytes / std::max<int64_t>(1, score_bytes(s)));
  const int64_t slices = std::max<int64_t>(1, (s.batch + most - 1) / most);
  return std::max<int64_t>(1, (s.batch + slices - 1) / slices);  // all nearly as large
}

// Beside the scores' gradients: dout · out of each row, and the gradients of keys and values for
// each of the queries' heads, where heads share them.
int64_t attention_library_bytes(const AttentionShape& s, int64_t sequences) {
  const int64_t rows = s.heads * round_up(s.query_length, 64);
  const int64_t shared =
      s.heads == s.kv_heads ? 0 : 2 * s.heads * s.key_length * s.head_dim * kFloat;
  return sequences * (score_bytes(s) + rows * kFloat + shared) + kAttentionSlackBytes;
}

AttentionParts attention_parts(const AttentionShape& s) {
  constexpr int64_t kUnit = 128, kAlign = 256;
  if (score_bytes(s) <= kAttentionWholeBytes) {
    const int64_t slice = attention_slice(s),
                  lse = round_up(attention_library_bytes(s, slice), kAlign);
    return {.lse = lse, .end = lse + slice * s.heads * s.query_length * kFloat};
  }
  const auto most = static_cast<int64_t>(
      std::sqrt(static_cast<double>(kAttentionSliceBytes / (s.heads * kHalf))));
  const int64_t longest = std::max(s.query_length, s.key_length),
                runs = (longest + most - 1) / std::max<int64_t>(1, most);
  AttentionParts parts{.rows = round_up((longest + runs - 1) / runs, kUnit)};
  AttentionShape one = s;
  one.query_length = one.key_length = parts.rows;
  parts.lse = round_up(attention_library_bytes(one, 1), kAlign);
  int64_t end = parts.lse + round_up(s.heads * parts.rows * kFloat, kAlign);
  const auto take = [&](int64_t rows, int64_t heads, int64_t bytes) {
    const int64_t begin = end;
    end += round_up(rows * heads * s.head_dim * bytes, kAlign);
    return begin;
  };
  parts.dk_sums = take(s.key_length, s.kv_heads, kFloat);
  parts.dv_sums = take(s.key_length, s.kv_heads, kFloat);
  parts.dq_sums = take(parts.rows, s.heads, kFloat);
  parts.dq = take(parts.rows, s.heads, kHalf);
  parts.dk = take(parts.rows, s.kv_heads, kHalf);
  parts.dv = take(parts.rows, s.kv_heads, kHalf);
  parts.end = end;
  return parts;
}

}  // namespace cuda

std::unique_ptr<KernelScratch> make_cuda_scratch() { return std::make_unique<cuda::CudaScratch>(); }

}  // namespace onefold

// Final norm, the product with the vocabulary, and the cross-entropy. Logits exist for one chunk of
// tokens at a time.
#include <algorithm>

#include "model/unit.h"

namespace onefold {
namespace {

// Tokens of a chunk: as many as keep its logits near this size. Larger chunks feed the matrix
// product better (512 rows run 6 % faster than 256 on GPT-2's vocabulary), smaller ones save
// memory.
constexpr int64_t kChunkBytes = int64_t{100} << 20;

class Head final : public Unit {
 public:
  explicit Head(const ModelSpec& s) : Unit(s, "head", static_cast<int>(s.num_layers) + 1) {
    norm_ = add(true, "norm.weight", 1, s.hidden_size, Init::ones, false);
    norm_bias_ = add(s.norm == Norm::layernorm, "norm.bias", 1, s.hidden_size, Init::zeros, false);
    weight_ = add(!s.tie_embeddings, "weight", s.vocab_size, s.hidden_size, Init::normal, true);
    if (s.tie_embeddings) {
      shared_.push_back({0, 0});
      weight_ = static_cast<int>(params_.size());
    }
  }

  int64_t saved_elems(int64_t, int64_t) const override { return 0; }

  // Losses only (evaluation).
  void forward(const UnitCall& call) const override { run(call, false); }

  void backward(const UnitCall& call) const override { run(call, true); }

  void logits(const UnitCall& call, Tensor rows, Tensor dst) const {
    const Arena::Scope scope(call.arena);
    Tensor normed = call.arena.take(rows.rows, rows.cols);
    norm(call, rows, normed);
    call.gemm({.a = normed, .b = at(call.params, weight_), .dst = dst, .b_transposed = true});
  }

 private:
  void norm(const UnitCall& call, Tensor x, Tensor dst) const {
    call.kernels.norm_forward(spec_.norm, x, 1, at(call.params, norm_), at(call.params, norm_bias_),
                              spec_.norm_eps, dst);
  }

  void run(const UnitCall& call, bool backward) const {
    const Arena::Scope scope(call.arena);
    const int64_t tokens = call.input.rows;
    Tensor normed = call.arena.take(tokens, spec_.hidden_size);
    norm(call, call.input, normed);
    {
      const Arena::Scope inner(call.arena);
      const int64_t chunk = head_chunk_tokens(tokens, spec_.vocab_size);
      Tensor logits = call.arena.take(chunk, spec_.vocab_size);
      for (int64_t begin = 0; begin < tokens; begin += chunk)
        run_chunk(call, backward, normed, logits, begin, std::min(chunk, tokens - begin));
    }
    if (!backward) return;
    // Each chunk has replaced its rows of `normed` by their gradient.
    Tensor scratch =
        call.arena.take(1, call.kernels.norm_backward_scratch(tokens, spec_.hidden_size, 1));
    call.kernels.norm_backward(spec_.norm, call.input, 1, at(call.params, norm_), spec_.norm_eps,
                               normed, call.stream, false, at(call.grads, norm_),
                               at(call.grads, norm_bias_), call.accumulate, scratch);
  }

  void run_chunk(const UnitCall& call, bool backward, Tensor normed, Tensor logits, int64_t begin,
                 int64_t count) const {
    Tensor x = normed.row_range(begin, count), chunk = logits.row_range(0, count);
    Tensor weight = at(call.params, weight_);
    call.gemm({.a = x, .b = weight, .dst = chunk, .b_transposed = true});
    call.kernels.cross_entropy(chunk, call.batch.targets.col_range(begin, count),
                               backward ? call.loss_scale : 0, call.losses.col_range(begin, count));
    if (!backward) return;
    if (Tensor dweight = at(call.grads, weight_); !dweight.empty())
      call.gemm({.a = chunk,
                 .b = x,
                 .dst = dweight,
                 .a_transposed = true,
                 .accumulate = call.accumulate || begin > 0});
    call.gemm({.a = chunk, .b = weight, .dst = x});
  }

  int norm_, norm_bias_, weight_;
};

}  // namespace

int64_t head_chunk_tokens(int64_t tokens, int64_t vocabulary) {
  const int64_t fitting = kChunkBytes / (vocabulary * 4) / 64 * 64;
  return std::min(tokens, std::max<int64_t>(64, fitting));
}

std::unique_ptr<Unit> make_head(const ModelSpec& spec) { return std::make_unique<Head>(spec); }

void head_logits(const UnitCall& call, const Unit& head, Tensor rows, Tensor logits) {
  dynamic_cast<const Head&>(head).logits(call, rows, logits);
}

}  // namespace onefold

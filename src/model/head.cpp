// Final norm, the product with the vocabulary, and the cross-entropy. Logits exist for one chunk of
// tokens at a time. Shares of the vocabulary exchange three numbers of each token instead of
// logits.
#include <algorithm>

#include "model/unit.h"

namespace onefold {
namespace {

enum Temp : size_t { kNormed, kLogits, kStats, kCapped };

// Phases: the norm; two for each chunk of tokens, its logits and what follows from them; and, in
// backward, the gradient through the norm.
class Head final : public Unit {
 public:
  Head(const ModelSpec& s, int64_t logits_bytes, const Share& share)
      : Unit(s, share, "head", static_cast<int>(s.num_layers) + 1),
        logits_bytes_(logits_bytes),
        // The same for all shares, which go through the chunks together.
        width_(share.whole() ? s.vocab_size : vocabulary_rows(s, share)) {
    norm_ = add(true, "head.norm.weight", 1, s.hidden_size, norm_init(), false);
    norm_bias_ = add(s.has_norm_bias(), "head.norm.bias", 1, s.hidden_size, Init::zeros, false);
    sum_of_norm(norm_, norm_bias_);
    weight_ = add_vocabulary(!s.tie_embeddings, "head.weight");
    const Span mine = vocabulary_of(s, share);
    bias_ = add_divided(s.head_bias, "head.bias", 1, s.vocab_size, Init::zeros, false,
                        {{0, mine.first, 1, mine.size}});
    if (s.tie_embeddings) {
      shared_.push_back({0, 0});
      weight_ = static_cast<int>(params_.size());
    }
  }

  bool has_loss() const override { return true; }
  int64_t saved_bytes(int64_t, int64_t, DType) const override { return 0; }

  int phases(bool backward, int64_t tokens) const override {
    return static_cast<int>(2 * chunks(tokens) + (backward ? 2 : 1));
  }

  Phase phase(bool backward, int index, int64_t tokens) const override {
    if (index == 0) return {"norm"};
    if (index > 2 * chunks(tokens)) return {"norm gradient"};
    if (index % 2 == 1) return {"logits", Role::gather};
    return backward ? Phase{"loss and gradients", Role::sum} : Phase{"loss"};
  }

  void run(bool backward, int index, UnitCall& call) const override {
    const int64_t tokens = call.input.rows, chunk = (index - 1) / 2;
    if (index == 0) return norm(call, call.input, call.temp(kNormed, tokens, spec_.hidden_size));
    if (chunk == chunks(tokens)) return norm_gradient(call);
    if (index % 2 == 1) return chunk_logits(call, chunk);
    chunk_loss(call, chunk, backward);
  }

  Tensor boundary(bool, int index, const UnitCall& call) const override {
    const int64_t chunk = (index - 1) / 2;
    return index % 2 == 1 ? stats_of(call, chunk) : rows_of(call, chunk);
  }

  void logits(UnitCall& call, Tensor rows, Tensor dst) const {
    const Arena::Scope scope(call.arena);
    const Tensor normed = call.take(rows.rows, rows.cols);
    norm(call, rows, normed);
    call.gemm({.a = normed,
               .b = at(call.params, weight_),
               .dst = dst,
               .b_transposed = true,
               .bias = at(call.params, bias_)});
    if (spec_.logits_soft_cap > 0) call.kernels.soft_cap(dst, spec_.logits_soft_cap, dst);
  }

 private:
  void norm(const UnitCall& call, Tensor x, Tensor dst) const {
    call.kernels.norm_forward(spec_.norm, x, 1, at(call.params, norm_), at(call.params, norm_bias_),
                              spec_.norm_eps, dst);
    if (spec_.logits_scale != 1) call.kernels.scale(dst, spec_.logits_scale, dst);
  }

  // A bias has none.
  int64_t slack() const { return bias_ < 0 ? vocabulary_slack() : 0; }

  // As many of a micro-batch's tokens as keep the logits near their size, in chunks of nearly one
  // size: a short last one would cost nearly as much as a whole.
  int64_t chunk_tokens(int64_t tokens) const {
    const int64_t most = std::max<int64_t>(64, logits_bytes_ / (width_ * 4) / 64 * 64);
    const int64_t count = std::max<int64_t>(1, (tokens + most - 1) / most);
    return std::min(tokens, ((tokens + count - 1) / count + 63) / 64 * 64);
  }
  int64_t chunks(int64_t tokens) const {
    const int64_t chunk = chunk_tokens(tokens);
    return (tokens + chunk - 1) / chunk;
  }
  int64_t begin_of(const UnitCall& call, int64_t chunk) const {
    return chunk * chunk_tokens(call.input.rows);
  }
  int64_t count_of(const UnitCall& call, int64_t chunk) const {
    return std::min(chunk_tokens(call.input.rows), call.input.rows - begin_of(call, chunk));
  }
  Tensor rows_of(const UnitCall& call, int64_t chunk) const {
    return call.temps[kNormed].row_range(begin_of(call, chunk), count_of(call, chunk));
  }
  Tensor logits_of(const UnitCall& call, int64_t chunk) const {
    return call.temps[kLogits].row_range(0, count_of(call, chunk)).col_range(0, spec_.vocab_size);
  }
  Tensor targets_of(const UnitCall& call, int64_t chunk) const {
    return call.batch.targets.col_range(begin_of(call, chunk), count_of(call, chunk));
  }
  // What shares tell each other of a chunk: [3 * shares, tokens]; this one's are three of its rows.
  Tensor stats_of(const UnitCall& call, int64_t chunk) const {
    return matrix(call.temps[kStats].data, kShareStats * share_.count, count_of(call, chunk));
  }

  void chunk_logits(UnitCall& call, int64_t chunk) const {
    if (chunk == 0) call.arena_mark = call.arena.mark();
    call.temp(kLogits, chunk_tokens(call.input.rows), spec_.vocab_size + slack());
    call.gemm({.a = rows_of(call, chunk),
               .b = at(call.params, weight_),
               .dst = logits_of(call, chunk),
               .b_transposed = true,
               .bias = at(call.params, bias_),
               .slack = slack()});
    if (spec_.logits_soft_cap > 0)
      call.kernels.soft_cap(logits_of(call, chunk), spec_.logits_soft_cap, logits_of(call, chunk));
    if (share_.whole()) return;
    if (chunk == 0)
      call.temps[kStats] =
          call.arena.take(kShareStats * share_.count, chunk_tokens(call.input.rows), DType::f32);
    call.kernels.share_softmax(
        logits_of(call, chunk), targets_of(call, chunk),
        stats_of(call, chunk).row_range(kShareStats * share_.index, kShareStats));
  }

  void chunk_loss(UnitCall& call, int64_t chunk, bool backward) const {
    const int64_t begin = begin_of(call, chunk);
    const Tensor x = rows_of(call, chunk), logits = logits_of(call, chunk);
    const Tensor scale = backward ? call.loss_scale : Tensor{};
    const Tensor losses = call.losses.col_range(begin, count_of(call, chunk));
    Tensor capped;  // logits become their gradient, to which what they were belongs
    if (backward && spec_.logits_soft_cap > 0) {
      capped = call.temp(kCapped, chunk_tokens(call.input.rows), spec_.vocab_size)
                   .row_range(0, count_of(call, chunk));
      call.kernels.copy(logits, capped);
    }
    if (share_.whole())
      call.kernels.cross_entropy(logits, targets_of(call, chunk), scale, losses);
    else
      call.kernels.share_cross_entropy(logits, targets_of(call, chunk), stats_of(call, chunk),
                                       scale, losses);
    if (!backward) return;
    if (!capped.empty())
      call.kernels.soft_cap_backward(capped, spec_.logits_soft_cap, logits, logits);
    if (const Tensor dbias = at(call.grads, bias_); !dbias.empty()) {
      const Arena::Scope scope(call.arena);
      call.kernels.column_sum(
          logits, dbias, call.accumulate || begin > 0,
          call.arena.take_bytes(call.kernels.column_sum_scratch_bytes(logits.rows, logits.cols)));
    }
    if (const Tensor dweight = at(call.grads, weight_); !dweight.empty())
      call.gemm({.a = logits,
                 .b = x,
                 .dst = dweight,
                 .a_transposed = true,
                 .accumulate = call.accumulate || begin > 0,
                 .slack = slack()});
    call.gemm({.a = logits, .b = at(call.params, weight_), .dst = x, .slack = slack()});
  }

  // Each chunk has replaced its rows of the normalised input by their gradient.
  void norm_gradient(UnitCall& call) const {
    call.arena.release_to(call.arena_mark);
    const Tensor dnormed = call.temps[kNormed];
    if (spec_.logits_scale != 1) call.kernels.scale(dnormed, spec_.logits_scale, dnormed);
    const int64_t bytes =
        call.kernels.norm_backward_scratch_bytes(call.input.rows, spec_.hidden_size, 1);
    call.kernels.norm_backward(spec_.norm, call.input, 1, at(call.params, norm_), spec_.norm_eps,
                               dnormed, call.dinput, false, at(call.grads, norm_),
                               at(call.grads, norm_bias_), {}, call.accumulate,
                               call.arena.take_bytes(bytes));
  }

  const int64_t logits_bytes_, width_;
  int norm_, norm_bias_, weight_, bias_;
};

}  // namespace

std::unique_ptr<Unit> make_head(const ModelSpec& spec, int64_t logits_bytes, const Share& share) {
  return std::make_unique<Head>(spec, logits_bytes, share);
}

void head_logits(UnitCall& call, const Unit& head, Tensor rows, Tensor logits) {
  dynamic_cast<const Head&>(head).logits(call, rows, logits);
}

}  // namespace onefold

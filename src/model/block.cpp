// One pre-norm transformer block: x += out(attention(norm(x))); x += down(act(up(norm(x)))).
//
// Kept from forward to backward, in elements for each token: the input (by the engine), q/k/v, the
// attention's result, the stream between the two halves, and the MLP before its activation. Norms
// and activations are computed again in backward: they cost a pass over memory, and keeping them
// would cost half as much memory again.
#include "model/unit.h"

namespace onefold {
namespace {

enum Site : uint32_t { kProbabilities = 0, kAttentionOut = 1, kMlpOut = 2 };

// Cuts a flat tensor into aligned pieces. Over a null tensor it only counts.
class Carver {
 public:
  explicit Carver(Tensor flat) : base_(static_cast<float*>(flat.data)) {}
  Tensor next(int64_t rows, int64_t cols) {
    Tensor piece = matrix(base_ ? base_ + top_ : nullptr, rows, cols);
    constexpr int64_t kAlign = Ledger::kAlignment / 4;
    top_ += (rows * cols + kAlign - 1) / kAlign * kAlign;
    return piece;
  }
  int64_t elems() const { return top_; }

 private:
  float* base_;
  int64_t top_ = 0;
};

struct Saved {
  Tensor qkv;        // [tokens, qkv_size]: rotated, unless qk_norm: then as the product left it
  Tensor qk;         // [tokens, query_size + kv_size]: normalised and rotated; only with qk_norm
  Tensor attention;  // [tokens, query_size]
  Tensor lse;        // [batch*heads, sequence]
  Tensor middle;     // [tokens, hidden]
  Tensor up;         // [tokens, up_size] before the activation
  int64_t elems;

  Saved(const ModelSpec& spec, int64_t up_size, Tensor flat, int64_t batch, int64_t sequence) {
    Carver carver(flat);
    const int64_t tokens = batch * sequence;
    qkv = carver.next(tokens, spec.qkv_size());
    if (spec.qk_norm) qk = carver.next(tokens, spec.query_size() + spec.kv_size());
    attention = carver.next(tokens, spec.query_size());
    lse = carver.next(batch * spec.num_heads, sequence);
    middle = carver.next(tokens, spec.hidden_size);
    up = carver.next(tokens, up_size);
    elems = carver.elems();
  }
};

class Block final : public Unit {
 public:
  Block(const ModelSpec& s, int layer)
      : Unit(s, fmt::format("block.{}", layer), layer + 1),
        up_size_(s.intermediate_size * (s.gated ? 2 : 1)) {
    const bool norm_bias = s.norm == Norm::layernorm;
    const int64_t d = s.hidden_size;
    norm1_ = add(true, "attention_norm.weight", 1, d, Init::ones, false);
    norm1_bias_ = add(norm_bias, "attention_norm.bias", 1, d, Init::zeros, false);
    qkv_ = add(true, "attention.qkv.weight", s.qkv_size(), d, Init::normal, true);
    qkv_bias_ = add(s.qkv_bias, "attention.qkv.bias", 1, s.qkv_size(), Init::zeros, false);
    q_norm_ = add(s.qk_norm, "attention.q_norm.weight", 1, s.head_dim, Init::ones, false);
    k_norm_ = add(s.qk_norm, "attention.k_norm.weight", 1, s.head_dim, Init::ones, false);
    out_ = add(true, "attention.out.weight", d, s.query_size(), Init::residual, true);
    out_bias_ = add(s.attention_out_bias, "attention.out.bias", 1, d, Init::zeros, false);
    norm2_ = add(true, "mlp_norm.weight", 1, d, Init::ones, false);
    norm2_bias_ = add(norm_bias, "mlp_norm.bias", 1, d, Init::zeros, false);
    up_ = add(true, "mlp.up.weight", up_size_, d, Init::normal, true);
    up_bias_ = add(s.mlp_bias, "mlp.up.bias", 1, up_size_, Init::zeros, false);
    down_ = add(true, "mlp.down.weight", d, s.intermediate_size, Init::residual, true);
    down_bias_ = add(s.mlp_bias, "mlp.down.bias", 1, d, Init::zeros, false);
  }

  int64_t saved_elems(int64_t batch, int64_t sequence) const override {
    return Saved(spec_, up_size_, {}, batch, sequence).elems;
  }

  void forward(const UnitCall& call) const override {
    const Arena::Scope scope(call.arena);
    const Saved saved(spec_, up_size_, call.saved, call.batch.batch, call.batch.sequence);
    attention_forward(call, saved);
    mlp_forward(call, saved);
  }

  void backward(const UnitCall& call) const override {
    const Saved saved(spec_, up_size_, call.saved, call.batch.batch, call.batch.sequence);
    mlp_backward(call, saved);
    attention_backward(call, saved);
  }

 private:
  void norm(const UnitCall& call, Tensor x, int weight, int bias, Tensor dst) const {
    call.kernels.norm_forward(spec_.norm, x, 1, at(call.params, weight), at(call.params, bias),
                              spec_.norm_eps, dst);
  }

  // The stream's gradient through a norm: stream += d(norm)/dx · dy.
  void norm_backward(const UnitCall& call, Tensor x, int weight, int bias, Tensor dy) const {
    const Arena::Scope scope(call.arena);
    Tensor scratch = call.arena.take(1, call.kernels.norm_backward_scratch(x.rows, x.cols, 1));
    call.kernels.norm_backward(spec_.norm, x, 1, at(call.params, weight), spec_.norm_eps, dy,
                               call.stream, true, at(call.grads, weight), at(call.grads, bias),
                               call.accumulate, scratch);
  }

  // dst = residual + dropout(x · weight' + bias)
  void project_to_stream(const UnitCall& call, Tensor x, int weight, int bias, Site site,
                         Tensor residual, Tensor dst) const {
    Gemm product{.a = x,
                 .b = at(call.params, weight),
                 .dst = dst,
                 .b_transposed = true,
                 .bias = at(call.params, bias)};
    if (call.dropout == 0) product.residual = residual;
    call.gemm(product);
    if (call.dropout > 0)
      call.kernels.dropout(dst, call.dropout_at(static_cast<uint32_t>(index_), site),
                           call.batch.sequence, residual, dst);
  }

  // Gradients of weight and bias of y = x · weight' + bias.
  void weight_gradient(const UnitCall& call, Tensor x, Tensor dy, int weight, int bias) const {
    if (at(call.grads, weight).empty()) return;
    call.gemm({.a = dy,
               .b = x,
               .dst = at(call.grads, weight),
               .a_transposed = true,
               .accumulate = call.accumulate});
    if (bias < 0) return;
    const Arena::Scope scope(call.arena);
    Tensor scratch = call.arena.take(1, call.kernels.column_sum_scratch(dy.rows, dy.cols));
    call.kernels.column_sum(dy, at(call.grads, bias), call.accumulate, scratch);
  }

  // The branch's share of the stream's gradient: itself, or a masked copy under dropout.
  Tensor branch_gradient(const UnitCall& call, Site site) const {
    if (call.dropout == 0) return call.stream;
    Tensor masked = call.arena.take(call.stream.rows, call.stream.cols);
    call.kernels.dropout(call.stream, call.dropout_at(static_cast<uint32_t>(index_), site),
                         call.batch.sequence, {}, masked);
    return masked;
  }

  AttentionShape attention_shape(const UnitCall& call) const {
    const int64_t keys = call.batch.sequence + (call.cache ? call.cache->length : 0);
    return {call.batch.batch, call.batch.sequence, keys,
            spec_.num_heads,  spec_.num_kv_heads,  spec_.head_dim};
  }

  // Normalises (qk_norm) and rotates (rope) queries and keys; returns where they are now.
  Tensor prepare_qk(const UnitCall& call, const Saved& saved) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    Tensor qk = saved.qkv.col_range(0, q + kv);
    if (spec_.qk_norm) {
      call.kernels.norm_forward(Norm::rmsnorm, qk.col_range(0, q), spec_.num_heads,
                                at(call.params, q_norm_), {}, spec_.norm_eps,
                                saved.qk.col_range(0, q));
      call.kernels.norm_forward(Norm::rmsnorm, qk.col_range(q, kv), spec_.num_kv_heads,
                                at(call.params, k_norm_), {}, spec_.norm_eps,
                                saved.qk.col_range(q, kv));
      qk = saved.qk;
    }
    if (spec_.positions == Positions::rope) {
      const int64_t first = call.cache ? call.cache->length : 0;
      call.kernels.rope(qk, spec_.num_heads + spec_.num_kv_heads, call.rope, first,
                        call.batch.sequence, false);
    }
    return qk;
  }

  void attention_forward(const UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    Tensor normed = call.arena.take(call.input.rows, call.input.cols);
    norm(call, call.input, norm1_, norm1_bias_, normed);
    call.gemm({.a = normed,
               .b = at(call.params, qkv_),
               .dst = saved.qkv,
               .b_transposed = true,
               .bias = at(call.params, qkv_bias_)});
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    Tensor qk = prepare_qk(call, saved);
    Tensor keys = qk.col_range(q, kv), values = saved.qkv.col_range(q + kv, kv);
    const AttentionShape shape = attention_shape(call);
    Tensor scratch = call.arena.take(1, call.kernels.attention_forward_scratch(shape));
    const Dropout dropout = call.dropout_at(static_cast<uint32_t>(index_), kProbabilities);
    if (call.cache) {
      attend_over_cache(call, shape, qk.col_range(0, q), keys, values, saved, scratch);
    } else {
      call.kernels.attention_forward(shape, qk.col_range(0, q), keys, values, saved.attention,
                                     saved.lse, dropout, scratch);
    }
    project_to_stream(call, saved.attention, out_, out_bias_, kAttentionOut, call.input,
                      saved.middle);
  }

  // Appends the new keys and values to each sequence's cache, and attends over it.
  void attend_over_cache(const UnitCall& call, const AttentionShape& shape, Tensor queries,
                         Tensor keys, Tensor values, const Saved& saved, Tensor scratch) const {
    KvCache& cache = *call.cache;
    require(shape.key_length <= cache.capacity, "a cache of {} positions, {} needed",
            cache.capacity, shape.key_length);
    AttentionShape one = shape;
    one.batch = 1;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const int64_t row = b * shape.query_length, start = b * cache.capacity;
      call.kernels.copy(keys.row_range(row, shape.query_length),
                        cache.keys.row_range(start + cache.length, shape.query_length));
      call.kernels.copy(values.row_range(row, shape.query_length),
                        cache.values.row_range(start + cache.length, shape.query_length));
      call.kernels.attention_forward(one, queries.row_range(row, shape.query_length),
                                     cache.keys.row_range(start, shape.key_length),
                                     cache.values.row_range(start, shape.key_length),
                                     saved.attention.row_range(row, shape.query_length),
                                     saved.lse.row_range(b * shape.heads, shape.heads), {},
                                     scratch);
    }
  }

  void attention_backward(const UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const int64_t q = spec_.query_size(), kv = spec_.kv_size(), tokens = call.input.rows;
    Tensor dqkv = call.arena.take(tokens, spec_.qkv_size());
    {
      const Arena::Scope inner(call.arena);
      Tensor dy = branch_gradient(call, kAttentionOut);
      weight_gradient(call, saved.attention, dy, out_, out_bias_);
      Tensor dattention = call.arena.take(tokens, q);
      call.gemm({.a = dy, .b = at(call.params, out_), .dst = dattention});
      const AttentionShape shape = attention_shape(call);
      Tensor qk = spec_.qk_norm ? saved.qk : saved.qkv;
      Tensor scratch = call.arena.take(1, call.kernels.attention_backward_scratch(shape));
      call.kernels.attention_backward(
          shape, qk.col_range(0, q), qk.col_range(q, kv), saved.qkv.col_range(q + kv, kv),
          saved.attention, dattention, saved.lse, dqkv.col_range(0, q), dqkv.col_range(q, kv),
          dqkv.col_range(q + kv, kv),
          call.dropout_at(static_cast<uint32_t>(index_), kProbabilities), scratch);
      unprepare_qk(call, saved, dqkv);
    }
    Tensor normed = call.arena.take(tokens, spec_.hidden_size);
    norm(call, call.input, norm1_, norm1_bias_, normed);
    weight_gradient(call, normed, dqkv, qkv_, qkv_bias_);
    call.gemm({.a = dqkv,
               .b = at(call.params, qkv_),
               .dst = normed});  // normed is done with: it becomes its gradient
    norm_backward(call, call.input, norm1_, norm1_bias_, normed);
  }

  // The backward of prepare_qk on dq and dk, in place.
  void unprepare_qk(const UnitCall& call, const Saved& saved, Tensor dqkv) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    if (spec_.positions == Positions::rope)
      call.kernels.rope(dqkv.col_range(0, q + kv), spec_.num_heads + spec_.num_kv_heads, call.rope,
                        0, call.batch.sequence, true);
    if (!spec_.qk_norm) return;
    head_norm_backward(call, saved.qkv.col_range(0, q), spec_.num_heads, q_norm_,
                       dqkv.col_range(0, q));
    head_norm_backward(call, saved.qkv.col_range(q, kv), spec_.num_kv_heads, k_norm_,
                       dqkv.col_range(q, kv));
  }

  void head_norm_backward(const UnitCall& call, Tensor x, int64_t heads, int weight,
                          Tensor dy) const {
    const Arena::Scope scope(call.arena);
    Tensor scratch = call.arena.take(1, call.kernels.norm_backward_scratch(x.rows, x.cols, heads));
    call.kernels.norm_backward(Norm::rmsnorm, x, heads, at(call.params, weight), spec_.norm_eps, dy,
                               dy, false, at(call.grads, weight), {}, call.accumulate, scratch);
  }

  void mlp_forward(const UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const int64_t tokens = call.input.rows;
    {
      const Arena::Scope inner(call.arena);
      Tensor normed = call.arena.take(tokens, spec_.hidden_size);
      norm(call, saved.middle, norm2_, norm2_bias_, normed);
      call.gemm({.a = normed,
                 .b = at(call.params, up_),
                 .dst = saved.up,
                 .b_transposed = true,
                 .bias = at(call.params, up_bias_)});
    }
    if (call.output.empty()) return;  // computed again for backward, which needs no more than `up`
    Tensor activated = call.arena.take(tokens, spec_.intermediate_size);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    project_to_stream(call, activated, down_, down_bias_, kMlpOut, saved.middle, call.output);
  }

  void mlp_backward(const UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const int64_t tokens = call.input.rows;
    Tensor dup = call.arena.take(tokens, up_size_);
    {
      const Arena::Scope inner(call.arena);
      Tensor dy = branch_gradient(call, kMlpOut);
      Tensor dactivated = call.arena.take(tokens, spec_.intermediate_size);
      Tensor activated = call.arena.take(tokens, spec_.intermediate_size);
      call.gemm({.a = dy, .b = at(call.params, down_), .dst = dactivated});
      call.kernels.activation_backward(spec_.activation, spec_.gated, saved.up, dactivated, dup,
                                       activated);
      weight_gradient(call, activated, dy, down_, down_bias_);
    }
    Tensor normed = call.arena.take(tokens, spec_.hidden_size);
    norm(call, saved.middle, norm2_, norm2_bias_, normed);
    weight_gradient(call, normed, dup, up_, up_bias_);
    call.gemm({.a = dup, .b = at(call.params, up_), .dst = normed});
    norm_backward(call, saved.middle, norm2_, norm2_bias_, normed);
  }

  const int64_t up_size_;
  int norm1_, norm1_bias_, qkv_, qkv_bias_, q_norm_, k_norm_, out_, out_bias_;
  int norm2_, norm2_bias_, up_, up_bias_, down_, down_bias_;
};

}  // namespace

std::unique_ptr<Unit> make_block(const ModelSpec& spec, int layer) {
  return std::make_unique<Block>(spec, layer);
}

}  // namespace onefold

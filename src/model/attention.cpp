// A block's attention: output = input + dropout(out(attention(norm(input)))); branch.h has what may
// come between.
//
// Kept from forward to backward, in elements for each token: the input (by the engine), q/k/v and
// the attention's result; with a norm after it, also what that has normalised. The norm before is
// computed again in backward: it costs a pass over memory, and keeping it would cost as much memory
// as the input.
#include "model/branch.h"

namespace onefold {
namespace {

struct Saved {
  Tensor qkv;        // [tokens, qkv_size]: rotated, unless qk_norm: then as the product left it
  Tensor qk;         // [tokens, query_size + kv_size]: normalised and rotated; only with qk_norm
  Tensor attention;  // [tokens, query_size]
  Tensor lse;        // [batch*heads, sequence] f32
  Tensor projected;  // [tokens, hidden_size]; only with a norm after it
  int64_t bytes;

  Saved(const ModelSpec& spec, Tensor block, int64_t batch, int64_t sequence, DType type) {
    Carver carver(block);
    const int64_t tokens = batch * sequence;
    qkv = carver.next(tokens, spec.qkv_size(), type);
    if (spec.qk_norm) qk = carver.next(tokens, spec.query_size() + spec.kv_size(), type);
    attention = carver.next(tokens, spec.query_size(), type);
    lse = carver.next(batch * spec.num_heads, sequence, DType::f32);
    if (spec.norm_after()) projected = carver.next(tokens, spec.hidden_size, type);
    bytes = carver.bytes();
  }
};

enum Temp : size_t { kDqkv, kDy, kNormed };

class Attention final : public Branch {
 public:
  Attention(const ModelSpec& s, int block, const Share& share)
      : Branch(s, share, block, "attention", 0, DropoutSite::attention_out),
        first_head_(heads_of(s, share).first) {
    const int64_t d = s.hidden_size;
    const std::string in = prefix_ + "attention.";
    qkv_ = add_divided(true, in + "qkv.weight", s.qkv_size(), d, Init::normal, true, qkv_rows(d));
    note_replicas(qkv_, d);
    qkv_bias_ = add_divided(s.qkv_bias, in + "qkv.bias", 1, s.qkv_size(), Init::zeros, false,
                            transposed(qkv_rows(1)));
    note_replicas(qkv_bias_, 1);
    const bool whole = s.qk_norm_whole;
    q_norm_ = add(s.qk_norm, in + "q_norm.weight", 1, whole ? s.query_size() : s.head_dim,
                  norm_init(), false);
    note_sum(q_norm_);
    k_norm_ = add(s.qk_norm, in + "k_norm.weight", 1, whole ? s.kv_size() : s.head_dim, norm_init(),
                  false);
    note_sum(k_norm_);
    out_ = add_divided(true, in + "out.weight", d, s.query_size(), Init::residual, true,
                       {{0, first_head_ * s.head_dim, d, spec_.query_size()}});
    out_bias_ = add(s.attention_out_bias, in + "out.bias", 1, d, Init::zeros, false);
    qkv_adapters_ = add_adapters("attention.qkv.weight");
    out_adapters_ = add_adapters("attention.out.weight");
  }

  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    return Saved(spec_, {}, batch, sequence, type).bytes;
  }

  int phases(bool backward, int64_t) const override { return backward ? 5 + post() : 4; }

  Phase phase(bool backward, int index, int64_t) const override {
    static constexpr Phase kForward[] = {
        {"qkv", Role::exchange}, {"attend", Role::exchange}, {"out", Role::sum}, {"residual"}};
    static constexpr Phase kBackward[] = {{"post norm weights", Role::none, true},
                                          {"out weights", Role::none, true},
                                          {"attend", Role::exchange},
                                          {"qkv weights", Role::none, true},
                                          {"input", Role::sum},
                                          {"norm"}};
    return backward ? kBackward[index + 1 - post()] : kForward[index];
  }

  void run(bool backward, int index, UnitCall& call) const override {
    static constexpr Step kForward[] = {&Attention::project_in, &Attention::attend,
                                        &Attention::project, &Attention::add_residual};
    static constexpr Step kBackward[] = {&Attention::post_weights,    &Attention::out_weights,
                                         &Attention::attend_backward, &Attention::qkv_weights,
                                         &Attention::input_gradient,  &Attention::norm_gradient};
    (this->*(backward ? kBackward[index + 1 - post()] : kForward[index]))(call, saved_of(call));
  }

  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    if (backward && index == post() + 1) return call.temps[kDqkv];
    if (backward && index == post() + 3) return call.temps[kNormed];
    if (!backward && index == 2) return projected_at(call, saved_of(call).projected);
    if (!backward && index == 0) return saved_of(call).qkv;
    if (!backward && index == 1) return saved_of(call).attention;
    return Unit::boundary(backward, index, call);
  }

 private:
  using Step = void (Attention::*)(UnitCall&, const Saved&) const;

  // Phases of backward before the first.
  int post() const { return spec_.norm_after() ? 1 : 0; }

  // This share's rows of queries, of keys and of values in the whole product's.
  std::vector<Box> qkv_rows(int64_t cols) const {
    const int64_t dim = whole_.head_dim, q = whole_.query_size(), kv = whole_.kv_size();
    const Span keys = kv_heads_of(whole_, share_);
    return {{first_head_ * dim, 0, spec_.query_size(), cols},
            {q + keys.first * dim, 0, spec_.kv_size(), cols},
            {q + kv + keys.first * dim, 0, spec_.kv_size(), cols}};
  }
  static std::vector<Box> transposed(std::vector<Box> boxes) {
    for (Box& box : boxes) box = {box.col, box.row, box.cols, box.rows};
    return boxes;
  }
  // Of heads that several shares hold, each makes the gradient of its own queries.
  void note_replicas(int place, int64_t cols) {
    const int replicas = kv_replicas(whole_, share_.count);
    if (place < 0 || replicas == 1) return;
    ParamSpec& param = params_[static_cast<size_t>(place)];
    param.summed_from = spec_.query_size() * cols;
    if (share_.index % replicas != 0) param.own = param.summed_from;
  }
  // Of weights that all heads have in common, each share makes the gradient of its own heads.
  void note_sum(int place) {
    if (place < 0 || share_.whole()) return;
    params_[static_cast<size_t>(place)].summed_from = 0;
    params_[static_cast<size_t>(place)].summed_over_all = true;
  }

  Saved saved_of(const UnitCall& call) const {
    return {spec_, call.saved, call.batch.batch, call.batch.sequence, call.type()};
  }

  AttentionShape shape_of(const UnitCall& call) const {
    const int64_t keys = call.batch.sequence + (call.cache ? call.cache->length : 0);
    return {.batch = call.batch.batch,
            .query_length = call.batch.sequence,
            .key_length = keys,
            .heads = spec_.num_heads,
            .kv_heads = spec_.num_kv_heads,
            .head_dim = spec_.head_dim,
            .starts = call.batch.starts,
            .dtype = call.type(),
            .first_head = first_head_,
            .window = spec_.window_of(block()),
            .scale = spec_.attention_scale,
            .soft_cap = spec_.attention_soft_cap,
            .alibi = spec_.positions == Positions::alibi ? spec_.alibi_scale : 0,
            .alibi_heads = whole_.num_heads};
  }

  RowPositions positions_of(const UnitCall& call) const {
    return {call.cache ? call.cache->length : 0, call.batch.sequence, call.batch.starts};
  }

  void project_in(UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const Tensor normed = norm(call, call.take(call.input.rows, call.input.cols));
    call.gemm({.a = normed,
               .b = at(call.params, qkv_),
               .dst = saved.qkv,
               .b_transposed = true,
               .bias = at(call.params, qkv_bias_)});
    adapt(call, normed, saved.qkv, qkv_adapters_);
  }

  // Normalises (qk_norm) and rotates (rope) queries and keys; returns where they are now.
  Tensor prepare_qk(const UnitCall& call, const Saved& saved) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    Tensor qk = saved.qkv.col_range(0, q + kv);
    if (spec_.qk_norm) {
      call.kernels.norm_forward(qk_norm(), qk.col_range(0, q), groups_of(spec_.num_heads),
                                at(call.params, q_norm_), {}, spec_.norm_eps,
                                saved.qk.col_range(0, q));
      call.kernels.norm_forward(qk_norm(), qk.col_range(q, kv), groups_of(spec_.num_kv_heads),
                                at(call.params, k_norm_), {}, spec_.norm_eps,
                                saved.qk.col_range(q, kv));
      qk = saved.qk;
    }
    if (spec_.rotates(block()))
      call.kernels.rope(qk, spec_.num_heads + spec_.num_kv_heads, angles_of(call),
                        positions_of(call), false);
    return qk;
  }

  Norm qk_norm() const { return spec_.norm == Norm::rmsnorm1p ? Norm::rmsnorm1p : Norm::rmsnorm; }
  int64_t groups_of(int64_t heads) const { return spec_.qk_norm_whole ? 1 : heads; }

  // This block's columns of rope's table.
  Tensor angles_of(const UnitCall& call) const {
    const int64_t size = spec_.rotary_size();
    if (spec_.local_rope_theta > 0 && spec_.window_of(block()) > 0)
      return call.rope.col_range(spec_.rope_cols() - size, size);
    const bool in_long =
        call.cache ? call.cache->in_long : spec_.rope_scaling.is_long(call.batch.sequence);
    return call.rope.col_range(in_long ? size : 0, size);
  }

  void attend(UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    const Tensor qk = prepare_qk(call, saved);
    const Tensor keys = qk.col_range(q, kv), values = saved.qkv.col_range(q + kv, kv);
    const AttentionShape shape = shape_of(call);
    const Tensor scratch =
        call.arena.take_bytes(call.kernels.attention_forward_scratch_bytes(shape));
    if (call.cache)
      attend_over_cache(call, shape, qk.col_range(0, q), keys, values, saved, scratch);
    else
      call.kernels.attention_forward(shape, qk.col_range(0, q), keys, values, saved.attention,
                                     saved.lse, dropout_of(call, DropoutSite::probabilities),
                                     scratch);
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

  void project(UnitCall& call, const Saved& saved) const {
    if (projects(call))
      project_out(call, saved.attention, out_, out_bias_, out_adapters_,
                  projected_to(call, saved.projected));
  }

  void add_residual(UnitCall& call, const Saved& saved) const {
    add_residual_to(call, projected_at(call, saved.projected));
  }

  // Backward. dqkv outlives the rest, and so lies below it in the arena.
  Tensor dqkv_of(UnitCall& call) const {
    if (call.temps[kDqkv].empty()) {
      call.temp(kDqkv, call.input.rows, spec_.qkv_size());
      call.arena_mark = call.arena.mark();
    }
    return call.temps[kDqkv];
  }

  void post_weights(UnitCall& call, const Saved& saved) const {
    dqkv_of(call);
    post_norm_weights(call, kDy, saved.projected);
  }

  void out_weights(UnitCall& call, const Saved& saved) const {
    dqkv_of(call);
    const Tensor dy = branch_gradient(call, kDy, saved.projected);
    weight_gradient(call, saved.attention, dy, out_, out_bias_);
    adapter_gradients(call, saved.attention, dy, out_adapters_);
  }

  void attend_backward(UnitCall& call, const Saved& saved) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    const Tensor dqkv = dqkv_of(call), dy = branch_gradient(call, kDy, saved.projected);
    const Tensor dattention = call.take(call.input.rows, q);
    call.gemm({.a = dy, .b = at(call.params, out_), .dst = dattention});
    adapter_input_gradient(call, dy, dattention, out_adapters_);
    const AttentionShape shape = shape_of(call);
    const Tensor qk = spec_.qk_norm ? saved.qk : saved.qkv;
    const Tensor scratch =
        call.arena.take_bytes(call.kernels.attention_backward_scratch_bytes(shape));
    call.kernels.attention_backward(
        shape, qk.col_range(0, q), qk.col_range(q, kv), saved.qkv.col_range(q + kv, kv),
        saved.attention, dattention, saved.lse, dqkv.col_range(0, q), dqkv.col_range(q, kv),
        dqkv.col_range(q + kv, kv), dropout_of(call, DropoutSite::probabilities), scratch);
    unprepare_qk(call, saved, dqkv);
    release_to_mark(call, {kDy});
  }

  // The backward of prepare_qk on dq and dk, in place.
  void unprepare_qk(const UnitCall& call, const Saved& saved, Tensor dqkv) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    if (spec_.rotates(block()))
      call.kernels.rope(dqkv.col_range(0, q + kv), spec_.num_heads + spec_.num_kv_heads,
                        angles_of(call), positions_of(call), true);
    if (!spec_.qk_norm) return;
    head_norm_backward(call, saved.qkv.col_range(0, q), groups_of(spec_.num_heads), q_norm_,
                       dqkv.col_range(0, q));
    head_norm_backward(call, saved.qkv.col_range(q, kv), groups_of(spec_.num_kv_heads), k_norm_,
                       dqkv.col_range(q, kv));
  }

  void head_norm_backward(const UnitCall& call, Tensor x, int64_t groups, int weight,
                          Tensor dy) const {
    const Arena::Scope scope(call.arena);
    const Tensor scratch =
        call.arena.take_bytes(call.kernels.norm_backward_scratch_bytes(x.rows, x.cols, groups));
    call.kernels.norm_backward(qk_norm(), x, groups, at(call.params, weight), spec_.norm_eps, dy,
                               dy, false, at(call.grads, weight), {}, call.accumulate, scratch);
  }

  void qkv_weights(UnitCall& call, const Saved&) const {
    const Tensor normed = norm(call, call.temp(kNormed, call.input.rows, spec_.hidden_size));
    weight_gradient(call, normed, call.temps[kDqkv], qkv_, qkv_bias_);
    adapter_gradients(call, normed, call.temps[kDqkv], qkv_adapters_);
  }

  void input_gradient(UnitCall& call, const Saved&) const {
    // Where the normalised input was, if it was there: it is done with, and becomes its gradient.
    const Tensor dnormed = call.temp(kNormed, call.input.rows, spec_.hidden_size);
    call.gemm({.a = call.temps[kDqkv], .b = at(call.params, qkv_), .dst = dnormed});
    adapter_input_gradient(call, call.temps[kDqkv], dnormed, qkv_adapters_);
  }

  void norm_gradient(UnitCall& call, const Saved&) const {
    norm_backward(call, call.temps[kNormed]);
  }

  const int64_t first_head_;  // of the whole model's
  int qkv_, qkv_bias_, q_norm_, k_norm_, out_, out_bias_;
  std::vector<Adapter> qkv_adapters_, out_adapters_;
};

}  // namespace

std::unique_ptr<Unit> make_attention(const ModelSpec& spec, int block, const Share& share) {
  return std::make_unique<Attention>(spec, block, share);
}

}  // namespace onefold

// A block's attention: output = input + dropout(out(attention(norm(input)))); branch.h has what may
// come between.
//
// Kept from forward to backward, in elements for each token: the input (by the engine), q/k/v and
// the attention's result; with a norm after it, also what that has normalised. The norm before is
// computed again in backward: it costs a pass over memory, and keeping it would cost as much memory
// as the input.
//
// Where a rank has a part of each sequence, queries, keys and values are exchanged for those of all
// tokens and some heads (head_exchange.h), and what is kept of them is that; of the result both are
// kept, for the gradients of the product behind it are of the tokens here. Or keys and values go
// around (ring.h), in as many phases as there are parts, and what is kept is that of one rank.
#include "model/attention_phases.h"
#include "model/branch.h"
#include "model/head_exchange.h"
#include "model/ring.h"

namespace onefold {
namespace {

struct Saved {
  Tensor qkv;        // [tokens, qkv_size]: rotated, unless qk_norm: then as the product left it
  Tensor qk;         // [tokens, query_size + kv_size]: normalised and rotated; only with qk_norm
  Tensor attention;  // [tokens, query_size]
  Tensor lse;        // [batch*heads, sequence] f32
  Tensor projected;  // [tokens, hidden_size]; only with a norm after it
  // Of parts: the same of all tokens, for this part's heads, and lse likewise. Then qkv is kept
  // with qk_norm alone, without the values, and qk is not.
  Tensor all_qkv;        // [all tokens, the part's columns]: normalised and rotated
  Tensor all_attention;  // [all tokens, the part's columns]
  int64_t bytes;

  Saved(const ModelSpec& spec, const HeadExchange& exchange, Tensor block, int64_t batch,
        int64_t sequence, DType type) {
    Carver carver(block);
    const int64_t tokens = batch * sequence, qk_size = spec.query_size() + spec.kv_size();
    if (exchange.any()) {
      const int64_t all = exchange.parts() * tokens;
      all_qkv = carver.next(all, exchange.qkv_cols(), type);
      all_attention = carver.next(all, exchange.query_cols(), type);
      if (spec.qk_norm) qkv = carver.next(tokens, qk_size, type);
    } else {
      qkv = carver.next(tokens, spec.qkv_size(), type);
      if (spec.qk_norm) qk = carver.next(tokens, qk_size, type);
    }
    attention = carver.next(tokens, spec.query_size(), type);
    lse = carver.next(batch * exchange.heads(), exchange.parts() * sequence, DType::f32);
    if (spec.norm_after()) projected = carver.next(tokens, spec.hidden_size, type);
    bytes = carver.bytes();
  }
};

// kSent, kReceived: what travels between parts, in turns.
enum Temp : size_t { kDqkv, kDy, kNormed, kSent, kReceived = 9, kDattention, kDnormed, kMore = 13 };

class Attention final : public Branch {
 public:
  Attention(const ModelSpec& s, int block, const Share& share)
      : Branch(s, share, block, "attention", 0, DropoutSite::attention_out),
        first_head_(heads_of(s, share).first),
        ring_(share.parts > 1 && share.method == ContextMethod::ring),
        exchange_(spec_, ring_ ? Share{} : share),
        order_{ring_, exchange_.any(), spec_.norm_after(), share.overlapped, share.parts} {
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
    sum_over_shares(q_norm_);
    k_norm_ = add(s.qk_norm, in + "k_norm.weight", 1, whole ? s.kv_size() : s.head_dim, norm_init(),
                  false);
    sum_over_shares(k_norm_);
    out_ = add_divided(true, in + "out.weight", d, s.query_size(), Init::residual, true,
                       {{0, first_head_ * s.head_dim, d, spec_.query_size()}});
    out_bias_ = add(s.attention_out_bias, in + "out.bias", 1, d, Init::zeros, false);
    qkv_adapters_ = add_adapters("attention.qkv.weight", qkv_);
    out_adapters_ = add_adapters("attention.out.weight", out_);
  }

  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    return Saved(spec_, exchange_, {}, batch, sequence, type).bytes;
  }

  int phases(bool backward, int64_t) const override { return order_.count(backward); }
  Phase phase(bool backward, int index, int64_t) const override {
    return order_.phase(backward, index);
  }

  void run(bool backward, int index, UnitCall& call) const override {
    static constexpr Step kForward[] = {&Attention::project_in, &Attention::attend,
                                        &Attention::project, &Attention::add_residual};
    static constexpr Step kBackward[] = {&Attention::post_weights,    &Attention::out_weights,
                                         &Attention::result_gradient, &Attention::attend_backward,
                                         &Attention::qk_gradient,     &Attention::qkv_weights,
                                         &Attention::input_gradient,  &Attention::norm_gradient};
    const Place place = order_.place_of(backward, index);
    if (ring_ && order_.attends(backward, place))
      return place.joins ? join_keys(call, place.step)
             : backward  ? attend_backward_step(call, saved_of(call), place.step)
                         : attend_step(call, saved_of(call), place.step);
    (this->*(backward ? kBackward[order_.step_of(place)] : kForward[place.index]))(call,
                                                                                   saved_of(call));
  }

  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    const Place place = order_.place_of(backward, index);
    if (backward && order_.step_of(place) == AttentionPhases::kInput) return dnormed_of(call);
    if (!backward && place.index == 2) return projected_at(call, saved_of(call).projected);
    return ring_ || exchange_.any() ? travel_of(backward, place, call).sent
                                    : Unit::boundary(backward, index, call);
  }

  Tensor arrival(bool backward, int index, const UnitCall& call) const override {
    return travel_of(backward, order_.place_of(backward, index), call).received;
  }

 private:
  using Step = void (Attention::*)(UnitCall&, const Saved&) const;
  using Place = AttentionPhases::Place;

  Tensor dnormed_of(const UnitCall& call) const {
    return call.temps[gradient_temp({kNormed, kDnormed})];
  }

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
    param.summed_over.replicas = true;
    if (share_.index % replicas != 0) param.own = param.summed_from;
  }

  Saved saved_of(const UnitCall& call) const {
    return {spec_, exchange_, call.saved, call.batch.batch, call.batch.sequence, call.type()};
  }

  // Blocks of so many columns in one of the temporaries that exchanges use in turns.
  Tensor blocks_in(const UnitCall& call, size_t index, int64_t cols) const {
    return matrix(call.temps[index].data, exchange_.parts() * call.input.rows, cols, call.type());
  }
  void take_blocks(UnitCall& call, size_t index) const {
    call.temp(index, exchange_.parts() * call.input.rows, exchange_.qkv_cols());
  }
  // With one sequence blocks are its tokens in order: what attention reads and makes travels as it
  // is.
  static bool one_sequence(const UnitCall& call) { return call.batch.batch == 1; }

  struct Travel {
    Tensor sent, received;
  };
  Travel travel_of(bool backward, const Place& place, const UnitCall& call) const {
    const int index = place.index;
    if (ring_) return passed_in(backward, order_.turn_after(backward, place), call);
    const bool one = one_sequence(call);
    const int64_t q = exchange_.query_cols(), qkv = exchange_.qkv_cols();
    const auto in = [&](size_t temp, int64_t cols) { return blocks_in(call, temp, cols); };
    const Saved saved = saved_of(call);
    if (!backward)
      return index == 0 ? Travel{in(kSent, qkv), one ? saved.all_qkv : in(kReceived, qkv)}
                        : Travel{one ? saved.all_attention : in(kSent, q),
                                 one ? in(kSent, q) : in(kReceived, q)};
    if (order_.step_of(place) == AttentionPhases::kResult) return {in(kSent, q), in(kReceived, q)};
    return {one ? all_dqkv(call) : in(kReceived, qkv), in(kSent, qkv)};
  }

  // What attention itself reads and makes.
  struct Core {
    Tensor q, k, v, out;
  };
  Core core_of(const Saved& saved) const {
    const bool parts = exchange_.any();
    const int64_t q = exchange_.query_cols(), kv = exchange_.kv_cols();
    const Tensor qkv = parts ? saved.all_qkv : saved.qkv;
    const Tensor qk = !parts && spec_.qk_norm ? saved.qk : qkv;
    return {qk.col_range(0, q), qk.col_range(q, kv), qkv.col_range(q + kv, kv),
            parts ? saved.all_attention : saved.attention};
  }

  // Of a ring: what is passed on in a turn, and has come in the one before it. Keys and values of
  // the part that the step of that number is about, [tokens, 2 kv_size]; and, in backward, below
  // them the gradients so far of those of the step before it.
  Tensor in_turn(const UnitCall& call, bool backward, int turn) const {
    return matrix(call.temps[turn % 2 == 0 ? kSent : kReceived].data,
                  (backward ? 2 : 1) * call.input.rows, 2 * spec_.kv_size(), call.type());
  }
  Tensor keys_in(const UnitCall& call, bool backward, int turn) const {
    return in_turn(call, backward, turn).row_range(0, call.input.rows);
  }
  Tensor dkeys_in(const UnitCall& call, int turn) const {
    return in_turn(call, true, turn).row_range(call.input.rows, call.input.rows);
  }
  // There are no gradients in the first turn, and after the last step's keys they alone go on, and
  // home.
  Travel passed_in(bool backward, int turn, const UnitCall& call) const {
    const auto of = [&](int at) {
      if (turn == 0) return keys_in(call, backward, at);
      return backward && turn + 1 >= order_.steps() ? dkeys_in(call, at)
                                                    : in_turn(call, backward, at);
    };
    return {of(turn), of(turn + 1)};
  }
  // Room for two of them, and this part's own in the first.
  void take_turns(UnitCall& call, bool backward) const {
    for (const size_t index : {kSent, kReceived})
      call.temp(index, (backward ? 2 : 1) * call.input.rows, 2 * spec_.kv_size());
  }
  void begin_ring(const UnitCall& call, const Core& core, bool backward) const {
    const Tensor own = keys_in(call, backward, 0);
    const int64_t kv = spec_.kv_size();
    call.kernels.copy(core.k, own.col_range(0, kv));
    call.kernels.copy(core.v, own.col_range(kv, kv));
  }
  // Of one sequence, in a step that is about another part.
  AttentionShape shape_of_step(const UnitCall& call, const RingStep& at) const {
    AttentionShape shape = shape_of(call);
    shape.batch = 1;
    shape.query_length = at.queries.size;
    shape.key_length = at.keys.size;
    shape.causal = false;
    return shape;
  }
  // Temporaries are taken for all rows of a sequence, whichever a step is of: all parts take as
  // much.
  AttentionShape largest_step(const UnitCall& call) const {
    const Span all{0, call.batch.sequence};
    return shape_of_step(call, {all, all});
  }
  Tensor lse_of(const Saved& saved, int64_t sequence, const RingStep& at) const {
    return saved.lse.row_range(sequence * spec_.num_heads, spec_.num_heads)
        .col_range(at.queries.first, at.queries.size);
  }

  void attend_step(UnitCall& call, const Saved& saved, int step) const {
    if (step == 0) return attend(call, saved);
    const Core core = core_of(saved);
    const int64_t length = call.batch.sequence, kv = spec_.kv_size();
    const RingStep at = ring_step(share_, step, length);
    const AttentionShape shape = shape_of_step(call, at);
    const Arena::Scope scope(call.arena);
    const Tensor more = call.take(length, spec_.query_size()).row_range(0, at.queries.size),
                 more_lse = call.arena.take(spec_.num_heads, length, DType::f32)
                                .col_range(0, at.queries.size),
                 scratch = call.arena.take_bytes(
                     call.kernels.attention_forward_scratch_bytes(largest_step(call)));
    for (int64_t b = 0; b < call.batch.batch; ++b) {
      const int64_t first = b * length + at.queries.first;
      const Tensor keys =
          keys_in(call, false, step).row_range(b * length + at.keys.first, at.keys.size);
      call.kernels.attention_forward(shape, core.q.row_range(first, at.queries.size),
                                     keys.col_range(0, kv), keys.col_range(kv, kv), more, more_lse,
                                     {}, scratch);
      call.kernels.merge_attention(core.out.row_range(first, at.queries.size), lse_of(saved, b, at),
                                   more, more_lse);
    }
  }

  AttentionShape shape_of(const UnitCall& call) const {
    const int64_t length = exchange_.parts() * call.batch.sequence;
    return {.batch = call.batch.batch,
            .query_length = length,
            .key_length = length + (call.cache ? call.cache->length : 0),
            .heads = exchange_.heads(),
            .kv_heads = exchange_.kv_heads(),
            .head_dim = spec_.head_dim,
            .starts = exchange_.any() ? call.batch.all_starts : call.batch.starts,
            .dtype = call.type(),
            .first_head = first_head_ + exchange_.first_head(),
            .window = spec_.window_of(block()),
            .scale = spec_.attention_scale,
            .soft_cap = spec_.attention_soft_cap,
            .alibi = spec_.positions == Positions::alibi ? spec_.alibi_scale : 0,
            .alibi_heads = whole_.num_heads};
  }

  RowPositions positions_of(const UnitCall& call) const {
    return {call.cache ? call.cache->length : 0, call.batch.sequence, call.batch.starts,
            call.batch.places};
  }

  // Of all tokens, whatever part of them is here.
  Dropout probabilities_dropout(const UnitCall& call) const {
    Dropout dropout = dropout_of(call, DropoutSite::probabilities);
    dropout.places = {};
    return dropout;
  }

  void project_in(UnitCall& call, const Saved& saved) const {
    if (exchange_.any()) {
      call.arena_mark = call.arena.mark();
      take_blocks(call, kSent);
      if (!one_sequence(call)) take_blocks(call, kReceived);
    }
    if (ring_) {
      call.arena_mark = call.arena.mark();
      take_turns(call, false);
    }
    const Arena::Scope scope(call.arena);
    const Tensor qkv = exchange_.any() ? call.take(call.input.rows, spec_.qkv_size()) : saved.qkv;
    const Tensor normed = norm(call, call.take(call.input.rows, call.input.cols));
    call.gemm({.a = normed,
               .b = at(call.params, qkv_),
               .dst = qkv,
               .b_transposed = true,
               .bias = at(call.params, qkv_bias_)});
    adapt(call, normed, qkv, qkv_adapters_);
    const Tensor qk = qkv.col_range(0, spec_.query_size() + spec_.kv_size());
    if (!exchange_.any()) {
      prepare_qk(call, qk, spec_.qk_norm ? saved.qk : qk);
      if (ring_) begin_ring(call, core_of(saved), false);
      return;
    }
    if (spec_.qk_norm) call.kernels.copy(qk, saved.qkv);
    prepare_qk(call, qk, qk);
    exchange_.to_heads(call.kernels, qkv, true, blocks_in(call, kSent, exchange_.qkv_cols()));
  }

  // Normalises (qk_norm) and rotates (rope) queries and keys; without qk_norm they are where they
  // go.
  void prepare_qk(const UnitCall& call, Tensor from, Tensor qk) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    if (spec_.qk_norm) {
      call.kernels.norm_forward(qk_norm(), from.col_range(0, q), groups_of(spec_.num_heads),
                                at(call.params, q_norm_), {}, spec_.norm_eps, qk.col_range(0, q));
      call.kernels.norm_forward(qk_norm(), from.col_range(q, kv), groups_of(spec_.num_kv_heads),
                                at(call.params, k_norm_), {}, spec_.norm_eps, qk.col_range(q, kv));
    }
    if (spec_.rotates(block()))
      call.kernels.rope(qk, spec_.num_heads + spec_.num_kv_heads, angles_of(call),
                        positions_of(call), false);
  }

  Norm qk_norm() const { return spec_.norm == Norm::rmsnorm1p ? Norm::rmsnorm1p : Norm::rmsnorm; }
  int64_t groups_of(int64_t heads) const { return spec_.qk_norm_whole ? 1 : heads; }

  // This block's columns of rope's table.
  Tensor angles_of(const UnitCall& call) const {
    const int64_t size = spec_.rotary_size();
    if (spec_.local_rope_theta > 0 && spec_.window_of(block()) > 0)
      return call.rope.col_range(spec_.rope_cols() - size, size);
    const bool in_long = call.cache
                             ? call.cache->in_long
                             : spec_.rope_scaling.is_long(call.batch.sequence * share_.parts);
    return call.rope.col_range(in_long ? size : 0, size);
  }

  void attend(UnitCall& call, const Saved& saved) const {
    const Arena::Scope scope(call.arena);
    const bool regroups = exchange_.any() && !one_sequence(call);
    if (regroups)
      exchange_.to_sequences(call.kernels, travel_of(false, {0}, call).received, call.batch.batch,
                             saved.all_qkv);
    const Core core = core_of(saved);
    const AttentionShape shape = shape_of(call);
    const Tensor scratch =
        call.arena.take_bytes(call.kernels.attention_forward_scratch_bytes(shape));
    if (call.cache)
      attend_over_cache(call, shape, core.q, core.k, core.v, saved, scratch);
    else
      call.kernels.attention_forward(shape, core.q, core.k, core.v, core.out, saved.lse,
                                     probabilities_dropout(call), scratch);
    if (regroups)
      exchange_.from_sequences(call.kernels, saved.all_attention, call.batch.batch,
                               travel_of(false, {1}, call).sent);
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
    const bool first = call.rows.first == 0;
    if (first && exchange_.any())
      exchange_.from_heads(call.kernels, travel_of(false, {1}, call).received, false,
                           saved.attention);
    if (first && (exchange_.any() || ring_)) release_to_mark(call, {kSent, kReceived});
    if (projects(call))
      project_out(call, call.of_rows(saved.attention), out_, out_bias_, out_adapters_,
                  call.of_rows(projected_to(call, saved.projected)));
  }

  void add_residual(UnitCall& call, const Saved& saved) const {
    add_residual_to(call, projected_at(call, saved.projected));
  }

  // Backward. dqkv outlives the rest, and so lies below it in the arena. Of parts, that of all
  // tokens is made in the same memory.
  Tensor dqkv_of(UnitCall& call) const {
    if (call.temps[kDqkv].empty()) {
      const int64_t rows = call.input.rows,
                    cols = std::max(spec_.qkv_size(), exchange_.parts() * exchange_.qkv_cols());
      call.temps[kDqkv] = matrix(call.take(rows, cols).data, rows, spec_.qkv_size(), call.type());
      call.arena_mark = call.arena.mark();
    }
    return call.temps[kDqkv];
  }
  Tensor all_dqkv(const UnitCall& call) const {
    return blocks_in(call, kDqkv, exchange_.qkv_cols());
  }

  void post_weights(UnitCall& call, const Saved& saved) const {
    dqkv_of(call);
    post_norm_weights(call, kDy, saved.projected);
  }

  void out_weights(UnitCall& call, const Saved& saved) const {
    dqkv_of(call);
    const Tensor dy = branch_gradient(call, kDy, saved.projected);
    out_weight_gradient(call, saved.attention, dy, out_, out_bias_);
    adapter_gradients(call, saved.attention, dy, out_adapters_);
  }

  // By attention's result.
  void result_gradient(UnitCall& call, const Saved& saved) const {
    dqkv_of(call);
    const Tensor dy = branch_gradient(call, kDy, saved.projected);
    const int64_t rows = call.input.rows, q = spec_.query_size();
    if (!exchange_.any()) {
      result_gradient_to(call, dy, call.temp(kDattention, rows, q));
      if (!ring_) return;
      take_turns(call, true);
      call.temp(kMore, rows, 2 * spec_.kv_size());
      return begin_ring(call, core_of(saved), true);
    }
    for (const size_t index : {kSent, kReceived}) take_blocks(call, index);
    const Arena::Scope scope(call.arena);
    const Tensor dattention = call.take(rows, q);
    result_gradient_to(call, dy, dattention);
    exchange_.to_heads(call.kernels, dattention, false,
                       travel_of(true, order_.before_attending(), call).sent);
  }

  void result_gradient_to(const UnitCall& call, Tensor dy, Tensor dattention) const {
    call.gemm({.a = dy, .b = at(call.params, out_), .dst = dattention});
    adapter_input_gradient(call, dy, dattention, out_adapters_);
  }

  void attend_backward(UnitCall& call, const Saved& saved) const {
    const int64_t q = exchange_.query_cols(), kv = exchange_.kv_cols();
    const bool regroups = exchange_.any() && !one_sequence(call);
    const Tensor dqkv = exchange_.any() ? all_dqkv(call) : call.temps[kDqkv];
    const size_t in = !exchange_.any() ? kDattention : regroups ? kSent : kReceived;
    const Tensor dout = blocks_in(call, in, exchange_.query_cols());
    if (regroups)
      exchange_.to_sequences(call.kernels,
                             travel_of(true, order_.before_attending(), call).received,
                             call.batch.batch, dout);
    {
      const Arena::Scope scope(call.arena);
      const Core core = core_of(saved);
      const AttentionShape shape = shape_of(call);
      const Tensor scratch =
          call.arena.take_bytes(call.kernels.attention_backward_scratch_bytes(shape));
      call.kernels.attention_backward(
          shape, core.q, core.k, core.v, core.out, dout, saved.lse, dqkv.col_range(0, q),
          dqkv.col_range(q, kv), dqkv.col_range(q + kv, kv), probabilities_dropout(call), scratch);
    }
    if (regroups)
      exchange_.from_sequences(call.kernels, dqkv, call.batch.batch,
                               travel_of(true, order_.attending(true), call).sent);
  }

  // Gradients of a part's keys and values start with its own. What later steps find is added to
  // those that come from the part before, when they have come.
  void attend_backward_step(UnitCall& call, const Saved& saved, int step) const {
    const int64_t length = call.batch.sequence, q = spec_.query_size(), kv = spec_.kv_size();
    const Core core = core_of(saved);
    const Tensor dq = call.temps[kDqkv].col_range(0, q), dout = call.temps[kDattention];
    const Arena::Scope scope(call.arena);
    if (step == 0) {
      const Tensor dkeys = dkeys_in(call, 1);
      const AttentionShape shape = shape_of(call);
      call.kernels.attention_backward(
          shape, core.q, core.k, core.v, core.out, dout, saved.lse, dq, dkeys.col_range(0, kv),
          dkeys.col_range(kv, kv), {},
          call.arena.take_bytes(call.kernels.attention_backward_scratch_bytes(shape)));
      return;
    }
    const RingStep at = ring_step(share_, step, length);
    const AttentionShape shape = shape_of_step(call, at);
    const Tensor keys = keys_in(call, true, step),
                 more_dq = call.take(length, q).row_range(0, at.queries.size),
                 scratch = call.arena.take_bytes(
                     call.kernels.attention_backward_scratch_bytes(largest_step(call)));
    for (int64_t b = 0; b < call.batch.batch; ++b) {
      const auto mine = [&](const Tensor& x) {
        return x.row_range(b * length + at.queries.first, at.queries.size);
      };
      const auto theirs = [&](const Tensor& x) {
        return x.row_range(b * length + at.keys.first, at.keys.size);
      };
      const Tensor more = theirs(call.temps[kMore]);
      call.kernels.attention_backward(shape, mine(core.q), theirs(keys).col_range(0, kv),
                                      theirs(keys).col_range(kv, kv), mine(core.out), mine(dout),
                                      lse_of(saved, b, at), more_dq, more.col_range(0, kv),
                                      more.col_range(kv, kv), {}, scratch);
      call.kernels.add(mine(dq), more_dq, mine(dq));
    }
  }
  void join_keys(const UnitCall& call, int step) const {
    const Span keys = ring_step(share_, step, call.batch.sequence).keys;
    for (int64_t b = 0; b < call.batch.batch; ++b) {
      const int64_t first = b * call.batch.sequence + keys.first;
      const Tensor all = dkeys_in(call, step + 1).row_range(first, keys.size);
      call.kernels.add(all, call.temps[kMore].row_range(first, keys.size), all);
    }
  }

  // The backward of prepare_qk on dq and dk, in place.
  void qk_gradient(UnitCall& call, const Saved& saved) const {
    const int64_t q = spec_.query_size(), kv = spec_.kv_size();
    const Tensor dqkv = call.temps[kDqkv];
    if (exchange_.any())
      exchange_.from_heads(call.kernels, travel_of(true, order_.attending(true), call).received,
                           true, dqkv);
    if (ring_) {
      const Tensor home = dkeys_in(call, order_.steps() + 1);
      call.kernels.copy(home, dqkv.col_range(q, 2 * kv));
    }
    release_to_mark(call, {kDy, kSent, kReceived, kDattention, kMore});
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
                               dy, false, at(call.grads, weight), {}, {}, call.accumulate, scratch);
  }

  void qkv_weights(UnitCall& call, const Saved&) const {
    const Tensor normed = norm(call, call.temp(kNormed, call.input.rows, spec_.hidden_size));
    weight_gradient(call, normed, call.temps[kDqkv], qkv_, qkv_bias_);
    adapter_gradients(call, normed, call.temps[kDqkv], qkv_adapters_);
  }

  void input_gradient(UnitCall& call, const Saved&) const {
    make_input_gradient(call, {kNormed, kDnormed}, call.temps[kDqkv], qkv_, qkv_adapters_);
  }

  void norm_gradient(UnitCall& call, const Saved&) const {
    norm_backward(call, dnormed_of(call), out_bias_);
  }

  const int64_t first_head_;  // of the whole model's
  const bool ring_;
  const HeadExchange exchange_;  // of no parts where there is a ring
  const AttentionPhases order_;
  int qkv_, qkv_bias_, q_norm_, k_norm_, out_, out_bias_;
  std::vector<Adapter> qkv_adapters_, out_adapters_;
};

}  // namespace

std::unique_ptr<Unit> make_attention(const ModelSpec& spec, int block, const Share& share) {
  return std::make_unique<Attention>(spec, block, share);
}

}  // namespace onefold

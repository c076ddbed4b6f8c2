// Token table, learned positions if the model has them, a norm if it has one, dropout. Only with a
// norm something is kept for backward: what was normalised.
#include "model/unit.h"

namespace onefold {
namespace {

constexpr uint32_t kDropoutSite = 0;

class Embedding final : public Unit {
 public:
  Embedding(const ModelSpec& spec, const Share& share) : Unit(spec, share, "embedding", 0) {
    tokens_ = add_vocabulary(true, "embedding.tokens");
    positions_ = add(spec.positions == Positions::learned, "embedding.positions",
                     spec.learned_positions(), spec.hidden_size, Init::normal, true);
    norm_ =
        add(spec.embedding_norm, "embedding.norm.weight", 1, spec.hidden_size, norm_init(), false);
    norm_bias_ = add(spec.embedding_norm && spec.has_norm_bias(), "embedding.norm.bias", 1,
                     spec.hidden_size, Init::zeros, false);
  }

  bool is_first() const override { return true; }
  bool backward_reads_parameters() const override { return spec_.embedding_norm; }
  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    return spec_.embedding_norm ? batch * sequence * spec_.hidden_size * dtype_bytes(type) : 0;
  }

  int phases(bool backward, int64_t) const override { return backward ? 1 : 2; }

  Phase phase(bool backward, int index, int64_t) const override {
    static constexpr Phase kForward[] = {{"look up", Role::sum}, {"norm and dropout"}};
    static constexpr Phase kBackward[] = {{"tables", Role::none, true}};
    return backward ? kBackward[index] : kForward[index];
  }

  void run(bool backward, int index, UnitCall& call) const override {
    if (backward) return table_gradients(call);
    if (index == 0)
      return call.kernels.embedding_forward(
          call.batch.tokens, with_others(at(call.params, tokens_)),
          share_.first() ? from_first(at(call.params, positions_)) : Tensor{}, positions_of(call),
          call.output);
    if (spec_.embedding_scale != 1)
      call.kernels.scale(call.output, spec_.embedding_scale, call.output);
    if (spec_.embedding_norm) {
      call.kernels.copy(call.output, normalised(call));
      call.kernels.norm_forward(spec_.norm, normalised(call), 1, at(call.params, norm_),
                                at(call.params, norm_bias_), spec_.norm_eps, call.output);
    }
    if (call.dropout > 0)
      call.kernels.dropout(call.output, call.dropout_at(layer_, kDropoutSite), call.batch.sequence,
                           {}, call.output);
  }

  Tensor boundary(bool, int, const UnitCall& call) const override { return call.output; }

 private:
  // Of a share: with the row of zeros behind it, which is that of all other tokens. Shares' sum is
  // then one row of the table, to the bit; the first of them adds the positions.
  Tensor with_others(Tensor table) const {
    if (!share_.whole() && !table.empty()) ++table.rows;
    return table;
  }

  // The table's rows from position 0 on.
  Tensor from_first(Tensor table) const {
    return table.empty() ? table
                         : table.row_range(spec_.position_offset, spec_.max_sequence_length);
  }

  // What the norm reads.
  Tensor normalised(const UnitCall& call) const {
    return matrix(call.saved.data, call.batch.tokens_count(), spec_.hidden_size, call.type());
  }

  void norm_gradient(const UnitCall& call, Tensor dx) const {
    const Arena::Scope scope(call.arena);
    const int64_t bytes = call.kernels.norm_backward_scratch_bytes(dx.rows, dx.cols, 1);
    call.kernels.norm_backward(spec_.norm, normalised(call), 1, at(call.params, norm_),
                               spec_.norm_eps, dx, dx, false, at(call.grads, norm_),
                               at(call.grads, norm_bias_), {}, call.accumulate,
                               call.arena.take_bytes(bytes));
  }

  RowPositions positions_of(const UnitCall& call) const {
    return {call.cache ? call.cache->length : 0, call.batch.sequence, call.batch.starts,
            call.batch.places};
  }

  void table_gradients(UnitCall& call) const {
    const Arena::Scope scope(call.arena);
    const Tensor dx = call.doutput;
    if (call.dropout > 0)
      call.kernels.dropout(dx, call.dropout_at(layer_, kDropoutSite), call.batch.sequence, {}, dx);
    if (spec_.embedding_norm) norm_gradient(call, dx);
    if (spec_.embedding_scale != 1) call.kernels.scale(dx, spec_.embedding_scale, dx);
    const Tensor dpositions = at(call.grads, positions_);
    if (spec_.position_offset > 0 && !dpositions.empty() && !call.accumulate)
      call.kernels.fill(dpositions.row_range(0, spec_.position_offset), 0);  // never read
    int64_t rows = share_.whole() ? spec_.vocab_size : vocabulary_rows(whole_, share_);
    if (share_.parts > 1) rows = std::max(rows, from_first(dpositions).rows);
    const int64_t scratch =
        call.kernels.embedding_backward_scratch_bytes(call.batch.tokens_count(), rows);
    // A tied head has already written this micro-batch's gradient of the token table.
    const bool accumulate_table = call.accumulate || spec_.tie_embeddings;
    call.kernels.embedding_backward(
        call.batch.tokens, dx, positions_of(call), at(call.grads, tokens_), accumulate_table,
        from_first(dpositions), call.accumulate, call.arena.take_bytes(scratch));
  }

  int tokens_, positions_, norm_, norm_bias_;
};

}  // namespace

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec, const Share& share) {
  return std::make_unique<Embedding>(spec, share);
}

}  // namespace onefold

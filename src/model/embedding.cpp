// Token table, learned positions if the model has them, dropout.
#include "model/unit.h"

namespace onefold {
namespace {

constexpr uint32_t kDropoutSite = 0;

class Embedding final : public Unit {
 public:
  explicit Embedding(const ModelSpec& spec) : Unit(spec, "embedding", 0) {
    tokens_ = add(true, "tokens", spec.vocab_size, spec.hidden_size, Init::normal, true);
    positions_ = add(spec.positions == Positions::learned, "positions", spec.max_sequence_length,
                     spec.hidden_size, Init::normal, true);
  }

  bool backward_reads_parameters() const override { return false; }

  int64_t saved_elems(int64_t, int64_t) const override { return 0; }

  void forward(const UnitCall& call) const override {
    const int64_t first = call.cache ? call.cache->length : 0;
    call.kernels.embedding_forward(call.batch.tokens, at(call.params, tokens_),
                                   at(call.params, positions_), first, call.batch.sequence,
                                   call.output);
    if (call.dropout > 0)
      call.kernels.dropout(call.output, call.dropout_at(0, kDropoutSite), call.batch.sequence, {},
                           call.output);
  }

  void backward(const UnitCall& call) const override {
    const Arena::Scope scope(call.arena);
    Tensor dx = call.stream;
    if (call.dropout > 0)
      call.kernels.dropout(dx, call.dropout_at(0, kDropoutSite), call.batch.sequence, {}, dx);
    const int64_t scratch =
        call.kernels.embedding_backward_scratch(call.batch.tokens_count(), spec_.vocab_size);
    // A tied head has already written this micro-batch's gradient of the token table.
    const bool accumulate_table = call.accumulate || spec_.tie_embeddings;
    call.kernels.embedding_backward(
        call.batch.tokens, dx, call.batch.sequence, at(call.grads, tokens_), accumulate_table,
        at(call.grads, positions_), call.accumulate, call.arena.take(1, scratch));
  }

 private:
  int tokens_, positions_;
};

}  // namespace

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec) {
  return std::make_unique<Embedding>(spec);
}

}  // namespace onefold

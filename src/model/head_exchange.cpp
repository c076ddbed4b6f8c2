#include "model/head_exchange.h"

#include <fmt/format.h>

namespace onefold {

std::vector<HeadExchange::Columns> HeadExchange::columns(int part, bool keys) const {
  const int64_t dim = spec_.head_dim, q = spec_.query_size(), kv = spec_.kv_size();
  const Span queries = heads(part), shared = kv_heads(part);
  const auto width = [&](const Span& span) { return Span{span.first * dim, span.size * dim}; };
  std::vector<Columns> all = {{width(queries), {0, queries.size * dim}, false}};
  if (!keys) return all;
  const bool copied = part % kv_replicas(spec_, share_.parts) != 0;
  for (const int64_t before : {q, q + kv}) {
    const int64_t in_block = all.back().block.first + all.back().block.size;
    all.push_back(
        {{before + shared.first * dim, shared.size * dim}, {in_block, shared.size * dim}, copied});
  }
  return all;
}

void HeadExchange::to_heads(Kernels& kernels, Tensor tokens, bool keys, Tensor blocks) const {
  for (int part = 0; part < share_.parts; ++part) {
    const Tensor block = blocks.row_range(part * tokens.rows, tokens.rows);
    for (const Columns& one : columns(part, keys))
      kernels.copy(tokens.col_range(one.all.first, one.all.size),
                   block.col_range(one.block.first, one.block.size));
  }
}

void HeadExchange::from_heads(Kernels& kernels, Tensor blocks, bool keys, Tensor tokens) const {
  for (int part = 0; part < share_.parts; ++part) {
    const Tensor block = blocks.row_range(part * tokens.rows, tokens.rows);
    for (const Columns& one : columns(part, keys)) {
      const Tensor from = block.col_range(one.block.first, one.block.size),
                   to = tokens.col_range(one.all.first, one.all.size);
      if (one.copied)
        kernels.add(to, from, to);
      else
        kernels.copy(from, to);
    }
  }
}

namespace {

// Calls visit(rows of blocks, rows of sequences) for the tokens of each part and sequence.
template <class Visit>
void for_each_run_of(Tensor blocks, int64_t batch, int parts, Tensor sequences,
                     const Visit& visit) {
  const int64_t run = blocks.rows / parts / batch;
  for (int64_t sequence = 0; sequence < batch; ++sequence)
    for (int64_t part = 0; part < parts; ++part)
      visit(blocks.row_range((part * batch + sequence) * run, run),
            sequences.row_range((sequence * parts + part) * run, run));
}

}  // namespace

void HeadExchange::to_sequences(Kernels& kernels, Tensor blocks, int64_t batch,
                                Tensor sequences) const {
  for_each_run_of(blocks, batch, share_.parts, sequences,
                  [&](Tensor from, Tensor to) { kernels.copy(from, to); });
}

void HeadExchange::from_sequences(Kernels& kernels, Tensor sequences, int64_t batch,
                                  Tensor blocks) const {
  for_each_run_of(blocks, batch, share_.parts, sequences,
                  [&](Tensor to, Tensor from) { kernels.copy(from, to); });
}

std::vector<std::string> obstacles_to_head_exchange(const ModelSpec& spec, int parts) {
  std::vector<std::string> reasons;
  if (spec.num_heads % parts != 0)
    reasons.push_back(
        fmt::format("its {} attention heads cannot be divided by {}", spec.num_heads, parts));
  if (spec.num_kv_heads % parts != 0 && parts % spec.num_kv_heads != 0)
    reasons.push_back(fmt::format(
        "its {} key and value heads can neither be divided by {} nor be copied to as many ranks "
        "each",
        spec.num_kv_heads, parts));
  return reasons;
}

}  // namespace onefold

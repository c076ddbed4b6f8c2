// Ulysses: before attention, parts of sequences exchange tokens for heads, and after it they
// exchange back. A part has all heads of its own tokens, and attends with some heads of all tokens.
//
// What travels are equal blocks, one for each part in order, [parts * tokens, columns]: to another
// part its heads of the tokens here, or its tokens of the heads here. Key and value heads that are
// fewer than parts are copied to several of them, whose gradients are then added in their order.
#pragma once

#include "kernels/kernels.h"
#include "model/share.h"

namespace onefold {

class HeadExchange {
 public:
  // `spec`: of the share's own heads, which parts divide.
  HeadExchange(const ModelSpec& spec, const Share& share) : spec_(spec), share_(share) {}

  int64_t parts() const { return share_.parts; }
  bool any() const { return share_.parts > 1; }

  // Of this part.
  int64_t first_head() const { return heads(share_.part).first; }
  int64_t heads() const { return heads(share_.part).size; }
  int64_t kv_heads() const { return kv_heads(share_.part).size; }
  int64_t query_cols() const { return heads() * spec_.head_dim; }
  int64_t kv_cols() const { return kv_heads() * spec_.head_dim; }
  int64_t qkv_cols() const { return query_cols() + 2 * kv_cols(); }

  // From all heads of tokens, [tokens, all columns], to blocks; and back. Columns are those of
  // queries, or with `keys` also those of keys and of values.
  void to_heads(Kernels& kernels, Tensor tokens, bool keys, Tensor blocks) const;
  void from_heads(Kernels& kernels, Tensor blocks, bool keys, Tensor tokens) const;
  // From blocks to all tokens of each sequence, [batch * whole sequence, columns]; and back.
  // With one sequence they are the same memory.
  void to_sequences(Kernels& kernels, Tensor blocks, int64_t batch, Tensor sequences) const;
  void from_sequences(Kernels& kernels, Tensor sequences, int64_t batch, Tensor blocks) const;

 private:
  // Some columns of all heads, and of a block.
  struct Columns {
    Span all, block;
    bool copied;  // an earlier part has them too
  };
  std::vector<Columns> columns(int part, bool keys) const;

  Share part_of(int part) const { return {.index = part, .count = share_.parts}; }
  Span heads(int part) const { return heads_of(spec_, part_of(part)); }
  Span kv_heads(int part) const { return kv_heads_of(spec_, part_of(part)); }

  const ModelSpec spec_;
  const Share share_;
};

// Why attention heads cannot be divided among so many parts, a sentence for each reason; empty if
// they can.
std::vector<std::string> obstacles_to_head_exchange(const ModelSpec& spec, int parts);

}  // namespace onefold

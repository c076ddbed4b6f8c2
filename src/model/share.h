// A share of a model: one of equal parts of its attention heads, of the inner width of its MLPs
// (and of each expert) and of its vocabulary. Units of a share compute their part and name what
// must be summed over or gathered from all shares to go on; what is not divided (norms, biases
// behind a sum, learned positions) is the same in every share.
//
// A share may also be of a part of each sequence's tokens: then all that it computes is of these
// alone, but for attention, where parts exchange tokens for heads (head_exchange.h), or pass their
// keys and values around (ring.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"
#include "tensor/box.h"

namespace onefold {

// How parts of a sequence attend to all of it.
enum class ContextMethod : uint8_t { ulysses, ring };

struct Share {
  int index = 0, count = 1;  // of what parameters are divided into
  int part = 0, parts = 1;   // of each sequence: so many equal sets of tokens
  ContextMethod method = ContextMethod::ulysses;
  // Between units each share holds an equal run of the tokens: what they make of all tokens is
  // summed and scattered, and gathered before the next unit.
  bool scattered = false;
  // What is summed after a product by rows (Phase::by_rows) travels beside computation: gradients
  // of weights that can come later do, and no phase is given memory that may still travel.
  bool overlapped = false;

  bool whole() const { return count == 1; }  // has all of every parameter
  bool first() const { return index == 0; }
};

// A share of each mixture's experts.
struct ExpertShare : Share {
  // How many times an even share of its rows another one has room for; 0: all that may come.
  double bound = 0;
};

// Elements [first, first + size) of something that is divided.
struct Span {
  int64_t first = 0, size = 0;
};

// The tokens of a sequence that a part has, in the order in which it has them: a run; or, where
// keys and values go around, two, the n-th from the beginning and the n-th from the end, so that
// all parts have as many pairs of queries and keys that those see.
std::vector<Span> runs_of(const Share& share, int64_t sequence);

// Key and value heads are fewer than shares where each is in several.
int kv_replicas(const ModelSpec& spec, int shares);
Span heads_of(const ModelSpec& spec, const Share& share);
Span kv_heads_of(const ModelSpec& spec, const Share& share);
// Of an inner width, that of an MLP or of an expert: the first shares have a column more where it
// does not divide.
Span inner_of(int64_t width, const Share& share);
// Of the vocabulary the last share may have less than the others.
Span vocabulary_of(const ModelSpec& spec, const Share& share);
// Rows of a table of the vocabulary that a share holds, with the zeros behind them: the same for
// all shares. Where the vocabulary is divided there is at least one row of zeros, which stands for
// all tokens of other shares.
int64_t vocabulary_rows(const ModelSpec& spec, const Share& share);

// The sizes of a share's units: its heads, inner widths and rows of the vocabulary.
ModelSpec spec_of(const ModelSpec& spec, const Share& share);

// Why the model cannot be divided into so many shares, a sentence for each reason; empty if it can.
// A vocabulary of 0 is not known yet.
std::vector<std::string> obstacles_to_shares(const ModelSpec& spec, int shares);

}  // namespace onefold

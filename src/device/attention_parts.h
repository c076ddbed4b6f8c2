// How the card takes the gradients of attention by the library. Like cuda_scratch.h, for plans and
// the plugin alike.
#pragma once

#include <cstdint>

namespace onefold {

struct AttentionShape;

namespace cuda {

// Deterministic, the library keeps the gradients of all scores that it computes at a time. Where
// those of one sequence alone are too many, it is taken in parts: each run of queries with each run
// of keys that it sees. Their gradients are added up in fp32.
struct AttentionParts {
  int64_t rows = 0;  // of a run; 0: sequences stay whole
  // The scratch, in bytes from the beginning on: the library's, then the lse of the queries that it
  // takes at a time, which it reads only where they lie together.
  int64_t lse = 0, end = 0;
  // Between the two, of runs: sums of dk and dv for all keys and of dq for a run, then the
  // gradients of one part.
  int64_t dk_sums = 0, dv_sums = 0, dq_sums = 0, dq = 0, dk = 0, dv = 0;
};
AttentionParts attention_parts(const AttentionShape& shape);

}  // namespace cuda
}  // namespace onefold

// Attention by its definition, in double: every query against every key that it sees.
#pragma once

#include "base/philox.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {

struct AttentionParams {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  float rate = 0;  // of dropout
  int64_t gap = 0;
  float scale = 1;                      // of queries, keys and values
  std::vector<int64_t> documents = {};  // their lengths; empty: no starts
  DType dtype = DType::f32;
  int64_t window = 0;                       // 0: none
  float score_scale = 0;                    // 0: 1 / sqrt(head_dim)
  float soft_cap = 0;                       // 0: none
  float alibi = 0;                          // 0: none
  int64_t first_head = 0, alibi_heads = 0;  // of a share of the heads; with alibi
  bool causal = true;

  std::vector<int32_t> starts() const {
    return documents.empty() ? std::vector<int32_t>{} : document_starts(batch, queries, documents);
  }
};

inline constexpr PhiloxKey kAttentionKey = {0x12345678u, 0x9abcdef0u};
inline constexpr int64_t kAttentionSamples[] = {7, 0x100000007, 0};

struct AttentionSoftmax {
  Doubles probabilities, lse;  // [batch, heads, query, key] (0 for keys not seen), [.., query]
};
struct AttentionGradients {
  Doubles dq, dk, dv;
};

Doubles attention_scores(const AttentionParams& p, const Doubles& q, const Doubles& k);
// What ALiBi adds to them.
Doubles attention_biases(const AttentionParams& p);
// By which a change of a score before its cap changes it after; all 1 without a cap.
Doubles attention_slopes(const AttentionParams& p, const Doubles& scores);
AttentionSoftmax attention_softmax(const AttentionParams& p, const Doubles& scores);
// Dropout's multipliers of all probabilities: element (((first_head + head) * queries + query) *
// keys + key) of the sample.
Doubles attention_multipliers(const AttentionParams& p);
Doubles attention_out(const AttentionParams& p, const Doubles& probabilities,
                      const Doubles& multipliers, const Doubles& v);
// With delta_sign -1 and attention_slopes(). Called on magnitudes with +1 and without slopes it
// gives the sum of the magnitudes of all that goes into each result: what roundings are relative
// to.
AttentionGradients attention_gradients(const AttentionParams& p, const Doubles& probabilities,
                                       const Doubles& multipliers, const Doubles& q,
                                       const Doubles& k, const Doubles& v, const Doubles& dout,
                                       const Doubles& slopes, double delta_sign = -1);

// Bounds the relative error of a probability, forward as e^(score - maximum) / sum and backward as
// e^(score - lse). Scores are those of coarse numbers (attention.cpp).
double probability_error(const AttentionParams& p, const Doubles& q, const Doubles& k);
// Terms go through at most a tile's length of roundings in the library's sum over a tile, and one
// for each tile after that.
double chain_error(int64_t length, int64_t repeats = 1);

}  // namespace onefold::cases

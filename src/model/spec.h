// A model's architecture as data. One block, configured: a new architecture is a new spec, not a
// new engine. The JSON form has exactly these field names; docs/config.md lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/kernels.h"

namespace onefold {

// A table that is added to the tokens', rotation of queries and keys, or a bias of scores that
// grows with the distance.
enum class Positions : uint8_t { learned, rope, alibi };

// Where a branch of a block (attention, MLP) is normalised: x + f(norm(x)), x + norm(f(x)), or x +
// norm(f(norm(x))).
enum class NormPlace : uint8_t { before, after, both };

// Whether attention and MLP of a block both read the block's input, x + attention(norm(x)) +
// mlp(norm(x)), and whether they have a norm each.
enum class Parallel : uint8_t { no, one_norm, two_norms };

// How rotary frequencies are stretched for contexts longer than those of pre-training. linear
// divides all of them by `factor`; llama3 (Llama 3.1 and later) divides the slow ones, leaves the
// fast ones, and goes from one to the other in between; so does yarn, by other rules, and it
// lengthens queries and keys. longrope (Phi-3, Phi-4 mini) divides each by a factor of its own, and
// has other factors for sequences that are longer than the original context.
struct RopeScaling {
  enum class Type : uint8_t { none, linear, llama3, yarn, longrope };
  Type type = Type::none;
  float factor = 1.0f;
  // llama3 (and the last, yarn and longrope). A frequency is slow if a turn takes more than
  // original_max_sequence_length / low_freq_factor tokens, and fast if it takes fewer than those /
  // high_freq_factor.
  float low_freq_factor = 1.0f;
  float high_freq_factor = 4.0f;
  int64_t original_max_sequence_length = 8192;
  // yarn only. A frequency is fast if it makes more than beta_fast turns in the original context,
  // and slow if it makes fewer than beta_slow.
  float beta_fast = 32.0f, beta_slow = 1.0f;
  // yarn and longrope: of cosines and sines. 0: by the factor, 0.1 ln(factor) + 1, or sqrt(1 +
  // ln(factor) / ln(original_max_sequence_length)).
  float attention_factor = 0.0f;
  std::vector<double> short_factor, long_factor;  // longrope only: one for each frequency

  // Whether sequences that are longer than the original context have frequencies of their own.
  bool switches() const { return type == Type::longrope; }
  bool is_long(int64_t sequence_length) const {
    return switches() && sequence_length > original_max_sequence_length;
  }
  // Frequency i of `turned` / 2, in radians for each position; `in_long`: of a sequence that
  // is_long().
  double frequency(int64_t i, int64_t turned, double theta, bool in_long = false) const;
  double length() const;  // of what is turned, where its length was 1
  Json to_json() const;   // of a type that is not none
};

// Adapters beside projections (lora.h), which are then all that is trained.
struct LoraSpec {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 8;
  float dropout = 0;                 // of the adapters' input
  std::vector<std::string> targets;  // names of linear layers

  bool enabled() const { return rank > 0; }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
  bool operator==(const LoraSpec&) const = default;
};

// A mixture of experts in the place of a block's MLP: a router sends each token to a few of many
// MLPs, and their results are added up, times their weights. JSON: "experts".
struct ExpertSpec {
  int64_t count = 0;                     // num_experts; 0: no block has experts
  int64_t per_token = 2;                 // experts_per_token
  int64_t intermediate_size = 0;         // of an expert; default: the model's
  int64_t shared_intermediate_size = 0;  // of an expert that every token visits; 0: there is none
  bool shared_gate = false;              // whose result is multiplied by the sigmoid of x · gate
  RouterScores scores = RouterScores::softmax;
  bool normalised = true;  // normalise_weights: the weights of a token's experts add up to 1
  int64_t every = 1;       // every so many blocks one with experts: the last of them
  std::vector<int64_t> dense_blocks;  // and these have none
  // What a layer's losses are multiplied by (RouteBackward); their mean over the layers with
  // experts is added to the loss that is trained.
  float balance_loss = 0, z_loss = 0;
  float jitter = 0;           // training: the router's input is multiplied by 1 ± this
  float capacity_factor = 0;  // training: how many times its even share an expert takes; 0: all

  bool enabled() const { return count > 0; }
  // Choices that an expert takes of so many tokens in training; 0: all.
  int64_t capacity(int64_t tokens) const;
  Json to_json() const;  // where there are some
  bool operator==(const ExpertSpec&) const = default;
};

struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;       // default: num_heads
  int64_t head_dim = 0;           // default: hidden_size / num_heads
  int64_t intermediate_size = 0;  // default: 4 * hidden_size
  int64_t max_sequence_length = 1024;
  Norm norm = Norm::layernorm;
  float norm_eps = 1e-5f;
  Positions positions = Positions::learned;
  float rope_theta = 10000.0f;
  RopeScaling rope_scaling;
  int64_t no_rope_every = 0;         // every so many blocks one whose heads are not turned; 0: none
  int64_t rotary_dim = 0;            // elements of a head that are turned, the first ones; 0: all
  float local_rope_theta = 0;        // of blocks with a window, without scaling; 0: as the others
  float alibi_scale = 1;             // alibi: of the slopes of all heads
  int64_t position_offset = 0;       // learned positions: rows of the table before position 0's
  int64_t sliding_window = 0;        // keys that a query sees at most, its own among them; 0: all
  int64_t full_attention_every = 0;  // every so many blocks one without the window; 0: none
  NormPlace norm_place = NormPlace::before;
  Parallel parallel = Parallel::no;
  bool norm_bias = true;         // of layernorm
  float attention_scale = 0;     // of scores; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;  // scores, and logits, become cap · tanh(. / cap); 0: they stay
  float logits_soft_cap = 0;
  float logits_scale = 1;
  float embedding_scale = 1;
  bool embedding_norm = false;  // what is looked up is normalised, after it is scaled
  float residual_scale = 1;     // of each branch, before it is added
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool qk_norm_whole = false;  // over all heads together, not each on its own
  Activation activation = Activation::gelu_tanh;
  bool gated = false;  // JSON: "activation" is one of relu gelu gelu_tanh silu, or (gated) reglu
                       // geglu geglu_tanh swiglu glu bilinear
  ExpertSpec experts;
  bool tie_embeddings = true;
  bool head_bias = false;
  float dropout = 0.0f;
  float init_std = 0.02f;
  LoraSpec lora;  // no part of the architecture and its JSON: "lora" of a configuration
  // Why max_sequence_length is less than the model's own description says; "": it is not. No part
  // of its JSON either.
  std::string shortened;

  // Whether queries and keys of this block are turned by their positions.
  bool rotates(int block) const {
    return positions == Positions::rope && (no_rope_every == 0 || (block + 1) % no_rope_every != 0);
  }
  // Whether this block's MLP is a mixture of experts, and how many blocks' are.
  bool has_experts(int block) const;
  int64_t expert_blocks() const;
  int64_t window_of(int block) const {  // 0: none
    return full_attention_every > 0 && (block + 1) % full_attention_every == 0 ? 0 : sliding_window;
  }
  bool norm_before() const { return norm_place != NormPlace::after; }
  bool norm_after() const { return norm_place != NormPlace::before; }
  bool has_norm_bias() const { return norm == Norm::layernorm && norm_bias; }
  // Columns of rope's table: those of long sequences, and of blocks with another base, are as many
  // again, in this order.
  int64_t rope_cols() const {
    return rotary_size() * (1 + (rope_scaling.switches() ? 1 : 0) + (local_rope_theta > 0 ? 1 : 0));
  }
  int64_t rotary_size() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  int64_t query_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * kv_size(); }

  // "5 positions", and why there are no more where that is known.
  std::string positions_text() const;

  // Fills defaults and throws UserError, naming `where` and the field, if the sizes make no model.
  void complete(const std::string& where);
  // Rows of the table of positions, if there is one.
  int64_t learned_positions() const {
    return positions == Positions::learned ? max_sequence_length + position_offset : 0;
  }
  // Distinct parameters (a tied head counts once), without adapters.
  int64_t parameter_count() const;
  // Those that one token is computed with: of experts, the chosen ones alone.
  int64_t active_parameter_count() const;
  // Model FLOPs of one trained token (forward and backward) at this sequence length: 6 for each
  // parameter that takes part in a matrix product (so not positions; the token table once, as the
  // head; 4 where it is frozen below adapters), plus attention over the causal half.
  double flops_per_token(int64_t sequence_length) const;

  // The same model without adapters.
  ModelSpec base() const {
    ModelSpec spec = *this;
    spec.lora = {};
    return spec;
  }

  Json to_json() const;

 private:
  void check_options(const std::string& where) const;
  void check_rope_scaling(const std::string& where) const;
};

// An inline spec ("model": {...}): strict; `where` is its JSON path.
ModelSpec spec_from_json(const Json& json, const std::string& where);
// A Hugging Face config.json of a family that hf_config.h names, which writes them too.
ModelSpec spec_from_hf_config(const Json& json, const std::string& where);
// A named preset; throws UserError with the nearest name.
ModelSpec spec_from_preset(const std::string& name, const std::string& where);
std::vector<std::string> preset_names();

// Reads the fields present in "experts", a section of the model's, over what `experts` holds.
void read_experts(JsonObject& model, ExpertSpec& experts);
// Fills defaults and checks the sizes; `fail` is given a field and what is wrong with it.
void complete_experts(
    ModelSpec& spec,
    const std::function<void(std::string_view field, const std::string& message)>& fail);

// JSON numbers are doubles: 1e-5f would be printed as 9.999999747378752e-06. The shortest decimal
// that reads back as the same float is what the user wrote.
double shortest(float value);

}  // namespace onefold

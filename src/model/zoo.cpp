// Presets are shapes for training from scratch. Where a published model stretches its context with
// scaled rotary frequencies (Llama 3.2), the preset has the plain frequencies and the context
// length before scaling: as many parameters and FLOPs, but not a config to load the published
// weights with; their own config.json is.
#include "model/zoo.h"

#include <cmath>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace onefold {
namespace {

ModelSpec gpt2(int64_t hidden, int64_t layers, int64_t heads) {
  ModelSpec spec;
  spec.vocab_size = 50257;
  spec.hidden_size = hidden;
  spec.num_layers = layers;
  spec.num_heads = heads;
  spec.max_sequence_length = 1024;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  return spec;
}

ModelSpec llama(int64_t vocab, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                int64_t intermediate) {
  ModelSpec spec;
  spec.vocab_size = vocab;
  spec.hidden_size = hidden;
  spec.num_layers = layers;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads;
  spec.intermediate_size = intermediate;
  spec.max_sequence_length = 4096;
  spec.norm = Norm::rmsnorm;
  spec.positions = Positions::rope;
  spec.activation = Activation::silu;
  spec.gated = true;
  spec.tie_embeddings = false;
  return spec;
}

ModelSpec llama3(int64_t hidden, int64_t layers, int64_t heads, int64_t intermediate, bool tied) {
  ModelSpec spec = llama(128256, hidden, layers, heads, 8, intermediate);
  spec.max_sequence_length = 8192;
  spec.rope_theta = 500000;
  spec.tie_embeddings = tied;
  return spec;
}

ModelSpec qwen2(int64_t vocab, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                int64_t intermediate, bool tied) {
  ModelSpec spec = llama(vocab, hidden, layers, heads, kv_heads, intermediate);
  spec.max_sequence_length = 131072;
  spec.norm_eps = 1e-6f;
  spec.rope_theta = 1000000;
  spec.qkv_bias = true;
  spec.tie_embeddings = tied;
  return spec;
}

ModelSpec qwen3(int64_t hidden, int64_t layers, int64_t heads, int64_t intermediate, bool tied) {
  ModelSpec spec = qwen2(151936, hidden, layers, heads, 8, intermediate, tied);
  spec.max_sequence_length = 40960;
  spec.head_dim = 128;
  spec.qkv_bias = false;
  spec.qk_norm = true;
  return spec;
}

ModelSpec mixtral(int64_t hidden, int64_t layers, int64_t heads, int64_t intermediate,
                  int64_t experts) {
  ModelSpec spec = llama(32000, hidden, layers, heads, 8, intermediate);
  spec.max_sequence_length = 32768;
  spec.rope_theta = 1000000;
  spec.experts = {.count = experts, .per_token = 2};
  return spec;
}

ModelSpec mixtral_8x22b() {
  ModelSpec spec = mixtral(6144, 56, 48, 16384, 8);
  spec.max_sequence_length = 65536;
  return spec;
}

// Qwen3's mixtures; `dense` is a width that no block has.
ModelSpec qwen3_moe(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads, int64_t dense,
                    int64_t intermediate) {
  ModelSpec spec = qwen3(hidden, layers, heads, dense, false);
  spec.num_kv_heads = kv_heads;
  spec.experts = {.count = 128, .per_token = 8, .intermediate_size = intermediate};
  return spec;
}

ModelSpec mistral_7b() {
  ModelSpec spec = llama(32000, 4096, 32, 32, 8, 14336);
  spec.max_sequence_length = 32768;
  spec.sliding_window = 4096;
  return spec;
}

// Gemma 2; 3 has other windows, and norms of queries and keys in the place of caps.
ModelSpec gemma2(int64_t vocab, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                 int64_t intermediate) {
  ModelSpec spec = llama(vocab, hidden, layers, heads, kv_heads, intermediate);
  spec.head_dim = 256;
  spec.max_sequence_length = 8192;
  spec.norm = Norm::rmsnorm1p;
  spec.norm_eps = 1e-6f;
  spec.norm_place = NormPlace::both;
  spec.activation = Activation::gelu_tanh;
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  spec.tie_embeddings = true;
  spec.sliding_window = 4096;
  spec.full_attention_every = 2;
  spec.attention_soft_cap = 50;
  spec.logits_soft_cap = 30;
  return spec;
}

ModelSpec gemma3(int64_t hidden, int64_t layers, int64_t intermediate) {
  ModelSpec spec = gemma2(262144, hidden, layers, 4, 1, intermediate);
  spec.max_sequence_length = 32768;
  spec.rope_theta = 1000000;
  spec.local_rope_theta = 10000;
  spec.qk_norm = true;
  spec.sliding_window = 512;
  spec.full_attention_every = 6;
  spec.attention_soft_cap = spec.logits_soft_cap = 0;
  return spec;
}

ModelSpec olmo2(int64_t hidden, int64_t layers, int64_t heads, int64_t intermediate) {
  ModelSpec spec = llama(100352, hidden, layers, heads, heads, intermediate);
  spec.norm_eps = 1e-6f;
  spec.norm_place = NormPlace::after;
  spec.qk_norm = spec.qk_norm_whole = true;
  spec.rope_theta = 500000;
  return spec;
}

ModelSpec granite_2b() {
  ModelSpec spec = llama(49159, 2048, 40, 32, 8, 8192);
  spec.max_sequence_length = 131072;
  spec.rope_theta = 10000000;
  spec.tie_embeddings = true;
  spec.embedding_scale = 12;
  spec.attention_scale = 0.015625f;
  spec.residual_scale = 0.22f;
  spec.logits_scale = 0.125f;
  return spec;
}

ModelSpec pythia(int64_t vocab, int64_t hidden, int64_t layers, int64_t heads) {
  ModelSpec spec = gpt2(hidden, layers, heads);
  spec.vocab_size = vocab;
  spec.max_sequence_length = 2048;
  spec.positions = Positions::rope;
  spec.rotary_dim = hidden / heads / 4;
  spec.activation = Activation::gelu;
  spec.parallel = Parallel::two_norms;
  spec.tie_embeddings = false;
  return spec;
}

ModelSpec gptj_6b() {
  ModelSpec spec = pythia(50400, 4096, 28, 16);
  spec.rotary_dim = 64;
  spec.activation = Activation::gelu_tanh;
  spec.parallel = Parallel::one_norm;
  spec.qkv_bias = spec.attention_out_bias = false;
  spec.head_bias = true;
  return spec;
}

ModelSpec opt(int64_t hidden, int64_t layers, int64_t heads) {
  ModelSpec spec = gpt2(hidden, layers, heads);
  spec.vocab_size = 50272;
  spec.max_sequence_length = 2048;
  spec.position_offset = 2;
  spec.activation = Activation::relu;
  return spec;
}

ModelSpec command_r() {
  ModelSpec spec = llama(256000, 8192, 40, 64, 64, 22528);
  spec.max_sequence_length = 131072;
  spec.norm = Norm::layernorm;
  spec.norm_bias = false;
  spec.parallel = Parallel::one_norm;
  spec.rope_theta = 8000000;
  spec.logits_scale = 0.0625f;
  spec.tie_embeddings = true;
  return spec;
}

ModelSpec falcon_7b() {
  ModelSpec spec = pythia(65024, 4544, 32, 71);
  spec.num_kv_heads = 1;
  spec.rotary_dim = 0;
  spec.parallel = Parallel::one_norm;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = false;
  spec.tie_embeddings = true;
  return spec;
}

ModelSpec bloom(int64_t hidden, int64_t layers, int64_t heads) {
  ModelSpec spec = gpt2(hidden, layers, heads);
  spec.vocab_size = 250880;
  spec.max_sequence_length = 2048;
  spec.positions = Positions::alibi;
  spec.embedding_norm = true;
  return spec;
}

ModelSpec mpt_7b() {
  ModelSpec spec = gpt2(4096, 32, 32);
  spec.vocab_size = 50432;
  spec.max_sequence_length = 2048;
  spec.positions = Positions::alibi;
  spec.norm_bias = spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = false;
  spec.activation = Activation::gelu;
  return spec;
}

// The tiny ones exist for tests: sizes that no vector width, tile or world size divides. 263 tokens
// are enough for bytes and a few special tokens.
ModelSpec gpt2_tiny() {
  ModelSpec spec = gpt2(39, 3, 3);
  spec.vocab_size = 263;
  spec.intermediate_size = 149;
  spec.max_sequence_length = 67;
  return spec;
}

ModelSpec llama_tiny() {
  ModelSpec spec = llama(263, 42, 3, 3, 1, 103);
  spec.max_sequence_length = 67;
  return spec;
}

ModelSpec qwen3_tiny() {
  ModelSpec spec = qwen3(46, 3, 4, 89, true);
  spec.vocab_size = 263;
  spec.num_kv_heads = 2;
  spec.head_dim = 22;  // not hidden_size / num_heads
  spec.max_sequence_length = 67;
  return spec;
}

ModelSpec mixtral_tiny() {
  ModelSpec spec = mixtral(42, 3, 3, 31, 5);
  spec.vocab_size = 263;
  spec.num_kv_heads = 1;
  spec.max_sequence_length = 67;
  return spec;
}

// Options of other families: Gemma's windows, caps and norms; norms after the branches and scales
// (OLMo 2, Granite); parallel branches with two norms, as GPT-NeoX has them, and with one and a
// biased head, as GPT-J.
ModelSpec gemma_tiny() {
  ModelSpec spec = llama(263, 42, 3, 3, 1, 61);
  spec.head_dim = 10;
  spec.max_sequence_length = 67;
  spec.norm = Norm::rmsnorm1p;
  spec.norm_place = NormPlace::both;
  spec.activation = Activation::gelu_tanh;
  spec.qk_norm = spec.tie_embeddings = true;
  spec.sliding_window = 5;
  spec.full_attention_every = 2;
  spec.local_rope_theta = 100;
  spec.attention_scale = 0.25f;
  spec.attention_soft_cap = 20;
  spec.logits_soft_cap = 15;
  spec.embedding_scale = std::sqrt(42.0f);
  return spec;
}

ModelSpec olmo2_tiny() {
  ModelSpec spec = llama(263, 42, 3, 3, 1, 61);
  spec.max_sequence_length = 67;
  spec.norm_place = NormPlace::after;
  spec.qk_norm = spec.qk_norm_whole = true;
  spec.residual_scale = 0.5f;
  spec.logits_scale = 2;
  return spec;
}

ModelSpec neox_tiny() {
  ModelSpec spec = gpt2(42, 3, 3);
  spec.vocab_size = 263;
  spec.intermediate_size = 89;
  spec.max_sequence_length = 67;
  spec.positions = Positions::rope;
  spec.rotary_dim = 6;
  spec.activation = Activation::gelu;
  spec.parallel = Parallel::two_norms;
  spec.tie_embeddings = false;
  return spec;
}

ModelSpec gptj_tiny() {
  ModelSpec spec = neox_tiny();
  spec.parallel = Parallel::one_norm;
  spec.qkv_bias = spec.attention_out_bias = false;
  spec.head_bias = true;
  return spec;
}

ModelSpec bloom_tiny() {
  ModelSpec spec = bloom(42, 3, 3);
  spec.vocab_size = 263;
  spec.max_sequence_length = 67;
  spec.alibi_scale = 0.5f;
  spec.embedding_scale = 3;
  return spec;
}

// What `make demo` trains: small enough to learn to write in a minute on two cores. The tokenizer
// decides the vocabulary.
ModelSpec demo() {
  ModelSpec spec = llama(0, 128, 4, 4, 4, 384);
  spec.norm_eps = 1e-6f;
  spec.max_sequence_length = 256;
  spec.tie_embeddings = true;
  return spec;
}

struct Preset {
  const char* name;
  std::function<ModelSpec()> make;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"gpt2", [] { return gpt2(768, 12, 12); }},
      {"gpt2-medium", [] { return gpt2(1024, 24, 16); }},
      {"gpt2-large", [] { return gpt2(1280, 36, 20); }},
      {"gpt2-xl", [] { return gpt2(1600, 48, 25); }},
      {"llama-30b", [] { return llama(32000, 6656, 60, 52, 52, 17920); }},
      {"llama-2-7b", [] { return llama(32000, 4096, 32, 32, 32, 11008); }},
      {"llama-2-13b", [] { return llama(32000, 5120, 40, 40, 40, 13824); }},
      {"llama-2-70b", [] { return llama(32000, 8192, 80, 64, 8, 28672); }},
      {"llama-3-8b", [] { return llama3(4096, 32, 32, 14336, false); }},
      {"llama-3-70b", [] { return llama3(8192, 80, 64, 28672, false); }},
      {"llama-3.2-1b", [] { return llama3(2048, 16, 32, 8192, true); }},
      {"llama-3.2-3b", [] { return llama3(3072, 28, 24, 8192, true); }},
      {"qwen2-0.5b", [] { return qwen2(151936, 896, 24, 14, 2, 4864, true); }},
      {"qwen2-1.5b", [] { return qwen2(151936, 1536, 28, 12, 2, 8960, true); }},
      {"qwen2.5-3b", [] { return qwen2(151936, 2048, 36, 16, 2, 11008, true); }},
      {"qwen2-7b", [] { return qwen2(152064, 3584, 28, 28, 4, 18944, false); }},
      {"qwen3-0.6b", [] { return qwen3(1024, 28, 16, 3072, true); }},
      {"qwen3-1.7b", [] { return qwen3(2048, 28, 16, 6144, true); }},
      {"qwen3-4b", [] { return qwen3(2560, 36, 32, 9728, true); }},
      {"qwen3-8b", [] { return qwen3(4096, 36, 32, 12288, false); }},
      {"qwen3-30b-a3b", [] { return qwen3_moe(2048, 48, 32, 4, 6144, 768); }},
      {"qwen3-235b-a22b", [] { return qwen3_moe(4096, 94, 64, 4, 12288, 1536); }},
      {"mixtral-8x7b", [] { return mixtral(4096, 32, 32, 14336, 8); }},
      {"mixtral-8x22b", [] { return mixtral_8x22b(); }},
      {"mistral-7b", mistral_7b},
      {"gemma-2-2b", [] { return gemma2(256000, 2304, 26, 8, 4, 9216); }},
      {"gemma-2-9b", [] { return gemma2(256000, 3584, 42, 16, 8, 14336); }},
      {"gemma-3-270m", [] { return gemma3(640, 18, 2048); }},
      {"gemma-3-1b", [] { return gemma3(1152, 26, 6912); }},
      {"olmo-2-1b", [] { return olmo2(2048, 16, 16, 8192); }},
      {"olmo-2-7b", [] { return olmo2(4096, 32, 32, 11008); }},
      {"granite-3.3-2b", granite_2b},
      {"pythia-70m", [] { return pythia(50304, 512, 6, 8); }},
      {"pythia-160m", [] { return pythia(50304, 768, 12, 12); }},
      {"pythia-410m", [] { return pythia(50304, 1024, 24, 16); }},
      {"pythia-1b", [] { return pythia(50304, 2048, 16, 8); }},
      {"pythia-1.4b", [] { return pythia(50304, 2048, 24, 16); }},
      {"pythia-2.8b", [] { return pythia(50304, 2560, 32, 32); }},
      {"pythia-6.9b", [] { return pythia(50432, 4096, 32, 32); }},
      {"gpt-j-6b", gptj_6b},
      {"opt-125m", [] { return opt(768, 12, 12); }},
      {"opt-1.3b", [] { return opt(2048, 24, 32); }},
      {"opt-2.7b", [] { return opt(2560, 32, 32); }},
      {"opt-6.7b", [] { return opt(4096, 32, 32); }},
      {"command-r", command_r},
      {"falcon-7b", falcon_7b},
      {"bloom-560m", [] { return bloom(1024, 24, 16); }},
      {"bloom-7b1", [] { return bloom(4096, 30, 32); }},
      {"mpt-7b", mpt_7b},
      {"gpt2-tiny", gpt2_tiny},
      {"llama-tiny", llama_tiny},
      {"qwen3-tiny", qwen3_tiny},
      {"mixtral-tiny", mixtral_tiny},
      {"gemma-tiny", gemma_tiny},
      {"olmo2-tiny", olmo2_tiny},
      {"neox-tiny", neox_tiny},
      {"gptj-tiny", gptj_tiny},
      {"bloom-tiny", bloom_tiny},
      {"demo", demo},
  };
  return all;
}

}  // namespace

ModelSpec open_preset(const std::string& name, const std::string& where) {
  for (const Preset& preset : presets())
    if (preset.name == name) return preset.make();
  const std::vector<std::string> names = preset_names();
  user_error("{}: no preset is named \"{}\"{}; there are: {}", where, name,
             did_you_mean(name, names), join(names, ", "));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace onefold

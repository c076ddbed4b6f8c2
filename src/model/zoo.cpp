// Presets are shapes for training from scratch. Where a published model stretches its context with
// scaled rotary frequencies (Llama 3.2), the preset has the plain frequencies and the context
// length before scaling: as many parameters and FLOPs, but not a config to load the published
// weights with; their own config.json is.
#include "model/zoo.h"

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
      {"gpt2-tiny", gpt2_tiny},
      {"llama-tiny", llama_tiny},
      {"qwen3-tiny", qwen3_tiny},
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

#include "model/spec.h"

#include <gtest/gtest.h>

#include <map>

#include "error_text.h"
#include "model/hf_config.h"
#include "model/spec_limits.h"
#include "model/unit.h"

namespace onefold {
namespace {

Json json(const char* text) { return parse_json(text, "test"); }

ModelSpec inline_spec(const char* text) { return spec_from_json(json(text), "model"); }
ModelSpec hf(const Json& config) { return spec_from_hf_config(config, "config"); }

const char* const kSmall =
    R"({"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4})";

TEST(Presets, HaveThePublishedParameterCounts) {
  const std::map<std::string, int64_t> published = {
      {"gpt2", 124439808},
      {"gpt2-medium", 354823168},
      {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},
      {"llama-2-7b", 6738415616},
      {"llama-2-13b", 13015864320},
      {"llama-30b", 32528943616},
      {"llama-2-70b", 68976648192},
      {"llama-3-8b", 8030261248},
      {"llama-3-70b", 70553706496},
      {"llama-3.2-1b", 1235814400},
      {"llama-3.2-3b", 3212749824},
      {"qwen2-0.5b", 494032768},
      {"qwen2-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},
      {"qwen2-7b", 7615616512},
      {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},
      {"mistral-7b", 7241732096},
      {"gemma-2-2b", 2614341888},
      {"gemma-2-9b", 9241705984},
      {"gemma-3-270m", 268098176},
      {"gemma-3-1b", 999885952},
      {"olmo-2-1b", 1484916736},
      {"olmo-2-7b", 7298617344},
      {"granite-3.3-2b", 2533539840},
      {"pythia-70m", 70426624},
      {"pythia-160m", 162322944},
      {"pythia-410m", 405334016},
      {"pythia-1b", 1011781632},
      {"pythia-1.4b", 1414647808},
      {"pythia-2.8b", 2775208960},
      {"pythia-6.9b", 6857302016},
      {"gpt-j-6b", 6050882784},
      {"opt-125m", 125239296},
      {"opt-1.3b", 1315758080},
      {"opt-2.7b", 2651596800},
      {"opt-6.7b", 6658473984},
      {"command-r", 34980831232},
      {"falcon-7b", 6921720704},
      {"mixtral-8x7b", 46702792704},
      {"mixtral-8x22b", 140620634112},
      {"qwen3-30b-a3b", 30532122624},
      {"qwen3-235b-a22b", 235093634560},
  };
  for (const auto& [name, count] : published)
    EXPECT_EQ(spec_from_preset(name, "model").parameter_count(), count) << name;
}

TEST(Presets, TinyOnesAreTinyAndAllAreComplete) {
  for (const std::string& name : preset_names()) {
    ModelSpec spec = spec_from_preset(name, "model");
    EXPECT_GT(spec.head_dim, 0) << name;
    if (contains(name, "tiny")) {
      EXPECT_LT(spec.parameter_count(), 100000) << name;
    }
  }
  ModelSpec demo = spec_from_preset("demo", "model");
  EXPECT_EQ(demo.vocab_size, 0) << "the tokenizer decides";
  demo.vocab_size = 2048;
  EXPECT_EQ(demo.parameter_count(), 1115264);
}

TEST(Presets, AMisspeltNameGetsTheNearest) {
  EXPECT_ERROR(spec_from_preset("gtp2", "model"), "model", "\"gtp2\"", "did you mean \"gpt2\"?",
               "llama-3-8b");
}

TEST(Spec, FillsDefaults) {
  const ModelSpec spec = inline_spec(kSmall);
  EXPECT_EQ(spec.num_kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 8);
  EXPECT_EQ(spec.intermediate_size, 128);
  EXPECT_EQ(spec.max_sequence_length, 1024);
  EXPECT_EQ(spec.qkv_size(), 96);
}

TEST(Spec, VocabularyMayBeLeftToTheTokenizer) {
  EXPECT_EQ(inline_spec(R"({"hidden_size": 32, "num_layers": 2, "num_heads": 4})").vocab_size, 0);
  EXPECT_ERROR(
      inline_spec(R"({"vocab_size": 0, "hidden_size": 32, "num_layers": 2, "num_heads": 4})"),
      "model.vocab_size must be at least 1");
}

TEST(Spec, RoundTripsThroughJson) {
  for (const std::string& name : preset_names()) {
    const Json once = spec_from_preset(name, "model").to_json();
    EXPECT_EQ(spec_from_json(once, "model").to_json().dump(), once.dump()) << name;
  }
  EXPECT_EQ(spec_from_preset("qwen2-7b", "model").to_json()["norm_eps"].dump(), "1e-06");
}

TEST(Spec, WhatAnOverrideMakesIdleIsLeftOut) {
  for (const char* text : {R"({"preset": "gemma-3-1b", "sliding_window": 0})",
                           R"({"preset": "gemma-3-1b", "positions": "learned"})",
                           R"({"preset": "pythia-70m", "positions": "learned"})",
                           R"({"preset": "opt-125m", "positions": "rope"})",
                           R"({"preset": "bloom-tiny", "positions": "learned"})",
                           R"({"preset": "gemma-3-1b", "positions": "alibi"})",
                           R"({"preset": "olmo-2-1b", "qk_norm": false})",
                           R"({"preset": "command-r", "norm": "rmsnorm"})"}) {
    const Json once = inline_spec(text).to_json();
    EXPECT_EQ(spec_from_json(once, "model").to_json().dump(), once.dump()) << text;
  }
}

TEST(Spec, OptionsThatMakeNoSenseAreNamed) {
  const auto with = [](const char* preset, const char* key, const Json& value) {
    return [=] { spec_from_json({{"preset", preset}, {key, value}}, "model"); };
  };
  EXPECT_ERROR(with("llama-tiny", "full_attention_every", 2)(), "model.full_attention_every",
               "there is no sliding_window");
  EXPECT_ERROR(with("llama-tiny", "qk_norm_whole", true)(), "model.qk_norm_whole",
               "qk_norm is false");
  EXPECT_ERROR(with("llama-tiny", "norm_bias", false)(), "only layernorm has a bias");
  EXPECT_ERROR(with("llama-tiny", "position_offset", 2)(), "model.position_offset",
               "there is no table");
  EXPECT_ERROR(with("gpt2-tiny", "rotary_dim", 2)(), "model.rotary_dim", "positions are learned");
  EXPECT_ERROR(with("llama-tiny", "rotary_dim", 5)(), "model.rotary_dim must be even");
  EXPECT_ERROR(with("llama-tiny", "rotary_dim", 16)(), "at most head_dim 14, not 16");
  EXPECT_ERROR(with("gemma-tiny", "local_rope_theta", 0.5)(), "local_rope_theta must be greater");
  EXPECT_ERROR(with("llama-tiny", "sliding_window", -1)(), "model.sliding_window must be at least");
  for (const char* key : {"attention_scale", "attention_soft_cap", "logits_soft_cap"})
    EXPECT_ERROR(with("llama-tiny", key, -1)(), key, "must be at least 0, not -1");
  for (const char* key : {"logits_scale", "embedding_scale", "residual_scale"})
    EXPECT_ERROR(with("llama-tiny", key, 0)(), key, "must be greater than 0, not 0");
  EXPECT_ERROR(with("bloom-tiny", "alibi_scale", 0)(), "model.alibi_scale must be greater than 0");
  EXPECT_ERROR(with("llama-tiny", "alibi_scale", 2)(), "model.alibi_scale", "\"alibi\"");
  EXPECT_ERROR(with("bloom-tiny", "rope_theta", 100)(), "model.rope_theta", "positions are alibi");
  EXPECT_ERROR(with("bloom-tiny", "position_offset", 2)(), "model.position_offset", "no table");
  EXPECT_ERROR(with("bloom-tiny", "attention_soft_cap", 20)(), "model.attention_soft_cap",
               "positions alibi");
  EXPECT_ERROR(with("gptj-tiny", "norm_place", "both")(), "model.parallel", "norm_place");
  EXPECT_ERROR(with("gptj-tiny", "parallel", "yes")(), "model.parallel must be one of", "one_norm");
}

TEST(Spec, ActivationNamesSayWhetherItIsGated) {
  Json small = json(kSmall);
  small["activation"] = "swiglu";
  ModelSpec spec = spec_from_json(small, "model");
  EXPECT_TRUE(spec.gated);
  EXPECT_EQ(spec.activation, Activation::silu);
  small["activation"] = "swigloo";
  EXPECT_ERROR(spec_from_json(small, "model"), "model.activation must be one of",
               "did you mean \"swiglu\"?");
}

TEST(Spec, PresetWithOverridesDerivesTheOpenSizesAgain) {
  const ModelSpec spec = inline_spec(R"({"preset": "gpt2", "hidden_size": 384, "num_heads": 6})");
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_EQ(spec.intermediate_size, 1536);
  EXPECT_EQ(spec.num_layers, 12);
  EXPECT_EQ(spec.vocab_size, 50257);
  EXPECT_ERROR(inline_spec(R"({"preset": "gpt3"})"), "model.preset", "did you mean");
}

TEST(Spec, RefusesWhatMakesNoModel) {
  const auto with = [](const char* key, const Json& value) {
    Json small = json(kSmall);
    small[key] = value;
    return [small] { spec_from_json(small, "model"); };
  };
  EXPECT_ERROR(with("hiden_size", 3)(), "model.hiden_size is not a known key");
  EXPECT_ERROR(with("num_heads", 5)(), "model.hidden_size 32", "num_heads 5");
  EXPECT_ERROR(with("num_kv_heads", 3)(), "model.num_kv_heads must divide num_heads");
  EXPECT_ERROR(with("dropout", 1.0)(), "model.dropout");
  EXPECT_ERROR(with("norm_eps", 0)(), "model.norm_eps");
  EXPECT_ERROR(with("init_std", -1)(), "model.init_std");
  EXPECT_ERROR(with("rope_theta", 1e6)(), "model.rope_theta has no effect", "learned");
  EXPECT_ERROR(with("vocab_size", "50257")(), "model.vocab_size must be an integer");
  Json odd = json(kSmall);
  odd["positions"] = "rope";
  odd["head_dim"] = 7;
  EXPECT_ERROR(spec_from_json(odd, "model"), "model.head_dim must be even");
  EXPECT_ERROR(inline_spec(R"({"vocab_size": 10})"), "model.hidden_size is missing");
}

TEST(Spec, EverySizeHasALargestValueThatIsNamed) {
  const auto refuses = [](const char* key, int64_t largest, Json others = Json::object()) {
    Json spec = json(kSmall);
    spec["positions"] = "rope";
    spec.update(others);
    for (const int64_t wrong : {largest + 1, int64_t{1'000'000'000'000}, INT64_MAX}) {
      spec[key] = wrong;
      EXPECT_ERROR(spec_from_json(spec, "model"),
                   fmt::format("model.{} is {}; the largest is {}", key, wrong, largest));
    }
    spec[key] = largest;
    EXPECT_EQ(error_text([&] { spec_from_json(spec, "model"); }), "") << key;
  };
  refuses("vocab_size", 2147483647);
  refuses("hidden_size", 1048576, {{"head_dim", 8}});
  refuses("num_layers", 65536);
  refuses("num_heads", 65536, {{"head_dim", 8}});
  refuses("head_dim", 65536);
  refuses("head_dim", 1024, {{"num_heads", 16384}});  // of all heads: 2^24
  refuses("intermediate_size", 16777216);
  refuses("max_sequence_length", 2147483647);
}

// Each size by itself would do, and their product leaves int64 or the largest model.
TEST(Spec, ModelsOfTooManyParametersAreRefusedWithTheirSizes) {
  Json spec = json(kSmall);
  spec.update({{"hidden_size", 1048576},
               {"head_dim", 8},
               {"num_layers", 65536},
               {"intermediate_size", 16777216}});
  EXPECT_ERROR(spec_from_json(spec, "model"), "more than 10^15 parameters",
               "model.num_layers (65536)", "model.hidden_size (1048576)");
  spec.update({{"num_layers", 1}, {"intermediate_size", 8}, {"vocab_size", 2147483647}});
  EXPECT_ERROR(spec_from_json(spec, "model"), "more than 10^15 parameters",
               "model.vocab_size (2147483647)");
}

TEST(StepSizes, WithinTheLimitsPass) {
  const ModelSpec gpt2 = spec_from_preset("gpt2", "model");
  const StepSizeNames names{"micro", "accumulation", "length"};
  check_step_sizes(gpt2, {.micro_batch = 256, .micros = 4096, .sequence = 1024}, names);
  check_step_sizes(gpt2, {.micro_batch = 1 << 20, .sequence = 1024}, names);
}

TEST(StepSizes, BeyondThemTheSizeAndItsLargestValueAreNamed) {
  ModelSpec spec = spec_from_preset("gpt2", "model");
  const auto check = [&](const StepSizes& sizes) {
    return error_text([&] { check_step_sizes(spec, sizes, {"micro", "accumulation", "length"}); });
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(check({.micro_batch = huge, .micros = 4, .sequence = 1024}),
            "micro is 4611686018427387904; with 4 micro-batches in a step, and sequences of 1024 "
            "tokens, the largest is 262144");
  EXPECT_EQ(check({.micros = huge, .sequence = 8}),
            "accumulation is 4611686018427387904; with 12 layers the largest is 74898");
  EXPECT_EQ(check({.micros = 70000, .sequence = 1 << 20}),
            "accumulation is 70000; with sequences of 1048576 tokens the largest is 1024");
  EXPECT_EQ(check({.sequence = huge}), "length is 4611686018427387904; the largest is 1073741824");
  // What a step keeps: the largest size that is named passes, and the next does not.
  spec.num_layers = 65536;
  spec.intermediate_size = 16777216;
  const int64_t of_token = 65536 * saved_elems_per_token(spec);
  const int64_t largest = (int64_t{1} << 58) / of_token / 100;
  EXPECT_EQ(check({.micro_batch = largest, .sequence = 100}), "");
  EXPECT_EQ(check({.micro_batch = largest + 1, .sequence = 100}),
            fmt::format("micro is {}; with 1 micro-batches in a step, and a model that keeps {} "
                        "numbers for each token, the largest is {}",
                        largest + 1, of_token, largest));
  EXPECT_TRUE(contains(check({.micro_batch = 1, .sequence = 1 << 30}), "length is 1073741824"));
}

// The bound is of what blocks really keep.
TEST(StepSizes, ABlockKeepsNoMoreThanTheySay) {
  for (const std::string& preset : preset_names()) {
    ModelSpec spec = spec_from_preset(preset, "model");
    if (spec.vocab_size == 0) spec.vocab_size = 256;
    const int64_t tokens = 3 * 64;
    const int64_t saved_bytes = make_attention(spec, 0)->saved_bytes(3, 64, DType::f32) +
                                make_mlp(spec, 0)->saved_bytes(3, 64, DType::f32);
    // Both halves keep their inputs.
    EXPECT_LE(saved_bytes / 4 + 2 * tokens * spec.hidden_size, tokens * saved_elems_per_token(spec))
        << preset;
  }
}

TEST(Flops, CountMatrixProductsAndTheCausalHalfOfAttention) {
  const ModelSpec spec = spec_from_preset("gpt2", "model");
  const double matrices = 6.0 * (124439808 - 1024 * 768);
  EXPECT_DOUBLE_EQ(spec.flops_per_token(1024), matrices + 12.0 * 12 * 768 * 1024 / 2);
  const ModelSpec untied = spec_from_preset("llama-3-8b", "model");
  EXPECT_DOUBLE_EQ(untied.flops_per_token(1),
                   6.0 * (8030261248 - 128256LL * 4096) + 6.0 * 32 * 4096);
}

Json gpt2_config() {
  return json(R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
    "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "activation_function": "gelu_new",
    "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
    "n_inner": null, "architectures": ["GPT2LMHeadModel"], "bos_token_id": 50256})");
}

Json llama_config() {
  return json(R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null, "attention_bias": false,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
}

Json qwen3_config() {
  return json(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null, "attention_bias": false,
    "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28,
    "tie_word_embeddings": true})");
}

TEST(HuggingFace, ConfigsGiveTheSpecsOfThePresets) {
  Json gpt2 = spec_from_preset("gpt2", "model").to_json();
  gpt2["dropout"] = 0.1;
  EXPECT_EQ(hf(gpt2_config()).to_json().dump(), gpt2.dump());
  EXPECT_EQ(hf(llama_config()).to_json().dump(),
            spec_from_preset("llama-3-8b", "model").to_json().dump());
  EXPECT_EQ(hf(qwen3_config()).to_json().dump(),
            spec_from_preset("qwen3-0.6b", "model").to_json().dump());
}

TEST(HuggingFace, Qwen2HasBiasesOnQueriesKeysAndValuesOnly) {
  Json config = qwen3_config();
  config["model_type"] = "qwen2";
  config.erase("head_dim");
  const ModelSpec spec = hf(config);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.attention_out_bias);
  EXPECT_FALSE(spec.qk_norm);
  EXPECT_EQ(spec.head_dim, 64);
}

TEST(HuggingFace, ReadsTheNewerRopeParameters) {
  Json config = llama_config();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  EXPECT_EQ(hf(config).rope_theta, 500000.0f);
}

TEST(HuggingFace, RefusesByNameWhatItCannotCompute) {
  const auto llama = [](const char* key, const Json& value) {
    Json config = llama_config();
    config[key] = value;
    return [config] { hf(config); };
  };
  EXPECT_ERROR(llama("model_type", "t5")(), "config.model_type is \"t5\"", "gpt2, llama");
  EXPECT_ERROR(llama("rope_scaling", {{"rope_type", "proportional"}, {"factor", 8.0}})(),
               "config.rope_scaling", "type proportional", "not supported", "longrope");
  EXPECT_ERROR(llama("rope_scaling", {{"rope_type", "longrope"}, {"factor", 8.0}})(),
               "config.rope_scaling.short_factor");
  EXPECT_ERROR(
      llama("rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}, {"attention_factor", 0}})(),
      "config.rope_scaling", "attention_factor must be greater than 0");
  EXPECT_ERROR(llama("is_causal", false)(), "config.is_causal is false: attention is causal");
  EXPECT_ERROR(llama("is_causal", nullptr)(), "config.is_causal is null");
  EXPECT_NO_THROW(llama("is_causal", true)());
  EXPECT_ERROR(llama("num_attention_heads", 0)(), "config.num_attention_heads is 0", "at least 1");
  EXPECT_NO_THROW(llama("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})())
      << "within the context, the plain frequencies";
  EXPECT_ERROR(llama("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}})(),
               "config.rope_scaling.low_freq_factor is missing");
  EXPECT_ERROR(llama("hidden_act", "mish")(), "config.hidden_act is \"mish\"", "silu");
  EXPECT_ERROR(llama("attention_dropout", 0.1)(), "config.attention_dropout is 0.1");
  EXPECT_ERROR(llama("partial_rotary_factor", 0.01)(), "config.partial_rotary_factor is 0.01",
               "pairs are needed");
  EXPECT_ERROR(llama("quantization_config", {{"bits", 4}})(), "config.quantization_config");
  EXPECT_ERROR(hf(json(R"({"hidden_size": 3})")), "has no model_type");

  Json gpt2 = gpt2_config();
  gpt2["attn_pdrop"] = 0.2;
  EXPECT_ERROR(hf(gpt2), "config.attn_pdrop is 0.2", "resid_pdrop");
}

TEST(HuggingFace, ReadsScaledRotaryFrequencies) {
  Json config = llama_config();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(hf(config).rope_scaling.type, RopeScaling::Type::linear);
  EXPECT_EQ(hf(config).rope_scaling.factor, 2.0f);
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 32.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  const ModelSpec spec = hf(config);
  EXPECT_EQ(spec.rope_scaling.type, RopeScaling::Type::llama3);
  EXPECT_EQ(spec.rope_scaling.original_max_sequence_length, 8192);
  EXPECT_EQ(spec_from_json(spec.to_json(), "model").to_json(), spec.to_json());
}

TEST(Rope, Llama3StretchesTheSlowFrequenciesAlone) {
  RopeScaling scaling{RopeScaling::Type::llama3, 8.0f, 1.0f, 4.0f, 8192};
  const double turn = 2 * 3.14159265358979323846 / 8192;  // one turn of the original context
  // Of two frequencies, the second one is one over the base.
  const auto scaled = [&](double frequency) { return scaling.frequency(1, 2, 1 / frequency); };
  EXPECT_DOUBLE_EQ(scaled(4.5 * turn), 4.5 * turn);
  EXPECT_DOUBLE_EQ(scaled(0.9 * turn), 0.9 * turn / 8);
  // Halfway between 1 and 4 turns: the mean of both.
  EXPECT_NEAR(scaled(2.5 * turn), 2.5 * turn * (1 + 1.0 / 8) / 2, 1e-15);
  scaling.type = RopeScaling::Type::linear;
  EXPECT_DOUBLE_EQ(scaled(0.5), 0.5 / 8);
  scaling = {};
  EXPECT_DOUBLE_EQ(scaled(0.5), 0.5);
}

TEST(Rope, YarnDividesTheSlowFrequenciesAndLengthens) {
  RopeScaling scaling{RopeScaling::Type::yarn, 4.0f};
  scaling.original_max_sequence_length = 4096;
  const auto plain = [](int64_t i) { return std::pow(10000.0, -static_cast<double>(i) / 64); };
  // 128 elements: 32 turns are those of number 20.9, one turn of number 45.03; between 20 and 46
  // the share that is divided grows evenly.
  EXPECT_DOUBLE_EQ(scaling.frequency(20, 128, 10000), plain(20));
  EXPECT_DOUBLE_EQ(scaling.frequency(46, 128, 10000), plain(46) / 4);
  EXPECT_DOUBLE_EQ(scaling.frequency(33, 128, 10000), plain(33) * (1 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(scaling.length(), 0.1 * std::log(4.0) + 1);
  scaling.attention_factor = 1.5f;
  EXPECT_DOUBLE_EQ(scaling.length(), 1.5);
}

TEST(Rope, LongSequencesHaveFactorsOfTheirOwn) {
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::longrope;
  scaling.factor = 32;
  scaling.original_max_sequence_length = 4096;
  scaling.short_factor = {1.0, 1.5};
  scaling.long_factor = {2.0, 8.0};
  EXPECT_DOUBLE_EQ(scaling.frequency(1, 4, 100), 0.1 / 1.5);
  EXPECT_DOUBLE_EQ(scaling.frequency(1, 4, 100, true), 0.1 / 8);
  EXPECT_FALSE(scaling.is_long(4096));
  EXPECT_TRUE(scaling.is_long(4097));
  EXPECT_DOUBLE_EQ(scaling.length(), std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  scaling.attention_factor = 1.25f;
  EXPECT_DOUBLE_EQ(scaling.length(), 1.25);
  scaling.attention_factor = 0;
  scaling.factor = 1;
  EXPECT_DOUBLE_EQ(scaling.length(), 1);
}

// The original context is beside the object, and how far it was stretched follows.
TEST(Rope, Phi3sFilesNameTheOriginalContext) {
  Json config = llama_config();
  config["max_position_embeddings"] = 131072;
  config["original_max_position_embeddings"] = 4096;
  const int64_t pairs = hf(llama_config()).head_dim / 2;
  config["rope_scaling"] = {{"type", "su"},
                            {"short_factor", std::vector<double>(static_cast<size_t>(pairs), 1.1)},
                            {"long_factor", std::vector<double>(static_cast<size_t>(pairs), 9)}};
  const ModelSpec spec = hf(config);
  EXPECT_EQ(spec.rope_scaling.type, RopeScaling::Type::longrope);
  EXPECT_EQ(spec.rope_scaling.factor, 32);
  EXPECT_EQ(spec.rope_scaling.original_max_sequence_length, 4096);
  EXPECT_EQ(spec_from_json(spec.to_json(), "model").to_json(), spec.to_json());
  EXPECT_EQ(spec_from_hf_config(hf_config_json(spec, HfFamily::llama), "config").to_json(),
            spec.to_json());
  config["rope_scaling"]["long_factor"] = {1.0, 2.0, 3.0};
  EXPECT_ERROR(hf(config), "rope_scaling.long_factor has 3 numbers", fmt::format("{} freq", pairs));
  config["rope_scaling"]["long_factor"] = std::vector<double>(static_cast<size_t>(pairs), -1);
  EXPECT_ERROR(hf(config), "rope_scaling.long_factor has -1", "greater than 0");
}

TEST(HfBloom, FilesAndTransformersNameSizesDifferently) {
  Json config = {{"model_type", "bloom"}, {"vocab_size", 250880}, {"n_embed", 1024},
                 {"n_layer", 24},         {"seq_length", 2048},   {"num_attention_heads", 16},
                 {"offset_alibi", 100},   {"n_inner", nullptr}};
  const ModelSpec spec = hf(config);
  EXPECT_EQ(spec.to_json(), spec_from_preset("bloom-560m", "model").to_json());
  EXPECT_EQ(spec.parameter_count(), 559214592);
  for (const auto& [old, now] :
       {std::pair("n_embed", "hidden_size"), {"num_attention_heads", "n_head"}}) {
    config[now] = config[old];
    config.erase(old);
  }
  EXPECT_EQ(hf(config).to_json(), spec.to_json());
  config["hidden_dropout"] = 0.1;
  EXPECT_ERROR(hf(config), "config.hidden_dropout is 0.1", "set it to 0");
  config["hidden_dropout"] = 0;
  config["apply_residual_connection_post_layernorm"] = true;
  EXPECT_ERROR(hf(config), "apply_residual_connection_post_layernorm");
}

TEST(HfMpt, WhatIsNotComputedIsNamed) {
  const Json mpt = {{"model_type", "mpt"}, {"vocab_size", 50432}, {"d_model", 4096},
                    {"n_heads", 32},       {"n_layers", 32},      {"max_seq_len", 2048}};
  EXPECT_EQ(hf(mpt).to_json(), spec_from_preset("mpt-7b", "model").to_json());
  const auto with = [&](const char* key, const Json& value) {
    return [=] {
      Json config = mpt;
      config[key] = value;
      hf(config);
    };
  };
  EXPECT_ERROR(with("attn_config", {{"clip_qkv", 6}})(), "attn_config.clip_qkv is 6");
  EXPECT_ERROR(with("attn_config", {{"alibi", false}})(), "attn_config.alibi is false");
  EXPECT_ERROR(with("attn_config", {{"qk_ln", true}})(), "attn_config.qk_ln is true");
  EXPECT_ERROR(with("logit_scale", "inv_sqrt_d_model")(), "config.logit_scale");
  EXPECT_ERROR(with("no_bias", false)(), "config.no_bias is false");
  EXPECT_ERROR(with("expansion_ratio", 2)(), "config.expansion_ratio is 2");
}

TEST(Rope, ScalingThatMakesNoSenseIsNamed) {
  const auto scaling = [](const char* text) {
    Json model = spec_from_preset("llama-tiny", "model").to_json();
    model["rope_scaling"] = json(text);
    return [model] { spec_from_json(model, "model"); };
  };
  EXPECT_ERROR(scaling(R"({"factor": 2})")(), "model.rope_scaling.type is missing");
  EXPECT_ERROR(scaling(R"({"type": "linear"})")(), "model.rope_scaling.factor is missing");
  EXPECT_ERROR(scaling(R"({"type": "linear", "factor": 0.5})")(), "rope_scaling.factor must be at");
  EXPECT_ERROR(scaling(R"({"type": "linear", "factor": 2, "low_freq_factor": 1})")(),
               "low_freq_factor is not a known key");
  EXPECT_ERROR(scaling(R"({"type": "llama3", "factor": 2, "low_freq_factor": 4})")(),
               "rope_scaling.low_freq_factor must be", "less than high_freq_factor 4");
  Json learned = spec_from_preset("gpt2-tiny", "model").to_json();
  learned["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_ERROR(spec_from_json(learned, "model"), "rope_scaling has no effect");
}

TEST(HuggingFace, ASlidingWindowIsOfAllBlocksOrOfThoseBetween) {
  Json mistral = llama_config();
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = 4096;
  EXPECT_EQ(hf(mistral).sliding_window, 4096);
  EXPECT_EQ(hf(mistral).max_sequence_length, llama_config()["max_position_embeddings"]);
  mistral["sliding_window"] = 0;
  EXPECT_ERROR(hf(mistral), "config.sliding_window is 0");
  mistral["sliding_window"] = 9000;
  mistral["max_position_embeddings"] = 4096;
  EXPECT_EQ(hf(mistral).max_sequence_length, 4096);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(hf(mistral).sliding_window, 0);
  EXPECT_EQ(hf(mistral).num_kv_heads, 8);
  mistral.erase("sliding_window");
  EXPECT_EQ(hf(mistral).sliding_window, 4096) << "the default";

  Json qwen = qwen3_config();
  qwen["sliding_window"] = 4096;
  EXPECT_NO_THROW(hf(qwen)) << "use_sliding_window is false";
  qwen["use_sliding_window"] = true;
  EXPECT_NO_THROW(hf(qwen)) << "max_window_layers leaves no layer with a window";
  qwen["max_window_layers"] = 14;
  EXPECT_EQ(hf(qwen).max_sequence_length, 4096)
      << "no pattern of ours; within it, nothing is masked";
  EXPECT_EQ(hf(qwen).sliding_window, 0);
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(hf(qwen).sliding_window, 4096);
  Json layers = Json::array();
  for (int64_t i = 0; i < qwen["num_hidden_layers"]; ++i)
    layers.push_back(i % 3 == 2 ? "full_attention" : "sliding_attention");
  qwen["layer_types"] = layers;
  EXPECT_EQ(hf(qwen).full_attention_every, 3);
  EXPECT_EQ(hf(qwen).window_of(2), 0);
  EXPECT_EQ(hf(qwen).window_of(3), 4096);
  qwen["use_sliding_window"] = false;
  qwen["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_ERROR(hf(qwen), "config.layer_types");
}

TEST(HuggingFace, LayersWithoutRotaryPositionsFollowAtEqualDistances) {
  Json config = llama_config();
  config["model_type"] = "smollm3";
  const auto layers = config["num_hidden_layers"].get<int64_t>();
  EXPECT_EQ(hf(config).no_rope_every, 4);
  EXPECT_TRUE(hf(config).rotates(0));
  EXPECT_FALSE(hf(config).rotates(3));
  Json list = Json::array();
  for (int64_t i = 0; i < layers; ++i) list.push_back(i % 3 == 2 ? 0 : 1);
  config["no_rope_layers"] = list;
  EXPECT_EQ(hf(config).no_rope_every, 3);
  list[0] = 0;
  config["no_rope_layers"] = list;
  EXPECT_ERROR(hf(config), "config.no_rope_layers", "equal distances");
  config["no_rope_layers"] = {1, 0};
  EXPECT_ERROR(hf(config), "config.no_rope_layers", "each layer");
}

}  // namespace
}  // namespace onefold

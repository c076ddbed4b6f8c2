// Hugging Face folders, both ways: models that transformers made give its loss and logits, and what
// is exported is imported and exported again to the same bytes. tests/golden/README.md says how the
// golden folders were made.
#include <gtest/gtest.h>

#include "engine/decoder.h"
#include "engine/support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "data/scratch.h"
#include "engine/engine.h"
#include "error_text.h"
#include "inspect/hf_export.h"
#include "inspect/hf_source.h"
#include "io/half.h"
#include "run/run_folder.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/hf/" + name;
}

// A folder's files but for those the tests brought, by name.
std::map<std::string, std::string> content(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path().string());
  files.erase("expected.safetensors");
  return files;
}

void load(Engine& engine, const ParameterReader& read) { engine.state().write_parameters(read); }

std::vector<float> values_of(const ParameterSource& source, const ParamSpec& param) {
  std::vector<float> values(static_cast<size_t>(param.elems()));
  source.read(param, 0, values);
  return values;
}

// The logits [batch, length, vocabulary] of every position, as generation computes them.
std::vector<float> logits_of(Engine& engine, std::vector<int32_t> tokens, int64_t batch) {
  const ModelSpec& spec = engine.model().spec;
  const auto length = static_cast<int64_t>(tokens.size()) / batch;
  std::vector<float> all(tokens.size() * static_cast<size_t>(spec.vocab_size));
  for (int64_t b = 0; b < batch; ++b) {
    Decoder decoder(engine, 1, length);
    for (int64_t t = 0; t < length; ++t) {
      decoder.feed({tokens.data() + b * length + t, 1});
      std::copy_n(decoder.logits(0).begin(), spec.vocab_size,
                  all.begin() + (b * length + t) * spec.vocab_size);
    }
  }
  return all;
}

class HfGolden : public testing::TestWithParam<const char*> {
 protected:
  std::vector<int32_t> ints(const char* name) const {
    std::vector<int32_t> values(static_cast<size_t>(expected_.entry(name).elems()));
    expected_.read(name, std::span<int32_t>(values));
    return values;
  }
  std::vector<float> floats(const char* name) const {
    std::vector<float> values(static_cast<size_t>(expected_.entry(name).elems()));
    expected_.read(name, std::span<float>(values));
    return values;
  }

  std::string folder_ = golden(GetParam());
  SafetensorsFile expected_{folder_ + "/expected.safetensors"};
  int64_t batch_ = expected_.entry("tokens").shape.at(0);
  int64_t length_ = expected_.entry("tokens").shape.at(1);
};

TEST_P(HfGolden, LossIsThatOfTransformers) {
  const auto source = std::make_shared<HfSource>(folder_);
  Engine engine(source->model(), {.threads = 1, .micro_batch = batch_, .sequence = length_});
  load(engine, reader_of(source));
  std::vector<int32_t> tokens = ints("tokens"), targets = ints("targets");
  std::vector<int64_t> samples(static_cast<size_t>(batch_));
  const auto [sum, valid] = engine.evaluate({.tokens = tokens,
                                             .targets = targets,
                                             .samples = samples,
                                             .batch = batch_,
                                             .sequence = length_});
  const double loss = sum / static_cast<double>(valid), wanted = floats("loss")[0];
  RecordProperty("loss_error", fmt::format("{:.1e}", std::abs(loss - wanted)));
  EXPECT_NEAR(loss, wanted, 1e-5);
}

TEST_P(HfGolden, LogitsAreThoseOfTransformers) {
  const auto source = std::make_shared<HfSource>(folder_);
  const ModelSpec& spec = source->model();
  Engine engine(spec, {.threads = 1, .micro_batch = 1, .sequence = length_, .training = false});
  load(engine, reader_of(source));
  std::vector<int32_t> tokens = ints("tokens");
  const std::vector<float> wanted = floats("logits");
  const std::vector<float> logits = logits_of(engine, tokens, batch_);
  ASSERT_EQ(logits.size(), wanted.size());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    worst = std::max<double>(worst, std::abs(logits[i] - wanted[i]));
  RecordProperty("worst_logit_error", fmt::format("{:.1e}", worst));
  EXPECT_LE(worst, 1e-5);
}

TEST_P(HfGolden, AnySliceIsPartOfTheWhole) {
  const HfSource source(folder_);
  int64_t elems = 0;
  for (const ParamSpec& param : parameters_of(source.model())) {
    const std::vector<float> whole = values_of(source, param);
    elems += param.elems();
    for (const int64_t parts : {2, 3, 7}) {
      std::vector<float> joined;
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t begin = param.elems() * p / parts, end = param.elems() * (p + 1) / parts;
        std::vector<float> slice(static_cast<size_t>(end - begin));
        source.read(param, begin, slice);
        joined.insert(joined.end(), slice.begin(), slice.end());
      }
      ASSERT_EQ(joined, whole) << param.name << " in " << parts << " parts";
    }
    source.release(param);
    EXPECT_EQ(values_of(source, param), whole) << param.name << " after release";
  }
  EXPECT_EQ(elems, source.model().parameter_count());
  EXPECT_EQ(source.bytes_read(), 5 * elems * safetensors_dtype_bytes(source.dtype()));
  EXPECT_TRUE(source.ignored().empty());
}

// For every type, in one or several files: the second export has the first one's bytes, and
// both have the values that the type can hold of the original's.
TEST_P(HfGolden, ExportImportExportKeepsEveryByte) {
  const ModelOnDisk original = open_model(folder_);
  const int64_t one_file = int64_t{1} << 40;
  for (const auto& [dtype, shard] :
       {std::pair<const char*, int64_t>("F32", 6'000), {"F16", one_file}, {"BF16", 6'000}}) {
    const ScratchFolder scratch;
    const ExportOptions options{.dtype = dtype, .max_shard_bytes = shard};
    const ExportResult first =
        export_hf(*original.source, original.extras, scratch.path("first"), options);
    const ModelOnDisk again = open_model(scratch.path("first"));
    export_hf(*again.source, again.extras, scratch.path("second"),
              {.max_shard_bytes = shard});  // the type follows the source's
    EXPECT_EQ(content(scratch.path("first")), content(scratch.path("second")));
    EXPECT_EQ(scratch.files(), 2) << "nothing is left behind";
    EXPECT_EQ(TensorFiles::open_hf_folder(scratch.path("first")).files().size() > 1,
              shard < first.bytes);
    EXPECT_EQ(again.source->model().to_json(), original.source->model().to_json());
    for (const ParamSpec& param : parameters_of(original.source->model())) {
      std::vector<float> values = values_of(*original.source, param);
      std::vector<std::byte> rounded(values.size() *
                                     static_cast<size_t>(safetensors_dtype_bytes(dtype)));
      from_f32(dtype, values, rounded);
      to_f32(dtype, rounded, values);
      ASSERT_EQ(values_of(*again.source, param), values) << param.name;
    }
  }
}

// Our export has the tensors of transformers' own files, bit by bit.
TEST_P(HfGolden, ExportHasTheTensorsThatTransformersWrote) {
  const ModelOnDisk original = open_model(folder_);
  const ScratchFolder scratch;
  export_hf(*original.source, original.extras, scratch.path("out"), {});
  const TensorFiles theirs = TensorFiles::open_hf_folder(folder_);
  const TensorFiles ours = TensorFiles::open_hf_folder(scratch.path("out"));
  EXPECT_EQ(ours.metadata().at("format"), "pt");
  EXPECT_EQ(ours.names().size(), theirs.names().size());
  for (const std::string& name : theirs.names()) {
    EXPECT_EQ(ours.entry(name).dtype, theirs.entry(name).dtype) << name;
    EXPECT_EQ(ours.entry(name).shape, theirs.entry(name).shape) << name;
    EXPECT_TRUE(std::ranges::equal(ours.bytes(name), theirs.bytes(name))) << name;
  }
  const Json config = read_json(scratch.path("out/config.json"));
  const Json before = read_json(folder_ + "/config.json");
  EXPECT_EQ(config["architectures"], before["architectures"]);
  EXPECT_EQ(config["torch_dtype"], before["dtype"]);
  EXPECT_EQ(read_file(scratch.path("out/generation_config.json")),
            read_file(folder_ + "/generation_config.json"));
}

INSTANTIATE_TEST_SUITE_P(All, HfGolden,
                         testing::Values("gpt2", "gpt2_untied", "llama", "llama_biased", "llama3",
                                         "mistral", "qwen2", "qwen3", "phi3", "smollm3",
                                         "starcoder2", "mixtral", "qwen2_moe", "qwen3_moe",
                                         "mistral_window", "ministral", "olmo2", "gemma", "gemma2",
                                         "gemma3", "granite", "gpt_neox", "gpt_neox_sequential",
                                         "gptj", "opt", "cohere", "cohere2", "falcon", "falcon_new",
                                         "llama_yarn", "phi3_long", "bloom", "mpt", "falcon_alibi"),
                         [](const auto& info) { return std::string(info.param); });

// Copies of the golden folders, to break.
class HfErrors : public testing::Test {
 protected:
  void copy(const std::string& name) {
    fs::remove_all(folder_);
    fs::copy(golden(name), folder_);
  }
  void set(const char* key, const Json& value) const {
    Json config = read_json(folder_ + "/config.json");
    config[key] = value;
    write_file(folder_ + "/config.json", config.dump());
  }
  // Writes the weights again as one file, with what `rename` makes of the names; "" drops a tensor.
  // `table` names one whose bytes are a head's too.
  template <typename Rename>
  void rewrite(const Rename& rename, const std::vector<std::string>& extra = {},
               const std::string& table = "") const {
    const TensorFiles old = TensorFiles::open_hf_folder(folder_);
    std::vector<SafetensorsEntry> entries;
    std::vector<std::string> sources;
    for (const std::string& name : old.names()) {
      if (rename(name).empty()) continue;
      entries.push_back({rename(name), old.entry(name).dtype, old.entry(name).shape, 0, 0});
      sources.push_back(name);
    }
    if (!table.empty()) {
      entries.push_back({"lm_head.weight", old.entry(table).dtype, old.entry(table).shape, 0, 0});
      sources.push_back(table);
    }
    for (const std::string& name : extra) {
      entries.push_back({name, "U8", {2, 4}, 0, 0});
      sources.emplace_back();
    }
    SafetensorsWriter writer(scratch_.path("new"), entries);
    for (size_t i = 0; i < entries.size(); ++i)
      writer.write(entries[i].name, sources[i].empty() ? std::as_bytes(std::span("1234567", 8))
                                                       : old.bytes(sources[i]));
    writer.commit();
    fs::rename(scratch_.path("new"), folder_ + "/" + kHfWeights);
  }

  ScratchFolder scratch_;
  std::string folder_ = scratch_.path("model");
};

TEST_F(HfErrors, ABareModelAndItsBuffersAreRead) {
  copy("gpt2");
  const HfSource before(folder_);
  rewrite([](const std::string& name) { return name.substr(name.find('.') + 1); },
          {"h.0.attn.bias", "h.1.attn.masked_bias"}, "transformer.wte.weight");
  const HfSource source(folder_);
  EXPECT_EQ(source.ignored(),
            (std::vector<std::string>{"lm_head.weight", "h.0.attn.bias", "h.1.attn.masked_bias"}));
  for (const ParamSpec& param : parameters_of(source.model()))
    EXPECT_EQ(values_of(source, param), values_of(before, param)) << param.name;
}

// transformers 5 computes with both, earlier versions with the table.
TEST_F(HfErrors, AHeadThatIsNotTheTableIsRefused) {
  copy("llama");
  EXPECT_NO_THROW(HfSource{folder_});
  set("tie_word_embeddings", true);
  EXPECT_ERROR(HfSource(folder_), "lm_head.weight in the files is not model.embed_tokens.weight",
               "\"tie_word_embeddings\": false");
  rewrite([](const std::string& name) { return name == "lm_head.weight" ? "" : name; }, {},
          "model.embed_tokens.weight");
  EXPECT_EQ(HfSource(folder_).ignored(), (std::vector<std::string>{"lm_head.weight"}));
}

TEST_F(HfErrors, WhatIsMissingOrTooMuchIsNamed) {
  copy("llama");
  rewrite([](const std::string& name) {
    return name == "model.layers.1.self_attn.k_proj.weight" ? "" : name;
  });
  EXPECT_ERROR(HfSource(folder_), folder_, "no tensor \"model.layers.1.self_attn.k_proj.weight\"");
  copy("llama");
  rewrite([](const std::string& name) { return name == "lm_head.weight" ? "" : name; });
  EXPECT_ERROR(HfSource(folder_), "lm_head.weight", "tie_word_embeddings");
  copy("llama");
  rewrite([](const std::string& name) { return name; }, {"model.layers.0.moe.gate", "x"});
  EXPECT_ERROR(HfSource(folder_), "a llama model of this config.json has no place",
               "model.layers.0.moe.gate and 1 more");
}

TEST_F(HfErrors, ShapesTypesAndArchitecturesThatDoNotFitAreNamed) {
  copy("llama");
  set("intermediate_size", 38);
  EXPECT_ERROR(HfSource(folder_),
               "gate_proj.weight has the shape [37, 24], the model needs [38, 24]", "model-0000");
  copy("llama");
  rewrite([](const std::string& name) { return name == "model.norm.weight" ? "" : name; },
          {"model.norm.weight"});
  EXPECT_ERROR(HfSource(folder_), "model.norm.weight is U8", "BF16");
  set("model_type", "bert");
  EXPECT_ERROR(HfSource(folder_), "config.json", "\"bert\"", "llama");
  write_file(folder_ + "/config.json", "{}");
  EXPECT_ERROR(HfSource(folder_), "config.json has no model_type");
  copy("llama");
  EXPECT_ERROR(HfSource(folder_, spec_from_preset("gpt2-tiny", "model")), "a llama model's",
               "norm is layernorm");
  ModelSpec longer = HfSource(folder_).model();
  longer.max_sequence_length = 64;
  longer.dropout = 0.1f;
  EXPECT_NO_THROW(HfSource(folder_, longer)) << "what is not a shape may differ";
}

class Export : public testing::Test {
 protected:
  std::string make_run(const std::string& preset, bool tokenizer = true) const {
    Json root = {{"model", preset}, {"train_batch_size", 1}};
    const Config config = Config::from_json(root);
    const Tokenizer bytes = Tokenizer::bytes();
    const RunFolder run = RunFolder::create(folder_.path(preset), config, config.model,
                                            tokenizer ? &bytes : nullptr, false);
    Engine engine(config.model, {.threads = 1, .sequence = 8, .training = false});
    run.save_weights(engine);
    return run.path();
  }
  ExportResult run_export(const std::string& from, const ExportOptions& options = {}) const {
    const ModelOnDisk model = open_model(from);
    return export_hf(*model.source, model.extras, out_, options);
  }

  ScratchFolder folder_;
  std::string out_ = folder_.path("out");
};

TEST_F(Export, ARunBecomesAFolderWithTheSameWeights) {
  for (const auto& [preset, family] : {std::pair("gpt2-tiny", HfFamily::gpt2),
                                       {"llama-tiny", HfFamily::llama},
                                       {"qwen3-tiny", HfFamily::qwen3},
                                       {"mixtral-tiny", HfFamily::mixtral}}) {
    const std::string run = make_run(preset);
    const ExportResult result = run_export(run, {.max_shard_bytes = 50'000, .overwrite = true});
    EXPECT_EQ(result.family, family);
    EXPECT_EQ(result.dtype, "F32");
    const HfSource exported(out_);
    EXPECT_GT(exported.tensors().files().size(), 2u);
    const ModelOnDisk model = open_model(run);
    EXPECT_EQ(exported.model().to_json(), model.source->model().to_json());
    for (const ParamSpec& param : parameters_of(exported.model()))
      EXPECT_EQ(values_of(exported, param), values_of(*model.source, param)) << param.name;
    EXPECT_EQ(read_file(out_ + "/tokenizer.json"), read_file(run + "/tokenizer.json"));
    EXPECT_EQ(read_json(out_ + "/config.json")["eos_token_id"], 256);
    EXPECT_EQ(read_json(out_ + "/generation_config.json")["eos_token_id"], 256);
    EXPECT_EQ(read_json(out_ + "/tokenizer_config.json")["eos_token"], "<|endoftext|>");
    const Json index = read_json(out_ + "/" + kHfIndex);
    EXPECT_EQ(index["metadata"]["total_size"], exported.model().parameter_count() * 4);
    for (const std::string& file : result.files) EXPECT_TRUE(fs::exists(out_ + "/" + file)) << file;
    EXPECT_EQ(content(out_).size(), result.files.size());
  }
}

// Every family with everything it can have. With ONEFOLD_EXPORT_DIR set, the folders and the logits
// stay there, for tests/golden/check_hf_export.py to compare with those of transformers.
TEST_F(Export, LogitsAreTheSameAfterTheWayThroughAFolder) {
  struct Case {
    const char* name;
    const char* model;
    const char* dtype = "F32";
    std::optional<HfFamily> family = std::nullopt;
  };
  const std::vector<Case> cases = {
      {"gpt2", R"({"preset": "gpt2-tiny"})"},
      {"gpt2_untied_relu_bf16",
       R"({"preset": "gpt2-tiny", "tie_embeddings": false, "activation": "relu"})", "BF16"},
      {"llama", R"({"preset": "llama-tiny"})"},
      {"llama_bf16", R"({"preset": "llama-tiny"})", "BF16"},
      {"llama_biased_geglu", R"({"preset": "llama-tiny", "qkv_bias": true, "mlp_bias": true,
        "attention_out_bias": true, "activation": "geglu", "rope_theta": 77.5})"},
      {"llama3_tied", R"({"preset": "llama-tiny", "tie_embeddings": true, "rope_theta": 700,
        "rope_scaling": {"type": "llama3", "factor": 8, "original_max_sequence_length": 16}})"},
      {"llama_linear", R"({"preset": "llama-tiny",
        "rope_scaling": {"type": "linear", "factor": 3}})"},
      {"mistral_f16", R"({"preset": "llama-tiny"})", "F16", HfFamily::mistral},
      {"mistral_wide", R"({"preset": "llama-tiny", "hidden_size": 43, "head_dim": 14})"},
      {"qwen2", R"({"preset": "llama-tiny", "qkv_bias": true})"},
      {"qwen2_tied_f16", R"({"preset": "llama-tiny", "qkv_bias": true, "tie_embeddings": true})",
       "F16"},
      {"qwen3", R"({"preset": "qwen3-tiny"})"},
      {"qwen3_untied_bf16", R"({"preset": "qwen3-tiny", "tie_embeddings": false})", "BF16"},
      {"llama_glu", R"({"preset": "llama-tiny", "activation": "glu"})"},
      {"llama_bilinear", R"({"preset": "llama-tiny", "activation": "bilinear"})"},
      {"mixtral", R"({"preset": "mixtral-tiny"})"},
      {"mixtral_bf16", R"({"preset": "mixtral-tiny", "experts": {"balance_loss": 0.01}})", "BF16"},
      {"qwen2_moe", R"({"preset": "llama-tiny", "qkv_bias": true, "experts": {"num_experts": 6,
        "experts_per_token": 3, "intermediate_size": 17, "normalise_weights": false,
        "shared_intermediate_size": 29, "shared_gate": true, "every": 2}})"},
      {"qwen3_moe", R"({"preset": "qwen3-tiny", "experts": {"num_experts": 7,
        "intermediate_size": 13, "dense_blocks": [1]}})"},
  };
  const char* kept = std::getenv("ONEFOLD_EXPORT_DIR");
  const int64_t batch = 2, length = 31;
  for (const Case& c : cases) {
    const ModelSpec spec = spec_from_json(parse_json(c.model, c.name), c.name);
    const EngineOptions options{.threads = 1, .sequence = length, .training = false};
    Engine engine(spec, options);
    // Biases and norms too, and only values that every type holds: 3 bits, and a power of two.
    uint32_t draw = 0;
    test::change_weights(engine, [&](const ParamSpec& param, std::span<float> values) {
      for (float& value : values) {
        const uint32_t word = philox(philox_key(1, Draw::test), {draw++, 0, 0, 0})[0];
        const float noise = (static_cast<float>(word % 15) - 7) / 32;
        value = param.init == Init::ones ? 1 + noise : noise;
      }
    });
    const std::string run = folder_.path(c.name);
    Json root = {{"model", spec.to_json()}, {"train_batch_size", 1}};
    const Tokenizer tokenizer = Tokenizer::bytes();
    RunFolder::create(run, Config::from_json(root), spec, &tokenizer, false).save_weights(engine);
    const ModelOnDisk model = open_model(run);
    const std::string out =
        kept ? std::string(kept) + "/" + c.name : folder_.path(std::string(c.name) + "-out");
    export_hf(*model.source, model.extras, out,
              {.dtype = c.dtype, .max_shard_bytes = 60'000, .family = c.family});

    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < batch * length; ++i)
      tokens.push_back(static_cast<int32_t>(
          philox(philox_key(2, Draw::test), {static_cast<uint32_t>(i), 0, 0, 0})[0] %
          static_cast<uint32_t>(spec.vocab_size)));
    const std::vector<float> logits = logits_of(engine, tokens, batch);
    const auto imported = std::make_shared<HfSource>(out);
    Engine again(imported->model(), options);
    load(again, reader_of(imported));
    EXPECT_EQ(logits_of(again, tokens, batch), logits) << c.name;
    if (!kept) continue;
    SafetensorsWriter writer(out + "/expected.safetensors",
                             {{"tokens", "I32", {batch, length}, 0, 0},
                              {"logits", "F32", {batch, length, spec.vocab_size}, 0, 0}});
    writer.write("tokens", std::as_bytes(std::span(tokens)));
    writer.write("logits", std::span<const float>(logits));
    writer.commit();
  }
}

TEST_F(Export, WithoutATokenizerThereAreNoTokenIds) {
  run_export(make_run("llama-tiny", false));
  EXPECT_TRUE(read_json(out_ + "/config.json")["eos_token_id"].is_null());
  EXPECT_FALSE(fs::exists(out_ + "/tokenizer.json"));
  EXPECT_FALSE(fs::exists(out_ + "/tokenizer_config.json"));
}

TEST_F(Export, AnotherFamilyIsWrittenIfItCanExpressTheModel) {
  const std::string run = make_run("llama-tiny");
  run_export(run, {.family = HfFamily::mistral});
  EXPECT_EQ(HfSource(out_).family(), HfFamily::mistral);
  EXPECT_ERROR(run_export(run, {.family = HfFamily::qwen3, .overwrite = true}),
               "qwen3 cannot express this model", "qk_norm is false");
  EXPECT_EQ(HfSource(out_).family(), HfFamily::mistral) << "the old one is still there";
}

TEST_F(Export, NothingIsReplacedUnasked) {
  const std::string run = make_run("llama-tiny");
  run_export(run);
  EXPECT_ERROR(run_export(run), "already exists", "--overwrite");
  run_export(run, {.dtype = "BF16", .overwrite = true});
  EXPECT_EQ(HfSource(out_).dtype(), "BF16");
  EXPECT_FALSE(fs::exists(out_ + ".tmp"));
  // Not even with it, if the folder holds more than a model.
  write_file(out_ + "/thesis.txt", "years of work");
  EXPECT_ERROR(run_export(run, {.overwrite = true}), "holds thesis.txt", "another folder");
  EXPECT_TRUE(fs::exists(out_ + "/thesis.txt"));
  EXPECT_ERROR(run_export(folder_.path("nothing")), "is not there");
  out_ = folder_.write("file", "");
  EXPECT_ERROR(run_export(run, {.overwrite = true}), "is a file");
}

TEST_F(Export, AFailedExportLeavesNothing) {
  const std::string run = make_run("gpt2-tiny");
  {
    const SafetensorsFile old(run + "/weights.safetensors");
    SafetensorsWriter writer(folder_.path("large"), old.entries());
    for (const SafetensorsEntry& entry : old.entries()) {
      std::vector<float> values(static_cast<size_t>(entry.elems()));
      old.read(entry.name, std::span<float>(values));
      if (entry.name == "block.1.mlp.up.weight") values[7] = -1e6f;
      writer.write(entry.name, std::span<const float>(values));
    }
    writer.commit();
  }
  fs::rename(folder_.path("large"), run + "/weights.safetensors");
  EXPECT_ERROR(run_export(run, {.dtype = "F16"}), "block.1.mlp.up.weight", "too large for f16",
               "bf16 or f32");
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_FALSE(fs::exists(out_ + ".tmp"));
  EXPECT_NO_THROW(run_export(run, {.dtype = "BF16"}));
  // What a killed export left is no obstacle.
  make_folders(out_ + ".tmp");
  write_file(out_ + ".tmp/model.safetensors.onefold-tmp", "half");
  EXPECT_NO_THROW(run_export(run, {.overwrite = true}));
  make_folders(out_ + ".tmp");
  write_file(out_ + ".tmp/mine", "");
  EXPECT_ERROR(run_export(run, {.overwrite = true}), ".tmp holds mine");
}

TEST_F(Export, WhatNoArchitectureHasIsRefusedOrRemarked) {
  const std::string run = make_run("llama-tiny");
  Json model = read_json(run + "/model.json");
  model["dropout"] = 0.1;
  write_file(run + "/model.json", model.dump());
  const ExportResult result = run_export(run);
  ASSERT_EQ(result.remarks.size(), 1u);
  expect_in(result.remarks[0], {"dropout 0.1", "llama"});
  model["num_layers"] = 2;
  write_file(run + "/model.json", model.dump());
  EXPECT_ERROR(run_export(run, {.overwrite = true}), "belongs to another model");
  model["num_layers"] = 3;
  model["attention_out_bias"] = true;
  write_file(run + "/model.json", model.dump());
  EXPECT_ERROR(run_export(run, {.overwrite = true}), "no tensor", "attention.out.bias");
}

}  // namespace
}  // namespace onefold

// GGUF files, both ways: those of the reference package give the parameters of the Hugging Face
// model that they were made of, and what is exported is read back to the same values.
#include <gtest/gtest.h>

#include <set>

#include <cmath>
#include <filesystem>

#include "data/gguf_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "data/scratch.h"
#include "data/sentencepiece.h"
#include "error_text.h"
#include "inspect/describe.h"
#include "inspect/gguf_export.h"
#include "inspect/hf_source.h"
#include "io/half.h"
#include "io/quantized.h"
#include "model/gguf_model.h"
#include "run/model_folder.h"

namespace onefold {
namespace {

std::string gguf_golden(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/gguf/" + name;
}
std::string folder_golden(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/hf/" + name;
}

std::vector<float> all_of(const ParameterSource& source, const ParamSpec& param) {
  std::vector<float> values(static_cast<size_t>(param.elems()));
  source.read(param, 0, values);
  // Whatever range is asked for has the same values.
  std::vector<float> part(values.size() / 2);
  source.read(param, static_cast<int64_t>(values.size() / 3), part);
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], values[values.size() / 3 + i]);
  return values;
}

// To the bit, but for weights of norms that a file has one more of.
void expect_values(const ParameterSource& wanted, const ParameterSource& read) {
  for (const ParamSpec& param : parameters_of(wanted.model())) {
    const std::vector<float> a = all_of(wanted, param), b = all_of(read, param);
    if (param.decay || wanted.model().norm != Norm::rmsnorm1p) {
      EXPECT_EQ(a, b) << param.name;
      continue;
    }
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2.5e-7) << param.name;
  }
}

void expect_same(const ParameterSource& a, const ParameterSource& b, const std::string& rounded) {
  ASSERT_EQ(a.model().to_json(), b.model().to_json());
  for (const ParamSpec& param : parameters_of(a.model())) {
    std::vector<float> wanted = all_of(a, param);
    if (param.decay && rounded != "F32") {
      std::vector<std::byte> bytes(wanted.size() * 2);
      from_f32(rounded, wanted, bytes);
      to_f32(rounded, bytes, wanted);
    }
    EXPECT_EQ(all_of(b, param), wanted) << param.name;
  }
}

TEST(GgufGolden, HasTheParametersOfTheModelItWasMadeOf) {
  const HfSource folder(folder_golden("llama"));
  for (const char* type : {"F32", "F16", "BF16"}) {
    std::string name = type;
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    const HfSource file(gguf_golden("llama_" + name + ".gguf"));
    EXPECT_EQ(file.family(), HfFamily::llama);
    expect_same(folder, file, type);
  }
}

class GgufExport : public testing::Test {
 protected:
  std::string exported(const std::string& folder, const std::string& type,
                       ExportResult* result = nullptr) {
    const ModelOnDisk model = open_model(folder);
    const std::string path = folder_.path("model_" + type + ".gguf");
    const ExportResult made = export_gguf(*model.source, model.extras, path, {type, {}, true});
    if (result) *result = made;
    return path;
  }
  ScratchFolder folder_;
};

TEST_F(GgufExport, EveryFamilyIsReadBackToTheSameBits) {
  for (const char* name : {"gpt2",       "llama",          "llama3",       "llama_biased",
                           "mistral",    "phi3",           "qwen2",        "qwen3",
                           "starcoder2", "gemma",          "gemma2",       "gemma3",
                           "olmo2",      "granite",        "gpt_neox",     "gpt_neox_sequential",
                           "falcon",     "falcon_new",     "falcon_alibi", "cohere",
                           "cohere2",    "bloom",          "mpt",          "smollm3",
                           "phi3_long",  "llama_longrope", "llama_yarn",   "mistral_window"}) {
    SCOPED_TRACE(name);
    const std::string golden = folder_golden(name);
    const ModelOnDisk model = open_model(golden);
    if (const std::string why = gguf_obstacle(model.source->model(), *model.extras.family);
        !why.empty()) {
      // Biases of heads that are not hidden_size / num_heads; windows, scales and steps that
      // llama.cpp does not have; biases of a Falcon.
      const std::map<std::string, std::string> refused = {
          {"llama_biased", "no bias for heads"},
          {"qwen2", "no bias for heads"},
          {"phi3", "sliding_window"},
          {"starcoder2", "sliding_window"},
          {"mistral_window", "sliding_window"},
          {"gemma2", "attention_scale is not 1 / sqrt(6)"},
          {"gemma3", "attention_scale is not 1 / sqrt(6)"},
          {"falcon_new", "there are biases"},
          {"falcon_alibi", "there are biases"},
          {"mpt", "attention_scale is 0.3"},
          {"smollm3", "no_rope_every is not 4"},
          {"llama_longrope", "written of phi3 models alone"}};
      ASSERT_TRUE(refused.contains(name)) << name << ": " << why;
      EXPECT_TRUE(contains(why, refused.at(name))) << name << ": " << why;
      continue;
    }
    ExportResult result;
    const HfSource back(exported(golden, "F32", &result));
    EXPECT_EQ(result.parameters, model.source->model().parameter_count());
    ModelSpec spec = model.source->model();
    // What a file does not say: the window that a context is within, and how weights began.
    ModelSpec other = back.model();
    EXPECT_GE(other.max_sequence_length, spec.max_sequence_length);
    other.init_std = spec.init_std;
    EXPECT_EQ(other.to_json(), spec.to_json());
    expect_values(*model.source, back);
  }
}

TEST_F(GgufExport, RowsOfRotaryPairsAreNeighbours) {
  const HfSource source(folder_golden("llama"));
  const std::string path = exported(folder_golden("llama"), "F32");
  const GgufFile file(path), reference(gguf_golden("llama_f32.gguf"));
  ASSERT_EQ(file.tensors().size(), reference.tensors().size());
  for (const GgufTensor& tensor : reference.tensors()) {
    const GgufTensor* const own = file.tensor(tensor.name);
    ASSERT_NE(own, nullptr) << tensor.name;
    EXPECT_EQ(own->shape, tensor.shape) << tensor.name;
    const auto a = file.bytes(*own), b = reference.bytes(tensor);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << tensor.name;
  }
}

TEST_F(GgufExport, RowsThatAreNoWholeBlocksTakeAWiderType) {
  ExportResult result;
  const GgufFile file(exported(folder_golden("llama"), "Q8_0", &result));
  EXPECT_EQ(file.tensor("blk.0.attn_q.weight")->type->name, "F16");
  EXPECT_EQ(file.tensor("blk.0.attn_norm.weight")->type->name, "F32");
  EXPECT_TRUE(contains(result.remarks.back(), "not multiples of 32")) << result.remarks.back();
}

// A model whose rows are whole blocks.
class GgufBlocks : public GgufExport {
 protected:
  class RandomSource final : public ParameterSource {
   public:
    explicit RandomSource(ModelSpec spec) : spec_(std::move(spec)) {}
    const ModelSpec& model() const override { return spec_; }
    std::string dtype() const override { return "F32"; }
    void read(const ParamSpec& param, int64_t first, std::span<float> dst) const override {
      for (size_t i = 0; i < dst.size(); ++i)
        dst[i] = bad_ && param.decay
                     ? NAN
                     : std::sin(static_cast<float>(param.name.size()) * 77 +
                                static_cast<float>(first + static_cast<int64_t>(i)));
    }
    bool bad_ = false;

   private:
    ModelSpec spec_;
  };
  static ModelSpec spec() {
    return spec_from_json({{"vocab_size", 31},
                           {"hidden_size", 256},
                           {"num_layers", 1},
                           {"num_heads", 4},
                           {"num_kv_heads", 2},
                           {"intermediate_size", 512},
                           {"norm", "rmsnorm"},
                           {"positions", "rope"},
                           {"activation", "swiglu"},
                           {"tie_embeddings", false}},
                          "model");
  }
};

TEST_F(GgufBlocks, ValuesAreWithinTheirTypesBounds) {
  const RandomSource source(spec());
  for (const char* type : {"Q8_0", "Q4_K"}) {
    const std::string path = folder_.path(std::string(type) + ".gguf");
    export_gguf(source, {}, path, {type, {}, false});
    const HfSource back(path);
    const GgufFile file(path);
    EXPECT_EQ(file.tensor("blk.0.ffn_up.weight")->type->name, type);
    EXPECT_EQ(file.tensor("token_embd.weight")->type->name, "Q8_0");
    EXPECT_EQ(file.tensor("output.weight")->type->name, "Q8_0");
    EXPECT_EQ(file.text("tokenizer.ggml.model"), "no_vocab");
    for (const ParamSpec& param : parameters_of(source.model())) {
      const std::vector<float> wanted = all_of(source, param), read = all_of(back, param);
      const double bound = param.decay ? quantized_error(type, 1) : 0;
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_LE(std::fabs(wanted[i] - read[i]), bound) << param.name << " " << i;
    }
  }
}

TEST_F(GgufBlocks, BiasesOfTurnedHeadsAreReadBackToTheSameBits) {
  ModelSpec biased = spec();
  biased.qkv_bias = true;
  for (const HfFamily family : {HfFamily::qwen2, HfFamily::llama}) {
    biased.attention_out_bias = biased.mlp_bias = family == HfFamily::llama;
    const RandomSource source(biased);
    const std::string path = folder_.path("biased.gguf");
    export_gguf(source, {}, path, {"F32", family, true});
    const HfSource back(path);
    EXPECT_EQ(back.family(), family);
    for (const ParamSpec& param : parameters_of(source.model()))
      EXPECT_EQ(all_of(back, param), all_of(source, param)) << param.name;
  }
}

// With what their golden models have otherwise than llama.cpp.
TEST_F(GgufBlocks, OtherFamiliesAreReadBackToTheSameModel) {
  const auto exported_as = [&](const Json& changes, HfFamily family) {
    SCOPED_TRACE(hf_model_type(family));
    const RandomSource source(spec_from_json(changes, "model"));
    const std::string path = folder_.path("other.gguf");
    export_gguf(source, {}, path, {"F32", family, true});
    const HfSource back(path);
    EXPECT_EQ(back.family(), family);
    EXPECT_EQ(back.model().to_json(), source.model().to_json());
    expect_values(source, back);
    std::set<std::string> names;
    const GgufFile file(path);
    for (const GgufTensor& tensor : file.tensors()) names.insert(tensor.name);
    return names;
  };
  Json gemma = {{"preset", "gemma-3-1b"}, {"vocab_size", 31},
                {"hidden_size", 32},      {"num_layers", 7},
                {"num_heads", 4},         {"num_kv_heads", 2},
                {"head_dim", 16},         {"intermediate_size", 24},
                {"attention_scale", 0},   {"embedding_scale", std::sqrt(32.0)}};
  std::set<std::string> names = exported_as(gemma, HfFamily::gemma3);
  for (const char* name : {"attn_q_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
    EXPECT_TRUE(names.contains(fmt::format("blk.6.{}.weight", name))) << name;
  gemma["full_attention_every"] = 3;
  exported_as(gemma, HfFamily::gemma3);
  gemma["preset"] = "gemma-2-2b";
  gemma["full_attention_every"] = 2;
  exported_as(gemma, HfFamily::gemma2);
  names = exported_as({{"preset", "falcon-7b"},
                       {"vocab_size", 31},
                       {"hidden_size", 32},
                       {"num_layers", 2},
                       {"num_heads", 4},
                       {"num_kv_heads", 2},
                       {"parallel", "two_norms"}},
                      HfFamily::falcon);
  EXPECT_TRUE(names.contains("blk.1.attn_norm_2.bias"));
  names = exported_as({{"preset", "mpt-7b"},
                       {"vocab_size", 31},
                       {"hidden_size", 24},
                       {"num_layers", 2},
                       {"num_heads", 3}},
                      HfFamily::mpt);
  EXPECT_TRUE(names.contains("blk.1.attn_qkv.weight"));
  Json smollm3 = spec().to_json();
  smollm3["no_rope_every"] = 4;
  smollm3["num_layers"] = 5;
  smollm3["tie_embeddings"] = true;
  exported_as(smollm3, HfFamily::smollm3);
}

TEST_F(GgufBlocks, WhatCannotBeWrittenIsRefused) {
  RandomSource source(spec());
  const auto write = [&](const std::string& name, const GgufOptions& options) {
    return export_gguf(source, {}, folder_.path(name), options);
  };
  EXPECT_ERROR(write("model.bin", {"F32", {}, false}), ".gguf");
  write("model.gguf", {"F32", {}, false});
  EXPECT_ERROR(write("model.gguf", {"F32", {}, false}), "--overwrite");
  write("model.gguf", {"F16", {}, true});
  source.bad_ = true;
  EXPECT_ERROR(write("bad.gguf", {"Q8_0", {}, false}), "cannot hold", "export as F32");
  EXPECT_FALSE(path_exists(folder_.path("bad.gguf")));
  ModelSpec other = spec();
  other.activation = Activation::gelu;
  const RandomSource gelu(other);
  EXPECT_ERROR(export_gguf(gelu, {}, folder_.path("x.gguf"), {"F32", {}, false}), "silu");
  ModelSpec still = spec();
  still.no_rope_every = 1;
  EXPECT_TRUE(contains(gguf_obstacle(still, HfFamily::llama), "no_rope_every is 1"));
  ModelSpec stretched = spec();
  stretched.rope_scaling.type = RopeScaling::Type::yarn;
  EXPECT_EQ(gguf_obstacle(stretched, HfFamily::llama), "");
  EXPECT_TRUE(contains(gguf_obstacle(stretched, HfFamily::granite), "rope_scaling is yarn"));
  stretched.rope_scaling.attention_factor = 2;
  EXPECT_TRUE(contains(gguf_obstacle(stretched, HfFamily::llama), "attention_factor"));
  stretched.rope_scaling.beta_fast = 16;
  EXPECT_TRUE(contains(gguf_obstacle(stretched, HfFamily::llama), "beta_fast"));
  EXPECT_ERROR(export_gguf(source, {}, folder_.path("x.gguf"), {"F32", HfFamily::gpt2, false}),
               "gpt2 cannot express");
}

TEST_F(GgufBlocks, ValuesThatChangeTheArithmeticAreRefusedByName) {
  const auto opened = [&](const std::function<void(GgufHeader&)>& more,
                          const char* architecture = "llama") {
    GgufHeader header;
    header.add("general.architecture", architecture);
    for (const auto& [key, value] :
         {std::pair("context_length", 16u), std::pair("embedding_length", 8u),
          std::pair("block_count", 1u), std::pair("feed_forward_length", 8u),
          std::pair("attention.head_count", 2u)})
      header.add(fmt::format("{}.{}", architecture, key), value);
    header.add(std::string(architecture) + ".attention.layer_norm_rms_epsilon", 1e-5f);
    more(header);
    header.add_tensor("token_embd.weight", *ggml_type_named("F32"), std::vector<int64_t>{3, 8});
    std::string bytes = header.bytes();
    bytes.append(static_cast<size_t>(header.tensor_bytes()), '\0');
    return hf_config_of_gguf(GgufFile(folder_.write("small.gguf", bytes)));
  };
  const auto plain = [](GgufHeader&) {};
  EXPECT_EQ(opened(plain)["vocab_size"], 3);
  EXPECT_EQ(opened(plain)["tie_word_embeddings"], true);
  EXPECT_ERROR(opened(plain, "mamba"), "general.architecture is", "mamba", "qwen3");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.logit_scale", 2.0f); }),
               "llama.logit_scale is not supported");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.expert_count", 8u); }), "experts");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.rope.dimension_count", 2u); }),
               "rope.dimension_count");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.rope.scaling.type", "su"); }),
               "rope.scaling.type", "none, linear and yarn");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.rope.scaling.type", "yarn"); }),
               "rope.scaling.factor");
  EXPECT_ERROR(opened([](GgufHeader& h) { h.add("llama.attention.value_length", 2u); }),
               "value_length");
}

TEST_F(GgufExport, TypesThatAreNotReadAreNamed) {
  GgufHeader header;
  ModelSpec spec = spec_from_json({{"vocab_size", 3},
                                   {"hidden_size", 256},
                                   {"num_layers", 1},
                                   {"num_heads", 4},
                                   {"norm", "rmsnorm"},
                                   {"positions", "rope"},
                                   {"activation", "swiglu"}},
                                  "model");
  add_gguf_model(spec, HfFamily::llama, header);
  header.add_tensor("token_embd.weight", *ggml_type_named("Q6_K"), std::vector<int64_t>{3, 256});
  std::string bytes = header.bytes();
  bytes.append(static_cast<size_t>(header.tensor_bytes()), '\0');
  const std::string path = folder_.write("q6.gguf", bytes);
  EXPECT_ERROR(HfSource(path), "tensor token_embd.weight is Q6_K", "Q8_0 and Q4_K can be read");
  ThreadPool pool(1);
  const Description d = describe(path, true, pool);
  EXPECT_EQ(d.kind, PathKind::gguf);
  EXPECT_FALSE(d.tensors[0].has_values);
  EXPECT_TRUE(contains(description_text(d), "Q6_K [3, 256]"));
}

// A tokenizer and its model: the file alone is enough.
class GgufVocabulary : public GgufExport {
 protected:
  // A file of this tokenizer encodes as it does; what llama.cpp calls its way of cutting words.
  std::string expect_kept(const std::string& json);
};

std::string GgufVocabulary::expect_kept(const std::string& json) {
  const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
  GgufHeader header;
  header.add("general.architecture", "llama");
  const int64_t size = tokenizer.vocab_size() + 5;
  EXPECT_EQ(add_gguf_tokenizer(json, size, {{"eos_token_id", 2}}, header), "");
  const GgufFile file(folder_.write("tokens.gguf", header.bytes()));
  EXPECT_TRUE(has_gguf_tokenizer(file));
  const Tokenizer back = load_gguf_tokenizer(file);
  EXPECT_EQ(back.vocab_size(), size);
  EXPECT_EQ(back.end_of_text(), 2);
  EXPECT_EQ(back.template_before(), tokenizer.template_before());
  EXPECT_EQ(back.template_after(), tokenizer.template_after());
  const std::string torture = read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_torture.txt");
  size_t begin = 0;
  while (begin < torture.size()) {
    const size_t end = std::min(torture.find('\n', begin), torture.size());
    const std::string line = torture.substr(begin, end - begin);
    for (const auto specials : {Tokenizer::Specials::kAsText, Tokenizer::Specials::kMatch})
      EXPECT_EQ(back.encode(line, specials), tokenizer.encode(line, specials)) << line;
    begin = end + 1;
  }
  return file.has("tokenizer.ggml.pre") ? file.text("tokenizer.ggml.pre") : "";
}

class GgufTokenizer : public GgufVocabulary, public testing::WithParamInterface<const char*> {};

TEST_P(GgufTokenizer, EncodesAsTheTokenizerItWasMadeOf) {
  const std::string content = read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/" + GetParam());
  const bool model = std::string(GetParam()).ends_with(".model");
  expect_kept(model ? tokenizer_json_of_sentencepiece(content, GetParam()) : content);
}
INSTANTIATE_TEST_SUITE_P(Kinds, GgufTokenizer,
                         testing::Values("tokenizer_small.json", "sentencepiece/bpe.model"));

TEST_F(GgufVocabulary, DeepSeeksWordsAreCutInThreeSteps) {
  Json root = read_json(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
  const auto split = [](const char* pattern) {
    return Json{{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {split("\\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
              "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
        Json{{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"trim_offsets", true},
             {"use_regex", false}}}}};
  EXPECT_EQ(expect_kept(root.dump()), "deepseek-v3");
}

TEST_F(GgufExport, ATokenizerThatCannotRunThereIsSaid) {
  GgufHeader header;
  const std::string golden = ONEFOLD_GOLDEN_DIR;
  const auto reason = [&](const char* name, int64_t size) {
    return add_gguf_tokenizer(read_file(golden + "/" + name), size, Json::object(), header);
  };
  EXPECT_TRUE(contains(reason("tokenizer_t5.json", 1 << 20), "Unigram"));
  EXPECT_TRUE(contains(reason("tokenizer_bert.json", 1 << 20), "WordPiece"));
  EXPECT_TRUE(contains(reason("tokenizer_clip.json", 1 << 20), "end_of_word_suffix"));
  EXPECT_TRUE(contains(reason("tokenizer_small.json", 100), "tokens, and the model 100"));
  EXPECT_TRUE(contains(reason("tokenizer_llama.json", 1 << 20), "not those of SentencePiece"));
}

TEST_F(GgufExport, AFileIsAModelFolder) {
  // A folder with a tokenizer, as a file, opened for use and for export.
  const std::string source = folder_.path("source");
  std::filesystem::copy(folder_golden("llama"), source);
  const std::string json = read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
  const Tokenizer tokenizer = Tokenizer::parse(json, "small");
  ModelOnDisk model = open_model(source);
  model.extras.files["tokenizer.json"] = json;
  model.extras.files["tokenizer_config.json"] = R"({"chat_template": "{{ messages }}"})";
  const std::string path = folder_.path("whole.gguf");
  const ExportResult result = export_gguf(*model.source, model.extras, path, {"F32", {}, false});
  // The model has fewer tokens than the tokenizer: the file says so and goes without.
  EXPECT_TRUE(contains(result.remarks.back(), "no tokenizer is written"));
  EXPECT_FALSE(open_model_folder(path).tokenizer);
  // One without a tokenizer.json is found by its path.
  model.extras.files.clear();
  model.extras.tokenizer = std::string(ONEFOLD_GOLDEN_DIR) + "/sentencepiece/bpe.model";
  EXPECT_TRUE(
      contains(export_gguf(*model.source, model.extras, path, {"F32", {}, true}).remarks.back(),
               "tokens, and the model 53"));
  EXPECT_ERROR(open_model_folder(path).require_tokenizer(), "has no tokenizer");
  const ModelOnDisk back = open_model(path);
  EXPECT_EQ(back.extras.family, HfFamily::llama);
  ThreadPool pool(1);
  EXPECT_TRUE(compare(source, path, pool).equal());
}

}  // namespace
}  // namespace onefold

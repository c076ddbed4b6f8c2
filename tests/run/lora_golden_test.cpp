// Adapters against PEFT, in double: what it saved is read and gives its logits; gradients and ten
// steps of AdamW are its own; what is exported is read back. tests/golden/README.md says how the
// golden files were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "data/scratch.h"
#include "engine/decoder.h"
#include "engine/support.h"
#include "error_text.h"
#include "inspect/hf_export.h"
#include "inspect/hf_source.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

constexpr int kSteps = 10;

std::string golden_folder(const std::string& kind, const std::string& name) {
  return fmt::format("{}/{}/{}", ONEFOLD_GOLDEN_DIR, kind, name);
}

ParameterReader reader_of_adapter(const AdapterWeights& adapter) {
  return [&adapter](const ParamSpec& param, int64_t first, std::span<float> dst) {
    std::copy_n(adapter.values.at(param.name).begin() + first, dst.size(), dst.begin());
  };
}

class LoraGolden : public testing::TestWithParam<const char*> {
 protected:
  LoraGolden() {
    spec_ = base_->model();
    spec_.lora = adapter_.lora;
    options_.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    options_.clipping = 1.0;
    options_.threads = 1;
    options_.micro_batch = expected_.entry("tokens").shape.at(1);
    options_.sequence = expected_.entry("tokens").shape.at(2);
    options_.initial = reader_of(base_);
    options_.initial_adapters = reader_of_adapter(adapter_);
  }

  std::vector<float> floats(const std::string& name) const {
    std::vector<float> values(static_cast<size_t>(expected_.entry(name).elems()));
    expected_.read(name, std::span<float>(values));
    return values;
  }

  test::OwnedBatch batch(int step) const {
    const auto count = static_cast<size_t>(options_.micro_batch * options_.sequence);
    test::OwnedBatch b{.batch = options_.micro_batch, .sequence = options_.sequence};
    for (auto [name, to] : {std::pair{"tokens", &b.tokens}, std::pair{"targets", &b.targets}}) {
      std::vector<int32_t> all(static_cast<size_t>(expected_.entry(name).elems()));
      expected_.read(name, std::span<int32_t>(all));
      to->assign(all.begin() + static_cast<int64_t>(count) * step,
                 all.begin() + static_cast<int64_t>(count) * (step + 1));
    }
    b.samples.resize(static_cast<size_t>(options_.micro_batch));
    return b;
  }

  // What the file has under `kind` for one of our adapters' matrices, its rows in our order.
  std::vector<float> theirs(const std::string& kind, const std::string& ours) const {
    for (int block = 0; block < spec_.num_layers; ++block)
      for (const LoraModule& module : lora_modules(spec_)) {
        const std::string name =
            kind + "/base_model.model." + lora_module_name(spec_, block, module);
        const LoraNames names = lora_names(block, module);
        if (names.a == ours) return floats(name + ".lora_A.weight");
        if (names.b != ours) continue;
        const std::vector<float> values = floats(name + ".lora_B.weight");
        if (module.order.empty()) return values;
        std::vector<float> ordered;
        for (const int64_t row : module.order)
          for (int64_t k = 0; k < spec_.lora.rank; ++k)
            ordered.push_back(values.at(static_cast<size_t>(row * spec_.lora.rank + k)));
        return ordered;
      }
    return {};
  }

  void expect_near(const std::string& name, std::span<const float> actual,
                   const std::vector<float>& expected, double tolerance) {
    ASSERT_EQ(expected.size(), actual.size()) << name;
    double largest = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      worst = std::max(worst, std::abs(static_cast<double>(actual[i]) - expected[i]));
    }
    worst_ = std::max(worst_, worst / largest);
    EXPECT_LE(worst, tolerance * largest) << name;
  }
  void TearDown() override {
    RecordProperty("worst_relative_error", fmt::format("{:.1e}", worst_));
  }

  // Of the first slice's sequences, as generation computes them.
  std::vector<float> logits_of(Engine& engine) const {
    const test::OwnedBatch first = batch(0);
    const int64_t vocabulary = spec_.vocab_size, length = options_.sequence;
    std::vector<float> all;
    for (int64_t b = 0; b < options_.micro_batch; ++b) {
      Decoder decoder(engine, 1, length);
      for (int64_t t = 0; t < length; ++t) {
        decoder.feed({first.tokens.data() + b * length + t, 1});
        all.insert(all.end(), decoder.logits(0).begin(), decoder.logits(0).begin() + vocabulary);
      }
    }
    return all;
  }
  EngineOptions for_generation() const {
    EngineOptions options = options_;
    options.micro_batch = 1;
    options.training = false;
    return options;
  }

  double worst_ = 0;
  const std::string folder_ = golden_folder("lora", GetParam());
  const std::string base_folder_ = golden_folder("hf", GetParam());
  const std::shared_ptr<const HfSource> base_ = std::make_shared<HfSource>(base_folder_);
  const AdapterWeights adapter_ = read_peft(folder_, base_->model());
  const SafetensorsFile expected_{folder_ + "/expected.safetensors"};
  ModelSpec spec_;
  EngineOptions options_;
};

TEST_P(LoraGolden, LogitsAreThoseOfPeftMergedOrNot) {
  const std::vector<float> wanted = floats("logits");
  const auto worst = [&](const std::vector<float>& logits) {
    double error = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      error = std::max<double>(error, std::abs(logits.at(i) - wanted[i]));
    return error;
  };
  Engine beside(spec_, for_generation());
  const std::vector<float> unmerged = logits_of(beside);
  EXPECT_LE(worst(unmerged), 1e-5);
  const auto source = with_adapter(base_, folder_);
  Engine whole(base_->model(), for_generation());
  whole.state().write_parameters(reader_of(source));
  const std::vector<float> merged = logits_of(whole);
  EXPECT_LE(worst(merged), 1e-5);
  double apart = 0, largest = 0;
  for (size_t i = 0; i < merged.size(); ++i) {
    apart = std::max<double>(apart, std::abs(merged[i] - unmerged[i]));
    largest = std::max<double>(largest, std::abs(merged[i]));
  }
  RecordProperty("merged_apart", fmt::format("{:.1e}", apart / largest));
  EXPECT_LE(apart, 1e-6 * largest) << "of logits up to " << largest;
}

TEST_P(LoraGolden, LossAndGradientsAreThoseOfPeft) {
  options_.keep_gradients = true;
  Engine engine(spec_, options_);
  const test::OwnedBatch first = batch(0);
  const std::vector<BatchView> micros = {first.view()};
  EXPECT_NEAR(engine.train_step(micros, 0.0).loss, floats("loss")[0], 1e-5 * floats("loss")[0]);
  size_t checked = 0;
  test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> gradient) {
    expect_near(param.name, gradient, theirs("grad", param.name), 1e-5);
    ++checked;
  });
  EXPECT_EQ(checked, adapter_.values.size());
}

TEST_P(LoraGolden, TenAdamWStepsFollowPeft) {
  Engine engine(spec_, options_);
  const std::vector<float> losses = floats("losses");
  for (int step = 0; step < kSteps; ++step) {
    const test::OwnedBatch b = batch(step);
    const std::vector<BatchView> micros = {b.view()};
    EXPECT_NEAR(engine.train_step(micros, 1e-3).loss, losses[static_cast<size_t>(step)],
                1e-5 * losses[static_cast<size_t>(step)]);
  }
  engine.state().for_each_saved(
      engine.channel(Lane::gather), [&](const ParamSpec& param, std::span<const float> values) {
        expect_near(param.name, values, theirs("final", param.name), 1e-4);
      });
}

TEST_P(LoraGolden, ExportIsWhatPeftSaved) {
  const ScratchFolder scratch;
  export_peft(adapter_, scratch.path("out"), {});
  const SafetensorsFile ours(scratch.path("out/adapter_model.safetensors")),
      saved(folder_ + "/adapter_model.safetensors");
  ASSERT_EQ(ours.entries().size(), saved.entries().size());
  for (const SafetensorsEntry& entry : saved.entries()) {
    const SafetensorsEntry& mine = ours.entry(entry.name);
    EXPECT_EQ(mine.shape, entry.shape) << entry.name;
    EXPECT_TRUE(std::ranges::equal(ours.bytes(mine), saved.bytes(entry))) << entry.name;
  }
  const Json config = read_json(scratch.path("out/adapter_config.json")),
             theirs = read_json(folder_ + "/adapter_config.json");
  for (const char* key : {"peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias",
                          "fan_in_fan_out", "base_model_name_or_path", "inference_mode"})
    EXPECT_EQ(config.at(key), theirs.at(key)) << key;
  const AdapterWeights again = read_peft(scratch.path("out"), base_->model());
  EXPECT_EQ(again.lora, adapter_.lora);
  EXPECT_EQ(again.values, adapter_.values);
}

// For tests/golden/make_lora_goldens.py --check: an adapter that is trained here, exported, and the
// logits that it gives.
TEST_P(LoraGolden, LogitsOfATrainedAdapterForPeftToCompare) {
  const char* to = std::getenv("ONEFOLD_EXPORT_DIR");
  if (!to) GTEST_SKIP() << "ONEFOLD_EXPORT_DIR names no folder";
  Engine engine(spec_, options_);
  for (int step = 0; step < kSteps; ++step) {
    const test::OwnedBatch b = batch(step);
    const std::vector<BatchView> micros = {b.view()};
    engine.train_step(micros, 1e-2);
  }
  AdapterWeights trained = adapter_;
  trained.base = base_folder_;
  engine.state().for_each_saved(engine.channel(Lane::gather),
                                [&](const ParamSpec& param, std::span<const float> values) {
                                  trained.values[param.name].assign(values.begin(), values.end());
                                });
  const std::string out = fmt::format("{}/{}", to, GetParam());
  export_peft(trained, out, {.overwrite = true});
  EngineOptions options = for_generation();
  options.initial_adapters = reader_of_adapter(trained);
  Engine again(spec_, options);
  const std::vector<float> logits = logits_of(again);
  const test::OwnedBatch first = batch(0);
  const std::vector<int64_t> shape{options_.micro_batch, options_.sequence};
  SafetensorsWriter writer(out + ".safetensors",
                           {{"tokens", "I32", shape, 0, 0},
                            {"logits", "F32", {shape[0], shape[1], spec_.vocab_size}, 0, 0}});
  writer.write("tokens", std::as_bytes(std::span(first.tokens)));
  writer.write("logits", std::span<const float>(logits));
  writer.commit();
}

INSTANTIATE_TEST_SUITE_P(Goldens, LoraGolden,
                         testing::Values("gpt2", "llama", "qwen2", "qwen3", "gpt_neox", "gptj",
                                         "opt", "falcon_new", "cohere", "bloom", "phi3_long"),
                         [](const auto& info) { return std::string(info.param); });

class PeftFolder : public testing::Test {
 protected:
  PeftFolder() {
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      scratch_.write(name, read_file(golden_folder("lora", "llama") + "/" + name));
  }
  // Its configuration with a key set.
  std::string with_key(const std::string& key, const Json& value) {
    Json config = read_json(golden_folder("lora", "llama") + "/adapter_config.json");
    config[key] = value;
    scratch_.write("adapter_config.json", config.dump());
    return scratch_.path("");
  }
  ModelSpec base(const std::string& name) const {
    return HfSource(golden_folder("hf", name)).model();
  }

  ScratchFolder scratch_;
};

TEST_F(PeftFolder, RefusesWhatIsNotComputedHere) {
  const ModelSpec llama = base("llama");
  EXPECT_ERROR(read_peft(with_key("peft_type", "IA3"), llama), "peft_type", "IA3");
  EXPECT_ERROR(read_peft(with_key("use_dora", true), llama), "use_dora");
  EXPECT_ERROR(read_peft(with_key("bias", "all"), llama), "bias", "all");
  EXPECT_ERROR(read_peft(with_key("rank_pattern", {{"q_proj", 2}}), llama), "rank_pattern");
  EXPECT_ERROR(read_peft(with_key("modules_to_save", {"lm_head"}), llama), "modules_to_save");
  EXPECT_ERROR(read_peft(with_key("r", 7), llama), "lora_A.weight has the shape [3, 24]",
               "needs [7, 24]");
  EXPECT_ERROR(read_peft(with_key("r", 3), base("gpt2")), "has no place", "base_model.model.");
}

// PEFT's adapter of a Phi-3, whose projections are fused in its own modules and are a Llama's to
// us: the sum is that of the fused matrices.
TEST_F(PeftFolder, AFusedModuleIsSharedOutAmongItsParts) {
  const auto phi3 = std::make_shared<HfSource>(golden_folder("hf", "phi3"));
  const ModelSpec& spec = phi3->model();
  ASSERT_EQ(hf_family_for(spec), HfFamily::mistral);
  constexpr int64_t kRank = 2;
  // The last is a module of Llama's too.
  const std::map<std::string, std::string> fused = {{"self_attn.qkv_proj", "attention.qkv.weight"},
                                                    {"mlp.gate_up_proj", "mlp.up.weight"},
                                                    {"self_attn.o_proj", "attention.out.weight"}};
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::vector<float>> values;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto rows_of = [&](const std::string& module) {
    if (module == "self_attn.o_proj") return spec.hidden_size;
    return module == "self_attn.qkv_proj" ? spec.qkv_size() : 2 * spec.intermediate_size;
  };
  for (const auto& [module, parameter] : fused)
    for (const char matrix : {'A', 'B'}) {
      const std::string name =
          fmt::format("base_model.model.model.layers.1.{}.lora_{}.weight", module, matrix);
      const int64_t rows = matrix == 'A' ? kRank : rows_of(module);
      const int64_t cols = matrix == 'A' ? spec.hidden_size : kRank;
      entries.push_back({name, "F32", {rows, cols}, 0, 0});
      for (int64_t i = 0; i < rows * cols; ++i) values[name].push_back(normal(random));
    }
  SafetensorsWriter writer(scratch_.path(kPeftWeights), entries, {{"format", "pt"}});
  for (const SafetensorsEntry& entry : entries)
    writer.write(entry.name, std::as_bytes(std::span<const float>(values[entry.name])));
  writer.commit();
  scratch_.write(kPeftConfig, R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6})");

  const AdapterWeights adapter = read_peft(scratch_.path(""), spec);
  EXPECT_EQ(adapter.lora.targets.size(), 6u) << "queries, keys, values, gate, up, output";
  const MergedSource merged(phi3, adapter);
  for (const ParamSpec& param : parameters_of(spec)) {
    std::vector<float> before(static_cast<size_t>(param.elems())), after(before.size());
    phi3->read(param, 0, before);
    merged.read(param, 0, after);
    for (const auto& [module, parameter] : fused) {
      if (param.name != "block.1." + parameter) continue;
      const std::string name = "base_model.model.model.layers.1." + module + ".lora_";
      const std::vector<float>&a = values[name + "A.weight"], &b = values[name + "B.weight"];
      for (int64_t row = 0; row < param.rows; ++row)
        for (int64_t col = 0; col < param.cols; ++col)
          for (int64_t k = 0; k < kRank; ++k)
            before[static_cast<size_t>(row * param.cols + col)] +=
                3 * b[static_cast<size_t>(row * kRank + k)] *
                a[static_cast<size_t>(k * param.cols + col)];
    }
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_NEAR(after[i], before[i], 2e-5) << param.name << " " << i;
  }
}

// A run's adapter beside a Phi-3 is written for the modules that PEFT finds in that folder's model:
// what it adds to the matrices is the same.
TEST_F(PeftFolder, AnAdapterIsWrittenForTheModulesOfItsBase) {
  const std::string folder = golden_folder("hf", "phi3");
  ASSERT_EQ(family_of_base(folder), HfFamily::phi3);
  EXPECT_EQ(family_of_base(scratch_.path("nowhere")), std::nullopt);
  const auto phi3 = std::make_shared<HfSource>(folder);
  const ModelSpec& spec = phi3->model();
  AdapterWeights adapter{.model = spec, .base = folder};
  adapter.lora.rank = 2;
  adapter.lora.alpha = 5;
  // Queries and values in every block, the gate in one.
  adapter.lora.targets = {"q_proj", "v_proj", "o_proj", "model.layers.1.mlp.gate_proj"};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  ModelSpec adapted = spec;
  adapted.lora = adapter.lora;
  for (const LoraModule& module : lora_modules(spec))
    for (int block = 0; block < spec.num_layers; ++block) {
      if (!is_adapted(adapted, block, module)) continue;
      const LoraNames names = lora_names(block, module);
      for (int64_t i = 0; i < 2 * module.cols; ++i)
        adapter.values[names.a].push_back(normal(random));
      for (int64_t i = 0; i < 2 * module.rows; ++i)
        adapter.values[names.b].push_back(normal(random));
    }
  const auto merged = [&](const AdapterWeights& one) {
    const MergedSource source(phi3, one);
    std::map<std::string, std::vector<float>> values;
    for (const ParamSpec& param : parameters_of(spec)) {
      values[param.name].resize(static_cast<size_t>(param.elems()));
      source.read(param, 0, values[param.name]);
    }
    return values;
  };
  const auto wanted = merged(adapter);
  const auto expect_same = [&](const std::string& out) {
    for (const auto& [name, values] : merged(read_peft(out, spec)))
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], wanted.at(name)[i], 1e-5) << name << " " << i;
  };
  const std::string out = scratch_.path("out");
  const PeftResult result = export_peft(adapter, out, {.family = HfFamily::phi3});
  EXPECT_EQ(result.rank, 4) << "that of queries and that of values";
  EXPECT_EQ(result.target_modules,
            (std::vector<std::string>{"model.layers.1.mlp.gate_up_proj", "o_proj", "qkv_proj"}));
  const Json config = read_json(out + "/adapter_config.json");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 10);
  const SafetensorsFile tensors(out + "/adapter_model.safetensors");
  EXPECT_EQ(tensors.entries().size(), size_t(2 * (2 * spec.num_layers + 1)));
  const std::string qkv = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
  EXPECT_EQ(tensors.entry(qkv + "A.weight").shape, (std::vector<int64_t>{4, spec.hidden_size}));
  EXPECT_EQ(tensors.entry(qkv + "B.weight").shape, (std::vector<int64_t>{spec.qkv_size(), 4}));
  expect_same(out);

  // One that came from the fused modules, and so has one A for all parts, keeps its rank.
  const AdapterWeights again = read_peft(out, spec);
  EXPECT_EQ(export_peft(again, scratch_.path("twice"), {.family = HfFamily::phi3}).rank, 4);
  expect_same(scratch_.path("twice"));
  // By our names, where no base says others.
  EXPECT_EQ(export_peft(adapter, scratch_.path("ours"), {}).target_modules, adapter.lora.targets);
  expect_same(scratch_.path("ours"));
}

TEST_F(PeftFolder, RankStabilisedScalesAreAlphasOverRoots) {
  const AdapterWeights plain = read_peft(with_key("use_rslora", false), base("llama"));
  const AdapterWeights stable = read_peft(with_key("use_rslora", true), base("llama"));
  EXPECT_FLOAT_EQ(stable.lora.scale(), plain.lora.scale() * std::sqrt(3.0f));
}

TEST(LoraBase, IsTheSameByItsTensors) {
  const ScratchFolder scratch;
  const std::string from = golden_folder("hf", "gpt2"), to = scratch.path("base");
  std::filesystem::copy(from, to);
  const LoraRecord record = lora_record({.rank = 2, .targets = {"c_attn"}}, to);
  EXPECT_EQ(LoraRecord::from_json(record.to_json(), "test").to_json(), record.to_json());
  require_same_base(record, from);
  std::string bytes = read_file(to + "/model.safetensors");
  bytes[bytes.size() - 2] ^= 1;
  write_file(to + "/model.safetensors", bytes);
  EXPECT_ERROR(require_same_base(record, to), to,
               "is not the one that the adapters were trained on");
}

}  // namespace
}  // namespace onefold

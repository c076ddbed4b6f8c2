// LoRA from the command line: what a run keeps, how it goes on, what is exported of it.
#include "cli/support.h"
#include "error_text.h"
#include "inspect/hf_export.h"
#include "inspect/hf_source.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

class LoraCli : public Cli {
 protected:
  LoraCli() {
    make_run("untrained", "llama-tiny");
    EXPECT_EQ(onefold({"export", "untrained", "base"}).code, 0);
  }

  // Three steps of adapters over the folder `base`.
  Outcome adapt(Arguments keys = {}, const Arguments& flags = {"--quiet"}) const {
    Arguments all = {"model=base", "lora.rank=2", "lora.alpha=6",
                     R"(lora.targets=["q_proj","down_proj"])"};
    all.insert(all.end(), keys.begin(), keys.end());
    return train(all, flags);
  }

  static std::vector<std::string> tensors_of(const std::string& path) {
    const SafetensorsFile file(path);
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : file.entries()) names.push_back(entry.name);
    return names;
  }
};

TEST_F(LoraCli, ARunKeepsAdaptersAndTheirMomentsAlone) {
  const Outcome trained = adapt({"run.save_every=2"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<std::string> names = tensors_of(folder_.path("run/weights.safetensors"));
  EXPECT_EQ(static_cast<int64_t>(names.size()),
            2 * 2 * spec_from_preset("llama-tiny", "test").num_layers);
  for (const std::string& name : names) EXPECT_TRUE(contains(name, ".lora_")) << name;
  const Json manifest = Json::parse(read("run/checkpoints/step-00000002/manifest.json"));
  for (const auto& [name, tensor] : manifest["tensors"].items())
    EXPECT_TRUE(contains(name, ".lora_")) << name;
  EXPECT_EQ(manifest["tensors"].size(), names.size());
  for (const std::string& name :
       tensors_of(folder_.path("run/checkpoints/step-00000002/rank-00000.safetensors")))
    EXPECT_TRUE(contains(name, ".lora_")) << name;
  const Json lora = Json::parse(read("run/lora.json"));
  EXPECT_EQ(lora["rank"], 2);
  EXPECT_EQ(lora["alpha"], 6);
  EXPECT_EQ(lora["targets"], Json({"q_proj", "down_proj"}));
  EXPECT_TRUE(lora["base"]["path"].get<std::string>().ends_with("/base"));
  EXPECT_EQ(manifest["run"]["lora"], lora);
  EXPECT_FALSE(Json::parse(read("run/model.json")).contains("lora"));
}

TEST_F(LoraCli, AResumedRunHasTheSameBitsAtAnyStage) {
  ASSERT_EQ(adapt({"run.save_every=2", "lora.dropout=0.1"}, {"--quiet", "--ranks", "2"}).code, 0);
  const Outcome again =
      adapt({"lora.dropout=0.1", "run.output=again", "zero_optimization.stage=3",
             "zero_optimization.stage3_param_persistence_threshold=0", "run.recompute=true"},
            {"--quiet", "--ranks", "2", "--resume", "run/checkpoints/step-00000002"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read("run/weights.safetensors"), read("again/weights.safetensors"));
}

TEST_F(LoraCli, ABaseThatHasChangedIsNoticed) {
  ASSERT_EQ(adapt({"run.save_every=2"}).code, 0);
  std::string bytes = read("base/model.safetensors");
  bytes[bytes.size() - 3] ^= 1;
  folder_.write("base/model.safetensors", bytes);
  expect_error(
      adapt({"run.output=again"}, {"--quiet", "--resume", "run/checkpoints/step-00000002"}), 1,
      {"model: the weights are not those that the adapters were trained on", "--allow-changes"});
  expect_error(onefold({"generate", "run", "--tokens", "2", "--prompt", "a"}), 1,
               {"base", "is not the one that the adapters were trained on"});
  std::filesystem::remove_all(folder_.path("base"));
  expect_error(onefold({"export", "run", "merged", "--merge"}), 1, {"base", "any more"});
}

TEST_F(LoraCli, ExportsAnAdapterOrTheWholeModel) {
  ASSERT_EQ(adapt({"optimizer.params.lr=0.05"}).code, 0);
  const Outcome adapter = onefold({"export", "run", "adapter"});
  ASSERT_EQ(adapter.code, 0) << adapter.err;
  expect_in(adapter.out, {"adapter: adapters of rank 2 for ", "/base", "2 files"});
  const Json config = Json::parse(read("adapter/adapter_config.json"));
  EXPECT_EQ(config["target_modules"], Json({"q_proj", "down_proj"}));
  EXPECT_EQ(config["fan_in_fan_out"], false);
  ASSERT_EQ(onefold({"export", "run", "merged", "--merge"}).code, 0);
  ASSERT_EQ(onefold({"export", "base", "joined", "--adapter", "adapter"}).code, 0);
  ASSERT_EQ(onefold({"export", "run", "half", "--merge", "--dtype", "bf16"}).code, 0);
  EXPECT_EQ(read("merged/model.safetensors"), read("joined/model.safetensors"));
  EXPECT_NE(read("merged/model.safetensors"), read("base/model.safetensors"));
  EXPECT_EQ(HfSource(folder_.path("half")).dtype(), "BF16");
  // The run itself, its last checkpoint and the merged folder are one model.
  const Arguments asked = {"--greedy", "--tokens", "6", "--prompt", "Number"};
  const auto generated = [&](Arguments arguments) {
    arguments.insert(arguments.begin(), "generate");
    arguments.insert(arguments.end(), asked.begin(), asked.end());
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string text = generated({"run"});
  EXPECT_EQ(generated({"run/checkpoints/step-00000003"}), text);
  EXPECT_EQ(generated({"merged"}), text);
  EXPECT_EQ(generated({"base", "--adapter", "adapter"}), text);
  EXPECT_EQ(generated({"base", "--adapter", "run"}), text);
  const auto loss = [&](Arguments words) {
    words.insert(words.begin(), "eval");
    words.insert(words.end(), {"--data", "book.txt", "--sequence", "32", "--json"});
    const Outcome outcome = onefold(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["loss"];
  };
  EXPECT_EQ(loss({"base", "--adapter", "adapter"}), loss({"run"}));
  EXPECT_NE(loss({"base"}), loss({"run"}));
}

TEST_F(LoraCli, TrainingStartsFromAnAdapter) {
  ASSERT_EQ(adapt({"optimizer.params.lr=0.05"}).code, 0);
  ASSERT_EQ(onefold({"export", "run", "adapter"}).code, 0);
  const auto first_loss = [&](const Arguments& keys) {
    Arguments all = {"run.output=other", "steps_per_print=1"};
    all.insert(all.end(), keys.begin(), keys.end());
    const Outcome outcome = adapt(all, {"--quiet", "--overwrite"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return lines("other/metrics.jsonl")[0]["loss"].get<double>();
  };
  const double fresh = first_loss({}), adapted = first_loss({"lora.adapter=adapter"});
  EXPECT_NE(adapted, fresh);
  EXPECT_EQ(first_loss({"lora.adapter=run"}), adapted);
  expect_error(adapt({"lora.adapter=adapter", "run.output=x", "lora.rank=3"}), 1,
               {"lora.adapter", "rank 2"});
  expect_error(adapt({"lora.adapter=adapter", "run.output=x", "lora.targets=q_proj"}), 1,
               {"lora.adapter", "more than lora.targets"});
  expect_error(adapt({"lora.adapter=base", "run.output=x"}), 1, {"base holds no adapters"});
}

TEST_F(LoraCli, ErrorsSayWhatToDo) {
  expect_error(
      onefold({"train", "config.json", "--set", "model=untrained", "--set", "lora.rank=2"}), 1,
      {"lora: the base untrained is the folder of a run", "onefold export untrained"});
  expect_error(onefold({"export", "base", "x", "--merge"}), 1, {"--merge", "--adapter"});
  ASSERT_EQ(adapt().code, 0);
  expect_error(onefold({"export", "run", "x", "--family", "llama"}), 1, {"--family", "--merge"});
  expect_error(onefold({"export", "base", "x", "--adapter", "base"}), 1,
               {"base holds no adapters", "adapter_config.json"});
  expect_error(adapt({"run.output=x", "lora.targets=c_attn"}), 1, {"lora.targets", "q_proj"});
  expect_error(adapt({"run.output=x", R"(run.freeze=["head"])"}), 1, {"run.freeze", "lora"});
  EXPECT_FALSE(exists("x"));
}

TEST_F(LoraCli, ThePlanSaysWhatIsTrained) {
  const Outcome plan = adapt({}, {"--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.out, {"lora     rank 2, alpha 6 on q_proj, down_proj: ", "adapters are trained"});
}

}  // namespace
}  // namespace onefold

// The section "lora".
#include <gtest/gtest.h>

#include "config/config.h"
#include "error_text.h"
#include "model/lora.h"

namespace onefold {
namespace {

Config lora_config(const std::string& lora, const Json& run = Json::object(),
                   const std::string& model = "llama-tiny") {
  Json root = {{"model", {{"preset", model}, {"vocab_size", 64}}}, {"train_batch_size", 2}};
  root["run"] = run;
  root["lora"] = Json::parse(lora);
  const Config config = Config::from_json(root);
  EXPECT_EQ(Config::from_json(config.effective()).effective(), config.effective()) << lora;
  return config;
}

TEST(LoraKeys, HaveThePeftsDefaults) {
  EXPECT_FALSE(lora_config("null").model.lora.enabled());
  EXPECT_FALSE(lora_config("null").effective().contains("lora"));
  using Names = std::vector<std::string>;
  EXPECT_EQ(lora_config("{}").model.lora,
            (LoraSpec{.rank = 8, .alpha = 8, .dropout = 0, .targets = Names{"q_proj", "v_proj"}}));
  EXPECT_EQ(lora_config("{}", {}, "gpt2-tiny").model.lora.targets, Names{"c_attn"});
}

TEST(LoraKeys, SetTheModelsAdapters) {
  const Config config = lora_config(
      R"({"rank": 4, "alpha": 16, "dropout": 0.05, "targets": ["k_proj", "mlp.*"], "adapter": "a"})");
  const LoraSpec& lora = config.model.lora;
  EXPECT_EQ(lora.rank, 4);
  EXPECT_FLOAT_EQ(lora.scale(), 4);
  EXPECT_FLOAT_EQ(lora.dropout, 0.05f);
  EXPECT_EQ(lora.targets, (std::vector<std::string>{"k_proj", "mlp.*"}));
  EXPECT_EQ(config.lora_adapter, "a");
  EXPECT_EQ(lora_config(R"({"targets": "all-linear"})").model.lora.targets,
            std::vector<std::string>{"all-linear"});
}

TEST(LoraKeys, RefuseWhatCannotBe) {
  EXPECT_ERROR(lora_config(R"({"rank": 0})"), "lora.rank", "at least 1");
  EXPECT_ERROR(lora_config(R"({"rank": 100000})"), "lora.rank is 100000", "hidden_size");
  EXPECT_ERROR(lora_config(R"({"alpha": 0})"), "lora.alpha");
  EXPECT_ERROR(lora_config(R"({"dropout": 1})"), "lora.dropout");
  EXPECT_ERROR(lora_config(R"({"targets": ["c_attn"]})"), "lora.targets", "\"c_attn\"",
               "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
  EXPECT_ERROR(lora_config(R"({"targets": []})"), "lora.targets is empty");
  EXPECT_ERROR(lora_config(R"({"target": "q_proj"})"), "lora.target", "did you mean \"targets\"");
  EXPECT_ERROR(lora_config("true"), "lora");
  EXPECT_ERROR(lora_config("{}", {{"freeze", {"embedding"}}}), "run.freeze", "lora.targets");
}

TEST(LoraKeys, TrainingNeedsWeightsToAdapt) {
  Json root = {{"model", {{"preset", "llama-tiny"}, {"vocab_size", 300}}},
               {"train_batch_size", 2},
               {"data", {{"train", "book.txt"}}},
               {"run", {{"steps", 1}}},
               {"lora", Json::object()}};
  EXPECT_ERROR(Config::from_json(root).require_training(), "lora adapts weights", "model.weights");
}

}  // namespace
}  // namespace onefold

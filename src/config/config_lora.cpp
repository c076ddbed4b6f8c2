// "lora": adapters over a frozen model.
#include "base/error.h"
#include "config/sections.h"
#include "model/hf_config.h"
#include "model/lora.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

constexpr int64_t kDefaultRank = 8;
constexpr double kDefaultAlpha = 8;

}  // namespace

void read_lora(JsonObject& root, Config& config) {
  if (!root.has("lora")) return;
  JsonObject in = root.object("lora");
  LoraSpec lora;
  lora.rank = in.at_least("rank", 1, kDefaultRank);
  lora.alpha = in.positive("alpha", kDefaultAlpha);
  lora.dropout = static_cast<float>(in.fraction("dropout", 0));
  lora.targets = in.get<std::vector<std::string>>("targets", {});
  config.lora_adapter = in.get<std::string>("adapter", "");
  in.finish();
  if (!config.run.freeze.empty())
    root.refuse(Group::conflict, "run.freeze",
                "must be left out with lora: adapters alone are trained, and lora.targets says "
                "where");
  ModelSpec& model = config.model;
  if (model.hidden_size == 0) return;  // there is no model
  if (lora.rank > model.hidden_size)
    in.refuse(Group::conflict, "rank",
              fmt::format("is {}; the model's hidden_size, {}, is the largest rank there is",
                          lora.rank, model.hidden_size));
  if (!in.has("targets")) lora.targets = default_lora_targets(model);
  model.lora = lora;
  check_lora_targets(model, "lora.targets");
}

Json lora_section(const Config& config) {
  Json json = lora_json(config.model.lora);
  if (!config.lora_adapter.empty()) json["adapter"] = config.lora_adapter;
  return json;
}

}  // namespace onefold

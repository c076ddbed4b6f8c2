// "optimizer.groups" and "optimizer.batch_scaling".
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/sections.h"

namespace onefold {

namespace {
using Group = JsonReport::Group;
}  // namespace

void read_groups(JsonObject& optimizer, Config& config) {
  const Json list = optimizer.get<Json>("groups", Json::array());
  if (!list.is_array())
    return optimizer.refuse(Group::conflict, "groups",
                            fmt::format("must be a list of objects, not {}", json_kind(list)));
  for (size_t i = 0; i < list.size(); ++i) {
    JsonObject in(list[i], fmt::format("{}[{}]", optimizer.path("groups"), i));
    ParamGroup group;
    group.match = in.require<std::vector<std::string>>("match");
    if (group.match.empty()) in.fail("match", "must name a parameter, or a pattern of names");
    group.rate = in.positive("lr", config.learning_rate) / config.learning_rate;
    if (in.has("weight_decay")) group.weight_decay = in.non_negative("weight_decay", 0);
    group.frozen = in.get<bool>("frozen", false);
    if (group.frozen)
      for (const std::string_view key : {"lr", "weight_decay"})
        in.no_effect(key, "the group is frozen");
    in.finish();
    config.optimizer.groups.push_back(std::move(group));
  }
}

Json groups_json(const Config& config) {
  Json list = Json::array();
  for (const ParamGroup& group : config.optimizer.groups) {
    Json item = {{"match", group.match}};
    if (group.rate != 1) item["lr"] = group.rate * config.learning_rate;
    if (group.weight_decay) item["weight_decay"] = *group.weight_decay;
    if (group.frozen) item["frozen"] = true;
    list.push_back(std::move(item));
  }
  return list;
}

void read_batch_scaling(JsonObject& optimizer, Config& config) {
  if (!optimizer.has("batch_scaling")) return;
  JsonObject in = optimizer.object("batch_scaling");
  config.batch_scaling.base_batch = in.at_least("base_batch", 1, 0);
  if (!in.has("base_batch"))
    in.refuse(Group::conflict, "base_batch",
              "is missing: the sequences of a step for which lr was chosen");
  config.batch_scaling.square_root = in.choice("rule", {"linear", "sqrt"}, "linear") == "sqrt";
  config.batch_scaling.warmup = in.get<bool>("warmup", true);
  in.finish();
}

void apply_batch_scaling(Config& config) {
  const BatchScaling& scaling = config.batch_scaling;
  if (scaling.base_batch == 0) return;
  const double times =
      static_cast<double>(config.batch.global) / static_cast<double>(scaling.base_batch);
  const double before = config.learning_rate;
  config.learning_rate *= scaling.square_root ? std::sqrt(times) : times;
  std::string text = fmt::format(
      "optimizer.batch_scaling: lr {:g} of batches of {} becomes {:g} for {} sequences ({})",
      before, scaling.base_batch, config.learning_rate, config.batch.global,
      scaling.square_root ? "by the square root" : "linear");
  int64_t& warmup = config.schedule.warmup_steps;
  if (scaling.warmup && warmup > 0) {
    const int64_t was = warmup;
    warmup = std::max<int64_t>(1, std::llround(static_cast<double>(was) / times));
    text += fmt::format("; the warm-up of {} steps becomes {}", was, warmup);
  }
  config.notes.remarks.push_back(text);
}

}  // namespace onefold

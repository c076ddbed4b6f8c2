#include "config/layout_keys.h"

#include "base/text.h"
#include "plan/recompute.h"

namespace onefold {
namespace {

constexpr const char* kDisk = "offload";  // where no nvme_path is named

// The value at a path; null if there is none.
Json key_at(const Json& root, std::string_view path) {
  const Json* here = &root;
  for (const std::string& key : split(path, '.')) {
    if (!here->is_object() || !here->contains(key)) return nullptr;
    here = &(*here)[key];
  }
  return *here;
}

bool is_auto(const Json& root, std::string_view path) { return key_at(root, path) == "auto"; }

bool is_open(const Json& root, std::string_view path) {
  return key_at(root, path).is_null() || is_auto(root, path);
}

const char* device_name(Tier tier) { return tier == Tier::disk ? "nvme" : "cpu"; }

void write_home(Json& zero, const char* key, Tier tier, const std::string& folder) {
  if (tier == Tier::device) {
    zero.erase(key);
    return;
  }
  Json& section = zero[key];
  if (!section.is_object()) section = Json::object();
  section["device"] = device_name(tier);
  if (tier == Tier::disk && !section.contains("nvme_path"))
    section["nvme_path"] = folder.empty() ? kDisk : folder;
}

void write_zero(Json& zero, const EngineOptions& layout, const Freedom& freedom) {
  if (!zero.is_object()) zero = Json::object();
  const ZeroOptions& options = layout.zero;
  if (freedom.stage) zero["stage"] = options.stage;
  if (freedom.overlap) zero["overlap_comm"] = options.overlap;
  if (freedom.reduce_bucket) zero["reduce_bucket_size"] = options.reduce_bucket_elems;
  if (freedom.prefetch && options.stage == 3 && options.overlap)
    zero["stage3_prefetch_bucket_size"] =
        options.prefetch_elems == ZeroOptions::kAuto ? Json("auto") : Json(options.prefetch_elems);
  const OffloadOptions& offload = layout.offload;
  if (freedom.optimizer_home)
    write_home(zero, "offload_optimizer", offload.optimizer, offload.folder);
  if (freedom.ratio && offload.optimizer != Tier::device)
    zero["offload_optimizer"]["ratio"] = offload.optimizer_ratio;
  if (freedom.parameter_home) write_home(zero, "offload_param", offload.parameters, offload.folder);
}

}  // namespace

Freedom left_open(const Json& root) {
  const auto open = [&](const char* path) { return is_open(root, path); };
  const auto home = [&](const char* section) {
    const Json value = key_at(root, std::string("zero_optimization.") + section);
    return value.is_null() || (value.is_object() && is_open(value, "device"));
  };
  const bool old_home = !open("zero_optimization.cpu_offload"),
             old_parameters = !open("zero_optimization.cpu_offload_param") ||
                              !open("zero_optimization.cpu_offload_params");
  return {
      .stage = open("zero_optimization.stage") && !key_at(root, "zero_optimization").is_boolean(),
      .optimizer_home = home("offload_optimizer") && !old_home,
      .parameter_home = home("offload_param") && !old_parameters,
      .ratio = open("zero_optimization.offload_optimizer.ratio"),
      .recompute = open("run.recompute"),
      .batch = open("train_micro_batch_size_per_gpu") && open("gradient_accumulation_steps"),
      .overlap = open("zero_optimization.overlap_comm"),
      .prefetch = open("zero_optimization.stage3_prefetch_bucket_size") &&
                  open("zero_optimization.prefetch_bucket_size"),
      .reduce_bucket = open("zero_optimization.reduce_bucket_size"),
      .order = open("run.accumulate"),
      .host_step = open("run.host_step")};
}

Freedom asked_for(const Json& root) {
  const auto asked = [&](const char* path) { return is_auto(root, path); };
  Freedom freedom{.stage = asked("zero_optimization.stage"),
                  .optimizer_home = asked("zero_optimization.offload_optimizer.device"),
                  .parameter_home = asked("zero_optimization.offload_param.device"),
                  .overlap = asked("zero_optimization.overlap_comm")};
  freedom.ratio =
      freedom.optimizer_home && is_open(root, "zero_optimization.offload_optimizer.ratio");
  freedom.host_step = freedom.optimizer_home && is_open(root, "run.host_step");
  freedom.batch = key_at(root, "train_batch_size").is_number() &&
                  asked("train_micro_batch_size_per_gpu") && asked("gradient_accumulation_steps");
  if (freedom == Freedom{}) return freedom;
  // These have a meaning of their own, which they keep where they stand alone.
  freedom.recompute = asked("run.recompute");
  freedom.prefetch = asked("zero_optimization.stage3_prefetch_bucket_size");
  return freedom;
}

void write_layout(Json& root, const EngineOptions& layout, const Freedom& freedom) {
  if (freedom.batch) {
    root["train_micro_batch_size_per_gpu"] = layout.micro_batch;
    root["gradient_accumulation_steps"] = layout.micros;
  }
  if (freedom.recompute) root["run"]["recompute"] = recompute_value(layout.recompute);
  if (freedom.order && layout.micros > 1) root["run"]["accumulate"] = order_name(layout.order);
  if (layout.offload.optimizer != Tier::host) {
    if (root.contains("run")) root["run"].erase("host_step");  // it would have no effect
  } else if (freedom.host_step && layout.offload.host_step_ratio < 1) {
    root["run"]["host_step"] = layout.offload.host_step_ratio;
  }
  Json zero = key_at(root, "zero_optimization");
  write_zero(zero, layout, freedom);
  if (!zero.empty()) root["zero_optimization"] = zero;
}

}  // namespace onefold

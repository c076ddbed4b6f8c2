// DeepSpeed's keys outside of batch, optimizer, scheduler and zero_optimization. Most of them
// change nothing here, or ask for what is not there; deepspeed_tables.cpp lists those.
#include "config/deepspeed_keys.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

bool is_one_of(const Json& value, const char* list) {
  const Json values = Json::parse(list);
  const auto same = [&](const Json& one) {
    return one.is_string() && value.is_string()
               ? lower(one.get<std::string>()) == lower(value.get<std::string>())
               : one == value;
  };
  return std::any_of(values.begin(), values.end(), same);
}

bool passes(const Json& value, std::string_view what, const char* list) {
  if (what == "boolean") return value.is_boolean();
  if (what == "integer")
    return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  if (what == "number") return value.is_number();
  return is_one_of(value, list);
}

// Of a switch that is on: what is not there. Of a value that is none: what there is.
Group group_of(const PlainKey& row) {
  return row.reason.starts_with("it must be") ? Group::conflict : Group::missing;
}

bool any_enabled(const Json& value) {
  if (!value.is_structured()) return false;
  if (value.is_object() && value.value("enabled", Json()) == true) return true;
  return std::any_of(value.begin(), value.end(), any_enabled);
}

// A folder for events: output_path / job_name, as DeepSpeed names it.
std::string read_monitor(JsonObject& root, std::string_view key) {
  JsonObject section = root.object(key);
  const bool enabled = section.get<bool>("enabled", false);
  const std::string path = section.get<std::string>("output_path", "");
  const std::string job = section.get<std::string>("job_name", "DeepSpeedJobName");
  section.finish();
  if (!enabled) {
    root.idle(key);
    return "";
  }
  return path.empty() ? job : path + "/" + job;
}

// {"checkpoint": {"tag_validation", ...}}: three of its values are words or sections.
void check_checkpoint(JsonObject& root) {
  if (!root.has("checkpoint") || !root.value()["checkpoint"].is_object()) return;
  const Json mode = root.value()["checkpoint"].value("tag_validation", Json("Warn"));
  if (!is_one_of(mode, R"(["ignore", "warn", "fail"])"))
    root.refuse(Group::conflict, "checkpoint.tag_validation",
                fmt::format("must be Ignore, Warn or Fail, not {}", brief_json(mode)));
}

}  // namespace

// Kept activations are divided among the ranks of a tensor group: nothing where there is one.
void check_partitioned_activations(JsonObject& root, const Config& config) {
  if (config.mesh.tensor > 1 && !config.mesh.sequence_parallel &&
      root.value().value("/activation_checkpointing/partition_activations"_json_pointer, Json()) ==
          true)
    root.refuse(Group::missing, "activation_checkpointing.partition_activations",
                "is true: with mesh.tensor, mesh.sequence_parallel divides activations");
}

void read_plain(JsonObject& in, const PlainKey& row) {
  if (!in.has(row.name)) return;
  const Json value = in.require<Json>(row.name);
  if (passes(value, row.passes, row.passes)) return in.idle(row.name);
  in.refuse(group_of(row), row.name, fmt::format("is {}: {}", brief_json(value), row.reason));
}

void read_section(JsonObject& in, const SectionKey& row) {
  if (!in.has(row.name)) return;
  const Json value = in.require<Json>(row.name);
  if (value == false) return in.idle(row.name);
  JsonObject section = in.object(row.name);
  section.allow_auto();
  for (const std::string& key : split(row.keys, ' '))
    if (section.has(key)) section.require<Json>(key);
  section.finish();
  bool asks = false;
  const std::vector<std::string> switches =
      row.asks.empty() ? std::vector<std::string>() : split(row.asks, ' ');
  for (const std::string& key : switches) {
    if (section.has(key) ? is_one_of(section.value()[key], row.off)
                         : !row.asks_if_absent || section.value().empty())
      continue;
    asks = true;
    section.refuse(
        Group::missing, key,
        fmt::format("is {}: {}", section.has(key) ? brief_json(section.value()[key]) : "on",
                    row.reason));
  }
  const bool works = !row.works.empty() && section.value().value(row.works, Json()) == true;
  if (!asks && !works) in.idle(row.name);
}

void read_deepspeed_keys(JsonObject& root, Config& config) {
  check_checkpoint(root);
  if (root.value().value("/activation_checkpointing/cpu_checkpointing"_json_pointer, Json()) ==
      true)
    config.offload.activations = Tier::host;
  for (const PlainKey& row : plain_root_keys()) read_plain(root, row);
  for (const SectionKey& row : root_sections()) read_section(root, row);
  // Its parts are switched on deep inside.
  if (root.has("compression_training")) {
    if (any_enabled(root.require<Json>("compression_training")))
      root.refuse(Group::missing, "compression_training",
                  "is on: there is no pruning and no quantization");
    else
      root.idle("compression_training");
  }
  // JSON has no comments, so that people write keys for them.
  for (const auto& [key, value] : root.value().items())
    if (value.is_string() && (key == "comment" || key.starts_with('_') || key.starts_with("//")))
      root.idle(key);
  config.run.tensorboard_folder = read_monitor(root, "tensorboard");
  config.run.csv_folder = read_monitor(root, "csv_monitor");
}

}  // namespace onefold

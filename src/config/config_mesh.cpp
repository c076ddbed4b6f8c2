// "mesh": how ranks are divided into axes; and DeepSpeed's tensor_parallel.autotp_size and
// pipeline.stages.
#include <algorithm>

#include "base/error.h"
#include "config/sections.h"
#include "engine/lines.h"
#include "engine/stages.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

// DeepSpeed's section: one of its keys counts here, and the others change nothing.
constexpr const char* kTensorKeys[] = {"dtype",
                                       "tp_overlap_comm",
                                       "vocab_parallel_lm_head",
                                       "vocab_parallel_ce_backend",
                                       "tensor_parallel",
                                       "tp",
                                       "injection_policy_tuple",
                                       "partition_config",
                                       "preset_model",
                                       "keep_module_on_host",
                                       "replace_with_kernel_inject",
                                       "kernel_inject"};

// So that no product of axes overflows.
int64_t at_most(JsonObject& in, std::string_view key, int64_t size) {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (size <= kMost) return size;
  in.refuse(Group::conflict, key, fmt::format("is {}; the largest is {}", size, kMost));
  return 1;
}

int64_t read_autotp_size(JsonObject& root) {
  if (!root.has("tensor_parallel")) return 0;
  if (root.value()["tensor_parallel"] == false) {
    root.idle("tensor_parallel");
    return 0;
  }
  JsonObject section = root.object("tensor_parallel");
  section.allow_auto();
  for (const char* key : kTensorKeys)
    if (section.has(key)) {
      section.require<Json>(key);
      section.idle(key);
    }
  const int64_t size = at_most(section, "autotp_size", section.at_least("autotp_size", 0, 0));
  section.finish();
  return size;
}

int64_t read_axis(JsonObject& mesh, std::string_view axis) {
  return at_most(mesh, axis, mesh.at_least(axis, 1, 0));
}

void refuse_axis(JsonObject& mesh, std::string_view axis) {
  if (const int64_t size = read_axis(mesh, axis); size > 1)
    mesh.refuse(Group::missing, axis,
                fmt::format("is {}: there is no {} parallelism yet; leave it out", size, axis));
}

// Axes that do not multiply to the ranks; data of 0: it was left out.
void refuse_mesh(JsonObject& root, const MeshConfig& mesh, int64_t world_size) {
  const auto [data, tensor, pipeline] = mesh;
  const int64_t others = tensor * pipeline;
  if (data == 0) {
    const bool one = tensor == 1 || pipeline == 1;
    return root.refuse(
        Group::conflict,
        pipeline == 1 ? "mesh.tensor"
        : tensor == 1 ? "mesh.pipeline"
                      : "mesh",
        fmt::format("{} {}, and {} rank(s) cannot be divided by it; they can with --ranks {}",
                    one ? "is" : "has tensor x pipeline =", others, world_size, others));
  }
  const std::string stages = pipeline > 1 ? fmt::format(" x pipeline {}", pipeline) : "";
  root.refuse(Group::conflict, "mesh",
              fmt::format("has data {} x tensor {}{} = {} ranks, and there are {}; they agree with "
                          "--ranks {}, or leave one axis out",
                          data, tensor, stages, data * others, world_size, data * others));
}

// An axis that two keys name.
void agree(JsonObject& root, const char* key, int64_t other, const char* mesh_key, int64_t& axis) {
  if (other == 0) return;
  if (axis > 0 && axis != other)
    root.refuse(Group::conflict, key,
                fmt::format("is {}, and {} is {}; leave one of them out", other, mesh_key, axis));
  axis = other;
}

}  // namespace

void read_mesh(JsonObject& root, int64_t world_size, Config& config) {
  JsonObject in = root.object("mesh");
  int64_t data = read_axis(in, "data"), tensor = read_axis(in, "tensor"),
          pipeline = read_axis(in, "pipeline");
  for (const char* axis : {"context", "expert"}) refuse_axis(in, axis);
  in.finish();
  agree(root, "tensor_parallel.autotp_size", read_autotp_size(root), "mesh.tensor", tensor);
  agree(root, "pipeline.stages", read_pipeline(root, config.pipeline), "mesh.pipeline", pipeline);
  // One that is left out follows from the others: data first.
  const auto left = [&](int64_t one, int64_t other) {
    return world_size % (one * other) == 0 ? world_size / (one * other) : 0;
  };
  if (pipeline == 0 && data > 0 && tensor > 0) pipeline = left(data, tensor);
  if (pipeline == 0) pipeline = 1;
  if (tensor == 0 && data > 0) tensor = left(data, pipeline);
  if (tensor == 0) tensor = 1;
  if (data == 0) data = left(tensor, pipeline);
  if (data * tensor * pipeline != world_size) {
    refuse_mesh(root, {data, tensor, pipeline}, world_size);
    data = world_size, tensor = pipeline = 1;
  }
  config.mesh = {data, tensor, pipeline};
  config.pipeline.ranks = static_cast<int>(pipeline);
}

int64_t mesh_ranks(const Json& root) {
  const Json mesh = root.is_object() ? root.value("mesh", Json()) : Json();
  int64_t ranks = 1;
  for (const char* axis : {"data", "tensor", "pipeline"})
    if (mesh.is_object() && mesh.value(axis, Json()).is_number_integer())
      ranks *= std::max<int64_t>(1, mesh[axis].get<int64_t>());
  return ranks;
}

void check_mesh(const Config& config) {
  if (config.mesh.tensor == 1 && config.mesh.pipeline == 1) return;
  // A vocabulary that only the tokenizer knows is checked when it is known.
  constexpr int64_t kAnyVocabulary = int64_t{1} << 21;
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) spec.vocab_size = kAnyVocabulary;
  spec.complete("model");
  const EngineOptions options = engine_options(config);
  for (const std::string& why :
       {obstacle_to_tensor(spec, options), obstacle_to_pipeline(spec, options)})
    if (!why.empty()) user_error("{}", why);
}

Json mesh_json(const MeshConfig& mesh) {
  Json json = {{"data", mesh.data}, {"tensor", mesh.tensor}};
  if (mesh.pipeline > 1) json["pipeline"] = mesh.pipeline;
  return json;
}

}  // namespace onefold

// "mesh": how ranks are divided into axes; and DeepSpeed's tensor_parallel.autotp_size.
#include <algorithm>

#include "base/error.h"
#include "config/sections.h"
#include "engine/lines.h"

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

}  // namespace

void read_mesh(JsonObject& root, int64_t world_size, Config& config) {
  JsonObject in = root.object("mesh");
  int64_t data = read_axis(in, "data"), tensor = read_axis(in, "tensor");
  for (const char* axis : {"pipeline", "context", "expert"}) refuse_axis(in, axis);
  in.finish();
  if (const int64_t size = read_autotp_size(root); size > 0) {
    if (tensor > 0 && tensor != size)
      root.refuse(Group::conflict, "tensor_parallel.autotp_size",
                  fmt::format("is {}, and mesh.tensor is {}; leave one of them out", size, tensor));
    tensor = size;
  }
  if (tensor == 0 && data > 0 && world_size % data == 0) tensor = world_size / data;
  if (tensor == 0) tensor = 1;
  if (data == 0 && world_size % tensor == 0) data = world_size / tensor;
  if (data * tensor != world_size) {
    root.refuse(
        Group::conflict, data == 0 ? "mesh.tensor" : "mesh",
        data == 0 ? fmt::format("is {}, and {} rank(s) cannot be divided by it; they can with "
                                "--ranks {}",
                                tensor, world_size, tensor)
                  : fmt::format("has data {} x tensor {} = {} ranks, and there are {}; they agree "
                                "with --ranks {}, or leave one axis out",
                                data, tensor, data * tensor, world_size, data * tensor));
    data = world_size, tensor = 1;
  }
  config.mesh = {data, tensor};
}

int64_t mesh_ranks(const Json& root) {
  const Json mesh = root.is_object() ? root.value("mesh", Json()) : Json();
  int64_t ranks = 1;
  for (const char* axis : {"data", "tensor"})
    if (mesh.is_object() && mesh.value(axis, Json()).is_number_integer())
      ranks *= std::max<int64_t>(1, mesh[axis].get<int64_t>());
  return ranks;
}

void check_mesh(const Config& config) {
  if (config.mesh.tensor == 1) return;
  // A vocabulary that only the tokenizer knows is checked when it is known.
  constexpr int64_t kAnyVocabulary = int64_t{1} << 21;
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) spec.vocab_size = kAnyVocabulary;
  spec.complete("model");
  if (const std::string why = obstacle_to_tensor(spec, engine_options(config)); !why.empty())
    user_error("{}", why);
}

Json mesh_json(const MeshConfig& mesh) { return {{"data", mesh.data}, {"tensor", mesh.tensor}}; }

}  // namespace onefold

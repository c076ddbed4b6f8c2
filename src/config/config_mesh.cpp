// "mesh": how ranks are divided into axes; "context": how parts of a sequence attend; and
// DeepSpeed's tensor_parallel.autotp_size, sequence_parallel_size, pipeline.stages and
// expert_parallel.autoep_size.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/text.h"
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

// The same of "expert_parallel". What says how experts compute is the model's own affair.
constexpr const char* kExpertKeys[] = {"validate_folding_routing",
                                       "async_split_plan",
                                       "preset_model",
                                       "moe_layer_pattern",
                                       "expert_pattern",
                                       "router_pattern",
                                       "use_grouped_mm",
                                       "disable_triton_grouped_mm",
                                       "combine_impl",
                                       "row_weighting_impl",
                                       "gate_up_impl",
                                       "comm_backend",
                                       "comm_num_sm",
                                       "comm_qp_margin",
                                       "comm_max_tokens_per_rank",
                                       "expert_w1",
                                       "expert_w2",
                                       "expert_w3",
                                       "num_experts_attr",
                                       "top_k_attr",
                                       "has_shared_experts",
                                       "shared_experts_pattern",
                                       "shared_experts_gate_pattern"};
constexpr const char* kRouterKeys[] = {"route_norm",
                                       "route_scale",
                                       "score_apply",
                                       "score_func",
                                       "top_k",
                                       "load_balance_coeff",
                                       "routed_scaling_factor",
                                       "num_expert_groups",
                                       "num_limited_groups",
                                       "expert_activation"};

// Beyond it messages are too small for any link.
constexpr int64_t kMostChunks = 64;

// So that no product of axes overflows.
int64_t at_most(JsonObject& in, std::string_view key, int64_t size) {
  const int64_t most = int64_t{1} << (key == "data" ? 20 : 10);
  if (size <= most) return size;
  in.refuse(Group::conflict, key, fmt::format("is {}; the largest is {}", size, most));
  return 1;
}

void read_idle(JsonObject& section, std::span<const char* const> keys) {
  for (const char* key : keys)
    if (section.has(key)) {
      section.require<Json>(key);
      section.idle(key);
    }
}

int64_t read_autotp_size(JsonObject& root) {
  if (!root.has("tensor_parallel")) return 0;
  if (root.value()["tensor_parallel"] == false) {
    root.idle("tensor_parallel");
    return 0;
  }
  JsonObject section = root.object("tensor_parallel");
  section.allow_auto();
  read_idle(section, kTensorKeys);
  const int64_t size = at_most(section, "autotp_size", section.at_least("autotp_size", 0, 0));
  section.finish();
  return size;
}

void read_context(JsonObject& root, Config& config) {
  if (!root.has("context")) return;
  JsonObject in = root.object("context");
  config.context_method = in.choice("method", {"auto", "ulysses", "ring"}, "auto");
  in.finish();
}

int64_t read_autoep_size(JsonObject& root) {
  if (!root.has("expert_parallel")) return 0;
  if (root.value()["expert_parallel"] == false) {
    root.idle("expert_parallel");
    return 0;
  }
  JsonObject section = root.object("expert_parallel");
  section.allow_auto();
  const bool enabled = section.get<bool>("enabled", false);
  read_idle(section, kExpertKeys);
  for (const char* key : kRouterKeys) {
    if (!section.has(key)) continue;
    const Json value = section.require<Json>(key);
    if (enabled)
      section.refuse(Group::conflict, key,
                     fmt::format("is {}: model.experts says how a router chooses; leave it out",
                                 brief_json(value)));
    else
      section.idle(key);
  }
  if (const int64_t size = section.at_least("expert_tensor_parallel_size", 1, 1); size > 1)
    section.refuse(
        Group::missing, "expert_tensor_parallel_size",
        fmt::format("is {}: experts are divided by mesh.tensor, like all units; leave it out",
                    size));
  const int64_t size = at_most(section, "autoep_size", section.at_least("autoep_size", 1, 1));
  section.finish();
  if (!enabled) root.idle("expert_parallel");
  return enabled ? size : 0;
}

int64_t read_axis(JsonObject& mesh, std::string_view axis) {
  return at_most(mesh, axis, mesh.at_least(axis, 1, 0));
}

// Axes that do not multiply to the ranks; data of 0: it was left out.
void refuse_mesh(JsonObject& root, const MeshConfig& mesh, int64_t world_size) {
  const int64_t others = mesh.others();
  std::vector<std::string> names;
  std::string sizes;
  for (const auto& [name, size] :
       {std::pair("tensor", mesh.tensor), std::pair("context", mesh.context),
        std::pair("expert", mesh.expert), std::pair("pipeline", mesh.pipeline)}) {
    if (size > 1) names.emplace_back(name);
    if (size > 1 || name == std::string_view("tensor"))
      sizes += fmt::format(" x {} {}", name, size);
  }
  if (mesh.data == 0)
    return root.refuse(
        Group::conflict, names.size() == 1 ? "mesh." + names[0] : "mesh",
        fmt::format("{} {}, and {} rank(s) cannot be divided by it; they can with --ranks {}",
                    names.size() == 1 ? "is" : fmt::format("has {} =", join(names, " x ")), others,
                    world_size, others));
  root.refuse(Group::conflict, "mesh",
              fmt::format("has data {}{} = {} ranks, and there are {}; they agree with --ranks {}, "
                          "or leave one axis out",
                          mesh.data, sizes, mesh.data * others, world_size, mesh.data * others));
}

// An axis that two keys name.
void agree(JsonObject& root, const char* key, int64_t other, const char* mesh_key, int64_t& axis) {
  if (other == 0) return;
  if (axis > 0 && axis != other)
    root.refuse(Group::conflict, key,
                fmt::format("is {}, and {} is {}; leave one of them out", other, mesh_key, axis));
  axis = other;
}

// The mesh decides how many ranks have sequences of their own, and nothing that is learned.
void refuse_open_batch(JsonObject& root, const JsonObject& mesh) {
  if (root.value().value("train_batch_size", Json()).is_number()) return;
  for (const char* axis : {"tensor", "pipeline", "context", "expert"})
    if (mesh.is_auto(axis))
      root.refuse(Group::conflict, std::string("mesh.") + axis,
                  "is \"auto\", and the global batch would follow from it; set train_batch_size");
  if (root.is_auto("mesh"))
    root.refuse(Group::conflict, "mesh",
                "is \"auto\", and the global batch would follow from it; set train_batch_size");
}

}  // namespace

void read_mesh(JsonObject& root, int64_t world_size, Config& config) {
  root.allow_auto({"mesh"});
  JsonObject in = root.object("mesh");
  in.allow_auto(
      {"data", "tensor", "pipeline", "context", "expert", "sequence_parallel", "overlap_chunks"});
  refuse_open_batch(root, in);
  // 0: left out.
  MeshConfig mesh{.data = read_axis(in, "data"),
                  .tensor = read_axis(in, "tensor"),
                  .pipeline = read_axis(in, "pipeline"),
                  .context = read_axis(in, "context"),
                  .expert = read_axis(in, "expert"),
                  .sequence_parallel = in.get<bool>("sequence_parallel", false),
                  .overlap_chunks = in.at_least("overlap_chunks", 1, 1),
                  .expert_bound = in.get<double>("expert_bound", 0)};
  if (mesh.expert_bound != 0 && !(mesh.expert_bound >= 1 && mesh.expert_bound <= 1e6))
    in.fail("expert_bound",
            fmt::format("must be 0 or from 1 to 1e6, not {:g}: how many times their even share of "
                        "rows ranks have room for",
                        mesh.expert_bound));
  if (mesh.overlap_chunks > kMostChunks) {
    in.refuse(Group::conflict, "overlap_chunks",
              fmt::format("is {}; the most is {}", mesh.overlap_chunks, kMostChunks));
    mesh.overlap_chunks = 1;
  }
  in.finish();
  read_context(root, config);
  agree(root, "tensor_parallel.autotp_size", read_autotp_size(root), "mesh.tensor", mesh.tensor);
  agree(root, "sequence_parallel_size",
        at_most(root, "sequence_parallel_size", root.at_least("sequence_parallel_size", 1, 0)),
        "mesh.context", mesh.context);
  agree(root, "pipeline.stages", read_pipeline(root, config.pipeline), "mesh.pipeline",
        mesh.pipeline);
  agree(root, "expert_parallel.autoep_size", read_autoep_size(root), "mesh.expert", mesh.expert);
  // One that is left out follows from the others: data, or the first of these. The rest are 1.
  int64_t* open = mesh.data == 0 ? &mesh.data : nullptr;
  for (int64_t* axis : {&mesh.tensor, &mesh.pipeline, &mesh.context, &mesh.expert}) {
    if (*axis > 0) continue;
    *axis = 1;
    if (open == nullptr) open = axis;
  }
  if (open != nullptr) {
    *open = 1;
    const int64_t given = mesh.data * mesh.others();
    if (world_size % given == 0)
      *open = world_size / given;
    else if (open == &mesh.data)
      *open = 0;
  }
  if (mesh.data * mesh.others() != world_size) {
    refuse_mesh(root, mesh, world_size);
    mesh = {.data = world_size};
  }
  if (mesh.context == 1) root.idle("context");
  if (mesh.tensor == 1 && mesh.sequence_parallel)
    root.refuse(Group::conflict, "mesh.sequence_parallel", "has no effect without mesh.tensor");
  if (mesh.tensor == 1 && mesh.overlap_chunks > 1)
    root.refuse(Group::conflict, "mesh.overlap_chunks",
                "has no effect without mesh.tensor, whose sums it lets travel beside computation");
  if (mesh.expert == 1 && mesh.expert_bound > 0)
    root.refuse(Group::conflict, "mesh.expert_bound", "has no effect without mesh.expert");
  config.mesh = mesh;
  config.pipeline.ranks = static_cast<int>(mesh.pipeline);
}

int64_t mesh_ranks(const Json& root) {
  const Json mesh = root.is_object() ? root.value("mesh", Json()) : Json();
  int64_t ranks = 1;
  for (const char* axis : {"data", "tensor", "pipeline", "context", "expert"})
    if (mesh.is_object() && mesh.value(axis, Json()).is_number_integer())
      ranks *= std::clamp<int64_t>(mesh[axis].get<int64_t>(), 1, int64_t{1} << 12);  // of five
  return ranks;
}

namespace {

// A vocabulary that only the tokenizer knows is checked when it is known.
ModelSpec divided_model(const Config& config) {
  constexpr int64_t kAnyVocabulary = int64_t{1} << 21;
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) spec.vocab_size = kAnyVocabulary;
  spec.complete("model");
  return spec;
}

}  // namespace

// Heads are exchanged where they can be divided: less is sent, and nothing is refused.
void settle_context(Config& config) {
  if (config.mesh.context == 1 || config.context_method != "auto") return;
  config.context_method =
      divides_heads(divided_model(config), engine_options(config)) ? "ulysses" : "ring";
}

void check_mesh(const Config& config) {
  if (config.mesh.others() == 1) return;
  const EngineOptions options = engine_options(config);
  for (const std::string& why : {obstacle_to_mesh(divided_model(config), options),
                                 obstacle_to_compression(options, config.mesh.ranks())})
    if (!why.empty()) user_error("{}", why);
}

Json mesh_json(const MeshConfig& mesh) {
  Json json = {{"data", mesh.data}, {"tensor", mesh.tensor}};
  if (mesh.pipeline > 1) json["pipeline"] = mesh.pipeline;
  if (mesh.context > 1) json["context"] = mesh.context;
  if (mesh.expert > 1) json["expert"] = mesh.expert;
  if (mesh.sequence_parallel) json["sequence_parallel"] = true;
  if (mesh.overlap_chunks > 1) json["overlap_chunks"] = mesh.overlap_chunks;
  if (mesh.expert_bound > 0) json["expert_bound"] = mesh.expert_bound;
  return json;
}

}  // namespace onefold

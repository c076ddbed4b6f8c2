#include "run/search.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "plan/recompute.h"
#include "run/session.h"

namespace onefold {
namespace {

constexpr size_t kMostMeshes = 4096;

}  // namespace

ModelSpec planned_model(const Config& config) {
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) {
    const std::optional<Tokenizer> tokenizer = open_tokenizer(config.data.tokenizer);
    if (!tokenizer)
      user_error("model.vocab_size is missing: a plan reads no data, so it cannot ask the tokens");
    spec.vocab_size = tokenizer->vocab_size();
  }
  spec.complete("model");
  return spec;
}

namespace {

// Of a mesh: with micro-batches of one sequence where the search may cut the batch, for some
// pipelines do not go with one micro-batch.
Config config_on(const Json& root, const std::string& path, int ranks, const Freedom& freedom) {
  if (freedom.batch) {
    Json cut = root;
    cut["train_micro_batch_size_per_gpu"] = 1;
    cut.erase("gradient_accumulation_steps");
    try {
      return config_of(cut, path, ranks);
    } catch (const UserError&) {
    }
  }
  return config_of(root, path, ranks);
}

std::string axes_text(const MeshAxes& mesh) {
  std::vector<std::string> parts;
  for (const auto& [name, size] :
       {std::pair("tensor", mesh.tensor), std::pair("pipeline", mesh.pipeline),
        std::pair("context", mesh.context), std::pair("expert", mesh.expert)})
    if (size > 1) parts.push_back(fmt::format("{} {}", name, size));
  return parts.empty() ? "data alone" : join(parts, ", ");
}

// A problem, and the title of the group that it is in; "" where it is alone.
using Problem = std::pair<std::string, std::string>;

// The problems that an error of a file names (config_of, JsonReport::raise): one, or a list of
// lines under titles.
std::vector<Problem> problems_of(const std::string& error, const std::string& path) {
  std::vector<Problem> problems;
  std::string title;
  for (const std::string& line : split(error, '\n'))
    if (line.starts_with("    "))
      problems.emplace_back(title, line.substr(4));
    else if (line.starts_with("  "))
      title = line;
  if (!problems.empty()) return problems;
  const std::string begin = path + ": ";
  return {{"", error.starts_with(begin) ? error.substr(begin.size()) : error}};
}

// Why no mesh goes. What is wrong with every mesh is none of the mesh's affair, and is said alone.
class Refusals {
 public:
  explicit Refusals(const std::string& path) : path_(path) {}

  void add(const MeshAxes& axes, const UserError& error) {
    const std::vector<Problem> problems = problems_of(error.what(), path_);
    if (first_.empty()) {
      first_ = fmt::format("The first that was tried, of {}: {}", axes_text(axes), error.what());
      common_ = problems;
    }
    // One mesh may have it alone, and so without a title.
    std::erase_if(common_, [&](const Problem& one) {
      return std::none_of(problems.begin(), problems.end(),
                          [&](const Problem& other) { return other.second == one.second; });
    });
  }
  [[noreturn]] void raise(int ranks) const {
    if (common_.size() == 1) user_error("{}: {}", path_, common_[0].second);
    if (!common_.empty()) {
      std::string text = fmt::format("{}: {} problems", path_, common_.size()), title;
      for (const auto& [group, problem] : common_) {
        if (group != title) text += "\n  " + group;
        title = group;
        text += "\n    " + problem;
      }
      user_error("{}", text);
    }
    user_error(
        "no mesh of {} ranks goes with what the configuration says. {}", ranks,
        first_.empty() ? "mesh.data leaves the other axes no sizes that multiply to them" : first_);
  }

 private:
  const std::string& path_;
  std::string first_;
  std::vector<Problem> common_;
};

// Of axes, by a model that one rank has; where that does not go, by what models can have.
MeshAxes largest(const Json& root, const std::string& path) {
  constexpr MeshAxes kUnknown{.tensor = 64, .context = 64, .expert = 256, .pipeline = 256};
  Json alone = root;
  for (const char* key : {"mesh", "pipeline", "tensor_parallel"}) alone.erase(key);
  try {
    const Config config = config_of(alone, path, 1);
    return largest_worth_a_plan(config.model, config.data.sequence_length);
  } catch (const UserError&) {
    return kUnknown;
  }
}

}  // namespace

OpenConfig open_config(const Json& root, const std::string& path, int ranks, const Freedom& freedom,
                       int host_ranks) {
  if (!freedom.mesh.any()) {
    const Config config = config_of(root, path, ranks);
    return {config, {engine_options(config)}};
  }
  OpenConfig open;
  Refusals refusals(path);
  std::vector<MeshAxes> possible = possible_meshes(
      ranks, given_axes(root), freedom.mesh, host_ranks, given_data(root), largest(root, path));
  // An axis that is given, and does not divide the ranks, says so itself.
  if (possible.empty() && given_data(root) == 0)
    config_of(with_mesh(root, {}, freedom.mesh), path, ranks);
  // Where so many do not go, no further one will.
  if (possible.size() > kMostMeshes) possible.resize(kMostMeshes);
  for (const MeshAxes& axes : possible) {
    const Config& known = open.config;  // of the first one
    if (!open.meshes.empty() &&
        !is_worth_a_plan(known.model, known.data.sequence_length, freedom.mesh, axes))
      continue;
    try {
      Config config = config_on(with_mesh(root, axes, freedom.mesh), path, ranks, freedom);
      open.meshes.push_back(engine_options(config));
      if (open.meshes.size() == 1) open.config = std::move(config);
    } catch (const UserError& error) {
      refusals.add(axes, error);
    }
  }
  if (open.meshes.empty()) refusals.raise(ranks);
  return open;
}

SearchResult search(const OpenConfig& open, const FitContext& context, const Freedom& freedom,
                    const TierLimits& limits, size_t wanted) {
  std::vector<EngineOptions> meshes = open.meshes;
  for (EngineOptions& options : meshes)
    if (options.threads == 0) options.threads = context.hardware.cores;
  return search_meshes(planned_model(open.config), meshes, context, freedom, limits, wanted);
}

Config with_layout(const Json& root, const Layout& layout, const Freedom& freedom, int ranks) {
  Json document = root;
  write_layout(document, layout.options, freedom);
  return Config::from_json(document, ranks);
}

Config settle_layout(const OpenConfig& open, const Json& root, const FitContext& context,
                     const TierLimits& limits) {
  const Freedom freedom = asked_for(root);
  if (freedom == Freedom{}) return open.config;
  const SearchResult found = search(open, context, freedom, limits, 1);
  if (found.best.empty())
    return freedom.mesh.any() && found.least.device_bytes > 0
               ? with_layout(root, found.least, freedom, context.ranks)
               : open.config;
  Config settled = with_layout(root, found.best[0], freedom, context.ranks);
  settled.notes.remarks.push_back(fmt::format(
      "of the layouts that fit, the fastest one by the rates of {}: {}", context.hardware.name,
      layout_text(found.best[0].options, planned_model(open.config), context.ranks)));
  if (found.stopped) settled.notes.remarks.push_back(stopped_text(found));
  return settled;
}

namespace {

// The axes that there are, and how they travel.
std::vector<std::string> mesh_parts(const EngineOptions& options) {
  std::vector<std::string> parts;
  if (options.tensor > 1) {
    parts.push_back(fmt::format("tensor {}", options.tensor));
    if (options.sequence_parallel) parts.back() += " (sequences too)";
    if (options.overlap_chunks > 1)
      parts.back() += fmt::format(" (sums in {} runs)", options.overlap_chunks);
  }
  const PipelineOptions& pipeline = options.pipeline;
  if (pipeline.ranks > 1)
    parts.push_back(
        fmt::format("pipeline {} ({}{})", pipeline.ranks, schedule_name(pipeline.schedule),
                    pipeline.interleave > 1 ? fmt::format(" x {}", pipeline.interleave) : ""));
  if (options.context > 1) parts.push_back(fmt::format("context {}", options.context));
  if (options.expert > 1) parts.push_back(fmt::format("expert {}", options.expert));
  return parts;
}

}  // namespace

std::string layout_text(const EngineOptions& options, const ModelSpec& model, int ranks) {
  std::vector<std::string> parts = mesh_parts(options);
  if (ranks > 1) parts.push_back(fmt::format("stage {}", options.zero.stage));
  parts.push_back(fmt::format("micro {} x {}", options.micro_batch, options.micros));
  if (ranks > 1 && options.micros > 1 && options.zero.stage >= 2 && options.pipeline.ranks == 1)
    parts.push_back(options.order == Order::unit_first ? "unit by unit" : "micro by micro");
  const std::string again = recompute_text(options.recompute, model);
  parts.push_back(again.empty() ? "keeps activations" : "recomputes " + again);
  const auto tier = [](Tier t) { return t == Tier::disk ? "disk" : "host"; };
  const OffloadOptions& offload = options.offload;
  if (offload.optimizer != Tier::device)
    parts.push_back(fmt::format("optimizer on the {}{}", tier(offload.optimizer),
                                offload.optimizer_ratio < 1
                                    ? fmt::format(" ({:g} %)", 100 * offload.optimizer_ratio)
                                    : ""));
  if (offload.optimizer == Tier::host && offload.host_step_ratio < 1)
    parts.push_back(fmt::format("the host steps {:g} % of that", 100 * offload.host_step_ratio));
  if (offload.parameters != Tier::device)
    parts.push_back(fmt::format("parameters on the {}", tier(offload.parameters)));
  if (ranks > 1 && !options.zero.overlap) parts.push_back("no overlap");
  if (ranks > 1 && options.zero.stage == 3 && options.zero.prefetch_elems >= 0)
    parts.push_back(options.zero.prefetch_elems == 0
                        ? std::string("no prefetch")
                        : fmt::format("prefetch {}", format_count(options.zero.prefetch_elems)));
  if (ranks > 1 && options.zero.reduce_bucket_elems != ZeroOptions{}.reduce_bucket_elems)
    parts.push_back(fmt::format("buckets {}", format_count(options.zero.reduce_bucket_elems)));
  return join(parts, ", ");
}

}  // namespace onefold

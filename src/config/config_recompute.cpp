// run.recompute. (DeepSpeed's "activation_checkpointing" says how a model that recomputes does it,
// not how much.)
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "config/sections.h"
#include "plan/recompute.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

constexpr const char* kNames =
    "true, false, none, blocks, units, attention, mlp, sqrt, selective, auto, or one of "
    "{\"blocks\": N}, {\"attention\": N, \"mlp\": N} and {\"every\": N}";

// As long as there are many: what is kept and what a segment holds grow with the root of the depth.
Recompute by_square_root(const Config& config) {
  const int64_t of_block = config.model.parallel == Parallel::no ? 2 : 1;
  const auto units = static_cast<double>(of_block * config.model.num_layers);
  return Recompute::in_segments(std::max(1, static_cast<int>(std::ceil(std::sqrt(units)))));
}

bool read_name(const std::string& name, Config& config) {
  RunConfig& run = config.run;
  constexpr int kAll = Recompute::kAll;
  if (name == "none")
    run.recompute = {};
  else if (name == "blocks" || name == "full")
    run.recompute = true;
  else if (name == "units")
    run.recompute = Recompute::in_segments(1);
  else if (name == "attention")
    run.recompute = {kAll, 0};
  else if (name == "mlp")
    run.recompute = {0, kAll};
  else if (name == "sqrt")
    run.recompute = by_square_root(config);
  else if (name == "selective" || name == "auto")
    run.recompute_by = name;
  else
    return false;
  return true;
}

void read_counts(JsonObject& in, Config& config) {
  JsonObject counts = in.object("recompute");
  const auto count = [&](std::string_view key) {
    return static_cast<int>(std::min<int64_t>(counts.at_least(key, 1, 0), Recompute::kAll));
  };
  const int blocks = count("blocks"), every = count("every"), attention = count("attention"),
            mlp = count("mlp");
  if ((blocks > 0) + (every > 0) + (attention + mlp > 0) != 1)
    in.refuse(Group::conflict, "recompute", fmt::format("must be {}", kNames));
  else if (blocks > 0)
    config.run.recompute = Recompute::blocks(blocks);
  else if (every > 0)
    config.run.recompute = Recompute::in_segments(every);
  else
    config.run.recompute = {attention, mlp};
  counts.finish();
}

}  // namespace

void read_recompute(JsonObject& in, Config& config) {
  const Json value = in.value().value("recompute", Json());
  if (value.is_object()) return read_counts(in, config);
  if (value.is_boolean()) {
    config.run.recompute = in.get<bool>("recompute", false);
  } else if (in.has("recompute")) {
    in.require<Json>("recompute");
    if (!value.is_string() || !read_name(value.get<std::string>(), config))
      in.refuse(Group::conflict, "recompute",
                fmt::format("must be {}, not {}", kNames, brief_json(value)));
  }
}

Json recompute_json(const RunConfig& run) {
  return run.recompute_by.empty() ? recompute_value(run.recompute) : Json(run.recompute_by);
}

}  // namespace onefold

#include "run/search.h"

#include "base/error.h"
#include "base/text.h"
#include "plan/recompute.h"
#include "run/session.h"

namespace onefold {

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

EngineOptions search_options(const Config& config, const FitContext& context) {
  EngineOptions options = engine_options(config);
  if (options.threads == 0) options.threads = context.hardware.cores;
  return options;
}

Config with_layout(const Json& root, const Layout& layout, const Freedom& freedom, int ranks) {
  Json document = root;
  write_layout(document, layout.options, freedom);
  return Config::from_json(document, ranks);
}

Config settle_layout(const Config& config, const Json& root, const FitContext& context,
                     const TierLimits& limits) {
  const Freedom freedom = asked_for(root);
  if (freedom == Freedom{}) return config;
  const EngineOptions options = search_options(config, context);
  const SearchResult found =
      search_layouts(planned_model(config), options, context, freedom, limits, 1);
  if (found.best.empty()) return config;
  Config settled = with_layout(root, found.best[0], freedom, context.ranks);
  settled.notes.remarks.push_back(fmt::format(
      "of the layouts that fit, the fastest one by the rates of {}: {}", context.hardware.name,
      layout_text(found.best[0].options, planned_model(config), context.ranks)));
  return settled;
}

std::string layout_text(const EngineOptions& options, const ModelSpec& model, int ranks) {
  std::vector<std::string> parts;
  if (ranks > 1) parts.push_back(fmt::format("stage {}", options.zero.stage));
  parts.push_back(fmt::format("micro {} x {}", options.micro_batch, options.micros));
  if (ranks > 1 && options.micros > 1 && options.zero.stage >= 2)
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

#include "plan/recompute.h"

#include <algorithm>
#include <optional>

namespace onefold {
namespace {

constexpr int kAll = Recompute::kAll;

// Plans steps that differ in what they recompute.
class Search {
 public:
  Search(const ModelSpec& spec, const EngineOptions& options, const FitContext& context,
         int64_t limit_bytes)
      : spec_(spec),
        options_(options),
        context_(context),
        limit_bytes_(limit_bytes),
        blocks_(static_cast<int>(spec.num_layers)) {
    // A third micro-batch holds what a second one does.
    options_.micros = std::min(options_.micros, 2);
  }

  Recompute least() {
    if (fits({})) return {};
    look_at_parts();
    look_at_blocks();
    if (!best_) look_at_segments();
    return best_ ? best_->policy : lowest_.policy;
  }

 private:
  struct Tried {
    Recompute policy;
    Planned planned;
  };

  bool fits(const Recompute& policy) {
    options_.recompute = policy;
    const Tried tried{policy, planned(spec_, options_, context_)};
    if (lowest_.planned.peak_bytes == 0 || tried.planned.peak_bytes < lowest_.planned.peak_bytes)
      lowest_ = tried;
    if (tried.planned.peak_bytes > limit_bytes_) return false;
    if (!best_ || tried.planned.seconds < best_->planned.seconds) best_ = tried;
    return true;
  }

  // For each number of attentions the fewest MLPs: the more of one, the fewer of the other, so that
  // all pairs on the edge are met in one walk.
  void look_at_parts() {
    int mlps = blocks_;
    for (int attentions = 0; attentions <= blocks_; ++attentions) {
      if (!fits({attentions, mlps})) continue;
      while (mlps > 0 && fits({attentions, mlps - 1})) --mlps;
      if (mlps == 0) return;
    }
  }

  // The fewest, by bisection.
  void look_at_blocks() {
    if (!fits(Recompute::blocks(blocks_))) return;
    for (int begin = 1, end = blocks_; begin < end;) {
      const int middle = (begin + end) / 2;
      if (fits(Recompute::blocks(middle)))
        end = middle;
      else
        begin = middle + 1;
    }
  }

  // All take the same time: the lowest peak is near the square root of the number of units.
  void look_at_segments() {
    constexpr int kTriedOneByOne = 64;
    for (int units = 1; units <= 2 * blocks_; units += 1 + units / kTriedOneByOne)
      fits(Recompute::in_segments(units));
  }

  const ModelSpec& spec_;
  EngineOptions options_;
  const FitContext& context_;
  const int64_t limit_bytes_;
  const int blocks_;
  std::optional<Tried> best_;  // of those that fit
  Tried lowest_;
};

}  // namespace

Planned planned(const ModelSpec& spec, EngineOptions options, const FitContext& context) {
  options.memory_limit_bytes = Ledger::kNoLimit;
  if (!context.order_is_given)
    options.order = choose_order(spec, options, context.ranks, context.hardware);
  const auto plan = Engine::plan_worst(spec, options, context.ranks, context.comm_scratch_bytes,
                                       context.hardware);
  return {plan->ledger().peak_bytes(), plan->device().now()};
}

Recompute selective_recompute(const ModelSpec& spec, const EngineOptions& options,
                              const FitContext& context) {
  EngineOptions tried = options;
  tried.micros = 1;
  const auto plan = [&](const Recompute& policy) {
    tried.recompute = policy;
    return planned(spec, tried, context);
  };
  const Planned none = plan({}), attention = plan({kAll, 0}), mlp = plan({0, kAll});
  const auto gain = [&](const Planned& one) {
    return static_cast<double>(none.peak_bytes - one.peak_bytes) / (one.seconds - none.seconds);
  };
  return gain(attention) > gain(mlp) ? Recompute(kAll, 0) : Recompute(0, kAll);
}

Recompute least_recompute(const ModelSpec& spec, const EngineOptions& options,
                          const FitContext& context, int64_t limit_bytes) {
  return Search(spec, options, context, limit_bytes).least();
}

std::string recompute_text(const Recompute& policy, const ModelSpec& spec) {
  const auto blocks = static_cast<int>(spec.num_layers);
  const auto of = [&](int count) {
    return count >= blocks ? std::string("all blocks")
                           : fmt::format("{} of {} blocks", count, blocks);
  };
  if (policy.every > 0) return fmt::format("all units, in segments of {}", policy.every);
  if (policy.joined && policy.any()) return "all but the inputs of " + of(policy.attention);
  std::string text;
  if (policy.attention > 0) text = "the attention of " + of(policy.attention);
  if (policy.mlp > 0) text += (text.empty() ? "the MLP of " : ", the MLP of ") + of(policy.mlp);
  return text;
}

}  // namespace onefold

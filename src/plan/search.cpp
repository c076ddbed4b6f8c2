#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/text.h"
#include "model/spec_limits.h"
#include "plan/recompute.h"

namespace onefold {
namespace {

// Of a step that is planned: a plan for it takes a few hundredths of a second, and dozens are made.
constexpr int64_t kMostUnits = int64_t{1} << 15;
constexpr size_t kMostBatches = 8;  // sizes of a micro-batch that are tried
constexpr int kRatioSteps = 8;

// What a plan has found about a step.
struct Estimate {
  int64_t device = 0, host = 0, disk = 0;
  double seconds = 0, waits = 0;
  double passes = 0;  // forward and backward, without what they wait for
};

Estimate plan_once(const ModelSpec& spec, EngineOptions options, const FitContext& context) {
  options.memory_limit_bytes = Ledger::kNoLimit;
  const auto dry =
      Engine::plan(spec, options, context.ranks, context.comm_scratch_bytes, context.hardware);
  const Ledger& ledger = dry->ledger();
  Estimate found{ledger.peak_bytes(),           ledger.peak_bytes(Tier::host),
                 ledger.peak_bytes(Tier::disk), dry->device().now(),
                 dry->times().communication,    dry->times().forward + dry->times().backward};
  if (options.offload.optimizer != Tier::host) return found;
  // What the host steps is left to the step after it: that one counts.
  const BatchView batch{.batch = options.micro_batch, .sequence = options.sequence};
  dry->train_step(std::vector(static_cast<size_t>(options.micros), batch), 0);
  found.seconds = dry->device().now() - found.seconds;
  found.waits = dry->times().communication - found.waits;
  return found;
}

// Of many micro-batches a step of few and one of more are planned: each further one adds as much.
struct PlannedMicros {
  int few, more;
};
PlannedMicros planned_micros(Order order) {
  return order == Order::unit_first ? PlannedMicros{4, 8} : PlannedMicros{2, 3};
}

Estimate extended(const Estimate& few, const Estimate& more, const EngineOptions& options) {
  const PlannedMicros planned = planned_micros(options.order);
  const double factor =
      static_cast<double>(options.micros - planned.more) / (planned.more - planned.few);
  const auto add = [&](auto few_have, auto more_have) {
    return static_cast<decltype(more_have)>(static_cast<double>(more_have) +
                                            factor * static_cast<double>(more_have - few_have));
  };
  return {add(few.device, more.device),
          more.host,
          more.disk,
          add(few.seconds, more.seconds),
          add(few.waits, more.waits),
          add(few.passes, more.passes)};
}

struct HomePair {
  Tier optimizer, parameters;
};

int distance(Tier tier) { return tier == Tier::disk ? 10 : tier == Tier::host ? 1 : 0; }

// How messages travel: the fastest first, the one that holds least last.
struct Travel {
  bool overlap;
  int64_t prefetch_elems;
};

class LayoutSearch {
 public:
  LayoutSearch(const ModelSpec& spec, const EngineOptions& options, const FitContext& context,
               const Freedom& freedom, const TierLimits& limits, size_t wanted)
      : spec_(spec),
        options_(options),
        context_(context),
        freedom_(freedom),
        limits_(limits),
        wanted_(wanted) {
    options_.memory_limit_bytes = Ledger::kNoLimit;
  }

  SearchResult run() {
    look_at_cells();
    refine();
    settle();
    return std::move(result_);
  }

 private:
  // A layout but for homes and travel: these decide what fits, the rest how long computation takes.
  struct Cell {
    int stage;
    Order order;
    int64_t micro_batch;
    size_t policy;
    double least_seconds;
  };
  struct Candidate {
    EngineOptions options;
    Estimate estimate;
  };

  bool fits(const Estimate& e) const {
    return e.device <= limits_.device && e.host <= limits_.host && e.disk <= limits_.disk;
  }

  // What there is to choose from.

  std::vector<int> stages() const {
    if (!freedom_.stage || context_.ranks == 1) return {options_.zero.stage};
    return {0, 1, 2, 3};
  }
  std::vector<Order> orders(int stage, int64_t micros) const {
    if (!freedom_.order) return {options_.order};
    const bool gathers_once =
        (context_.ranks > 1 && stage >= 2) || homes().size() > 1 || options_.offload.any();
    if (micros == 1 || !gathers_once) return {Order::micro_first};
    return {Order::micro_first, Order::unit_first};
  }
  // Sizes that divide a rank's sequences, the largest first.
  std::vector<int64_t> micro_batches() const {
    const int64_t sequences = options_.micro_batch * options_.micros;
    if (!freedom_.batch) return {options_.micro_batch};
    std::vector<int64_t> sizes;
    for (int64_t micros = 1; micros <= sequences && sizes.size() < kMostBatches; ++micros)
      if (sequences % micros == 0 && units_computed(spec_, micros) <= kMostUnits)
        sizes.push_back(sequences / micros);
    if (std::find(sizes.begin(), sizes.end(), int64_t{1}) == sizes.end() &&
        units_computed(spec_, sequences) <= kMostUnits)
      sizes.push_back(1);
    return sizes;
  }
  // The least recomputation first.
  std::vector<Recompute> policies() const {
    if (!freedom_.recompute) return {options_.recompute};
    const int root = std::max(2, static_cast<int>(std::ceil(std::sqrt(2.0 * blocks()))));
    return {{},   {Recompute::kAll, 0},        {0, Recompute::kAll}, Recompute::in_segments(1),
            true, Recompute::in_segments(root)};
  }
  std::vector<HomePair> homes() const {
    std::vector<HomePair> pairs;
    for (const Tier optimizer : tiers(freedom_.optimizer_home, options_.offload.optimizer))
      for (const Tier parameters : tiers(freedom_.parameter_home, options_.offload.parameters))
        pairs.push_back({optimizer, parameters});
    std::stable_sort(pairs.begin(), pairs.end(), [](const HomePair& a, const HomePair& b) {
      return distance(a.optimizer) + distance(a.parameters) <
             distance(b.optimizer) + distance(b.parameters);
    });
    return pairs;
  }
  std::vector<Tier> tiers(bool free, Tier given) const {
    if (!free) return {given};
    std::vector<Tier> list = {Tier::device};
    if (limits_.host > 0) list.push_back(Tier::host);
    if (limits_.disk > 0) list.push_back(Tier::disk);
    return list;
  }
  std::vector<Travel> travels(int stage) const {
    const bool ranks = context_.ranks > 1;
    std::vector<bool> overlaps = {options_.zero.overlap};
    if (freedom_.overlap && ranks) overlaps = {true, false};
    std::vector<Travel> list;
    for (const bool overlap : overlaps) {
      list.push_back({overlap, options_.zero.prefetch_elems});
      if (freedom_.prefetch && stage == 3 && overlap && options_.zero.prefetch_elems != 0)
        list.push_back({overlap, 0});
    }
    return list;
  }
  int blocks() const { return static_cast<int>(spec_.num_layers); }

  // Planning.

  static std::string key(const EngineOptions& o) {
    return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.zero.stage, int(o.order),
                       o.micro_batch, o.micros, o.recompute.attention, o.recompute.mlp,
                       o.recompute.joined, o.recompute.every,
                       10 * int(o.offload.optimizer) + int(o.offload.parameters),
                       o.offload.optimizer_ratio, o.zero.overlap, o.zero.prefetch_elems,
                       o.zero.reduce_bucket_elems, o.offload.host_step_ratio);
  }

  const Estimate& estimate(const EngineOptions& options) {
    const auto [place, is_new] = estimates_.try_emplace(key(options));
    if (is_new) place->second = make_estimate(options, context_);
    consider_least(options, place->second);
    return place->second;
  }

  Estimate make_estimate(EngineOptions options, const FitContext& context) {
    if (!freedom_.order && !context.order_is_given)
      options.order = choose_order(spec_, options, context.ranks, context.hardware);
    const PlannedMicros planned = planned_micros(options.order);
    ++result_.plans;
    if (options.micros <= planned.more) return plan_once(spec_, options, context);
    EngineOptions some = options;
    some.micros = planned.few;
    const Estimate few = plan_once(spec_, some, context);
    some.micros = planned.more;
    ++result_.plans;
    return extended(few, plan_once(spec_, some, context), options);
  }

  void consider_least(const EngineOptions& options, const Estimate& e) {
    if (result_.least.device_bytes == 0 || e.device < result_.least.device_bytes)
      result_.least = layout(options, e);
    if (!fits(e) && (!result_.refused || e.seconds < result_.refused->seconds))
      result_.refused = layout(options, e);
  }

  static Layout layout(const EngineOptions& options, const Estimate& e) {
    return {options, e.device, e.host, e.disk, e.seconds, e.waits};
  }

  EngineOptions options_of(const Cell& cell) const {
    EngineOptions options = options_;
    const int64_t sequences = options_.micro_batch * options_.micros;
    options.zero.stage = cell.stage;
    options.order = cell.order;
    options.micro_batch = cell.micro_batch;
    options.micros = static_cast<int>(sequences / cell.micro_batch);
    options.recompute = policies()[cell.policy];
    return options;
  }
  static EngineOptions with(EngineOptions options, const HomePair& homes, const Travel& travel) {
    options.offload.optimizer = homes.optimizer;
    options.offload.parameters = homes.parameters;
    options.zero.overlap = travel.overlap;
    options.zero.prefetch_elems = travel.prefetch_elems;
    return options;
  }

  // What a policy may become.
  Recompute fewest_blocks(const Recompute& policy) const {
    return freedom_.recompute ? fewer_blocks(policy, 1) : policy;
  }

  // Forward and backward alone, on a rank that holds everything: no layout with this micro-batch
  // and this recomputation is faster.
  double least_seconds(int64_t micro_batch, const Recompute& policy) {
    EngineOptions options = options_;
    options.zero.stage = 0;
    options.offload = {};
    options.micros = static_cast<int>(options_.micro_batch * options_.micros / micro_batch);
    options.micro_batch = micro_batch;
    options.recompute = policy;
    options.order = Order::micro_first;
    const FitContext alone{.order_is_given = true, .hardware = context_.hardware};
    return make_estimate(options, alone).passes;
  }

  std::vector<Cell> cells() {
    std::vector<Cell> list;
    const std::vector<Recompute> all = policies();
    for (const int64_t micro_batch : micro_batches())
      for (size_t policy = 0; policy < all.size(); ++policy) {
        const double seconds = least_seconds(micro_batch, fewest_blocks(all[policy]));
        const int64_t micros = options_.micro_batch * options_.micros / micro_batch;
        for (const int stage : stages())
          for (const Order order : orders(stage, micros))
            list.push_back({stage, order, micro_batch, policy, seconds});
      }
    std::stable_sort(list.begin(), list.end(), [](const Cell& a, const Cell& b) {
      return a.least_seconds < b.least_seconds;
    });
    return list;
  }

  void look_at_cells() {
    std::vector<Cell> too_large;
    for (const Cell& cell : cells()) {
      if (candidates_.size() >= wanted_ && cell.least_seconds > slowest_wanted()) return;
      const bool known = std::any_of(too_large.begin(), too_large.end(), [&](const Cell& other) {
        return other.stage == cell.stage && other.order == cell.order &&
               other.policy == cell.policy && other.micro_batch <= cell.micro_batch;
      });
      if (known) continue;
      if (can_fit(cell))
        look_at(cell);
      else
        too_large.push_back(cell);
    }
  }

  double slowest_wanted() const {
    std::vector<double> seconds;
    for (const Candidate& candidate : candidates_) seconds.push_back(candidate.estimate.seconds);
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(wanted_) - 1,
                     seconds.end());
    return seconds[wanted_ - 1];
  }

  // The device alone, with state as near as possible or as far as possible, and messages either
  // way: tiny units take more room on their way than they leave.
  bool can_fit(const Cell& cell) {
    const std::vector<Travel> ways = travels(cell.stage);
    const std::vector<HomePair> pairs = homes();
    for (const HomePair* pair : {&pairs.back(), &pairs.front()})
      for (const Travel* way : {&ways.back(), &ways.front()})
        if (estimate(with(options_of(cell), *pair, *way)).device <= limits_.device) return true;
    return false;
  }

  // For each way to travel, the nearest homes: what is farther takes longer.
  void look_at(const Cell& cell) {
    for (const Travel& travel : travels(cell.stage)) {
      std::vector<HomePair> near;
      for (const HomePair& pair : homes()) {
        const bool farther = std::any_of(near.begin(), near.end(), [&](const HomePair& other) {
          return distance(other.optimizer) <= distance(pair.optimizer) &&
                 distance(other.parameters) <= distance(pair.parameters);
        });
        EngineOptions options = with(options_of(cell), pair, travel);
        if (farther || !take_what_the_tier_holds(options)) continue;
        near.push_back(pair);
        options = with_ratio(options);
        if (keeps_all(options)) continue;
        add(with_less_recomputed(options));
      }
    }
  }

  // What recomputes in vain: the same without fits, and is looked at too. (With as little of the
  // optimizer away as recomputation makes room for: that may be faster than keeping activations.)
  bool keeps_all(EngineOptions options) {
    if (!freedom_.recompute || !options.recompute.any()) return false;
    options.recompute = {};
    return fits(estimate(options));
  }

  void add(const EngineOptions& options) { candidates_.push_back({options, estimate(options)}); }

  static void set_ratio(EngineOptions& options, int step) {
    options.offload.optimizer_ratio = static_cast<double>(step) / kRatioSteps;
  }
  // All of the optimizer's state may be more than its tier has room for: the most that fits. False:
  // nothing does.
  bool take_what_the_tier_holds(EngineOptions& options) {
    if (fits(estimate(options))) return true;
    if (!freedom_.ratio || options.offload.optimizer == Tier::device) return false;
    for (int step = kRatioSteps - 1; step > 0; --step) {
      set_ratio(options, step);
      if (fits(estimate(options))) return true;
    }
    return false;
  }
  // The least of it away from the device.
  EngineOptions with_ratio(const EngineOptions& options) {
    if (!freedom_.ratio || options.offload.optimizer == Tier::device) return options;
    const int most = static_cast<int>(std::lround(options.offload.optimizer_ratio * kRatioSteps));
    return smallest_that_fits(options, 1, most, set_ratio);
  }

  // By bisection; `last` is known to fit.
  template <class Change>
  EngineOptions smallest_that_fits(EngineOptions options, int first, int last,
                                   const Change& change) {
    while (first < last) {
      const int middle = (first + last) / 2;
      change(options, middle);
      if (fits(estimate(options)))
        last = middle;
      else
        first = middle + 1;
    }
    change(options, last);
    return options;
  }

  // Of the fewest blocks.
  EngineOptions with_less_recomputed(const EngineOptions& options) {
    const Recompute policy = options.recompute;
    if (!freedom_.recompute || blocks() < 2 || fewer_blocks(policy, 1) == policy) return options;
    return smallest_that_fits(options, 1, blocks(), [&](EngineOptions& o, int count) {
      o.recompute = fewer_blocks(policy, count);
    });
  }
  // The same of so many blocks; of segments there are always all.
  Recompute fewer_blocks(const Recompute& policy, int count) const {
    if (!policy.any() || policy.every > 0) return policy;
    if (count >= blocks()) count = Recompute::kAll;
    if (policy.joined) return Recompute::blocks(count);
    return {policy.attention > 0 ? count : 0, policy.mlp > 0 ? count : 0};
  }

  // Of the best ones: larger messages, and less for the host's cores to step.
  void refine() {
    sort();
    for (size_t i = 0; i < std::min(candidates_.size(), wanted_); ++i) {
      send_more(i);
      share_steps(i);
    }
  }

  template <class Change>
  void try_change(size_t index, const Change& change) {
    EngineOptions changed = candidates_[index].options;
    change(changed);
    const Estimate& e = estimate(changed);
    // A gain within what a clock's rates are worth is none.
    if (fits(e) && e.seconds < 0.99 * candidates_[index].estimate.seconds)
      candidates_[index] = {changed, e};
  }

  void share_steps(size_t index) {
    if (!freedom_.host_step || candidates_[index].options.offload.optimizer != Tier::host) return;
    for (const double share : {0.9, 0.8, 0.7, 0.6, 0.4, 0.0})
      try_change(index, [&](EngineOptions& o) { o.offload.host_step_ratio = share; });
  }

  void send_more(size_t index) {
    const ZeroOptions& zero = candidates_[index].options.zero;
    if (context_.ranks > 1 && freedom_.reduce_bucket)
      for (const int64_t factor : {8, 64})
        try_change(index, [&](EngineOptions& o) {
          o.zero.reduce_bucket_elems = factor * options_.zero.reduce_bucket_elems;
        });
    if (freedom_.prefetch && zero.stage == 3 && zero.overlap && zero.prefetch_elems != 0)
      for (const int64_t units : {2, 4})
        try_change(index,
                   [&](EngineOptions& o) { o.zero.prefetch_elems = units * largest_block_unit(); });
  }

  int64_t largest_block_unit() const {
    int64_t most = 0;
    for (const UnitTraits& unit : unit_traits(model_of(spec_, options_), options_, context_.ranks))
      if (!unit.is_first && !unit.has_loss) most = std::max(most, unit.elems);
    return most;
  }

  void sort() {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return std::pair(a.estimate.seconds, a.estimate.device) <
                              std::pair(b.estimate.seconds, b.estimate.device);
                     });
    const auto same = [](const Candidate& a, const Candidate& b) {
      return key(a.options) == key(b.options);
    };
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same), candidates_.end());
  }

  // The best ones as they would run.
  void settle() {
    sort();
    for (const Candidate& candidate : candidates_) {
      if (result_.best.size() == wanted_) break;
      EngineOptions options = candidate.options;
      if (!freedom_.order && !context_.order_is_given)
        options.order = choose_order(spec_, options, context_.ranks, context_.hardware);
      ++result_.plans;
      const Estimate exact = plan_once(spec_, options, context_);
      if (fits(exact)) result_.best.push_back(layout(options, exact));
    }
    std::stable_sort(result_.best.begin(), result_.best.end(),
                     [](const Layout& a, const Layout& b) { return a.seconds < b.seconds; });
    if (result_.refused && !result_.best.empty() &&
        result_.refused->seconds >= result_.best[0].seconds)
      result_.refused.reset();
  }

  const ModelSpec& spec_;
  EngineOptions options_;
  const FitContext& context_;
  const Freedom freedom_;
  const TierLimits limits_;
  const size_t wanted_;
  std::map<std::string, Estimate> estimates_;
  std::vector<Candidate> candidates_;  // that fit
  SearchResult result_;
};

const char* device_key(Tier tier) {
  return tier == Tier::disk ? "nvme" : tier == Tier::host ? "cpu" : "none";
}

}  // namespace

double Layout::tokens_per_second(int ranks) const {
  return static_cast<double>(options.micro_batch * options.micros * options.sequence *
                             data_ranks(options, ranks)) /
         seconds;
}

SearchResult search_layouts(const ModelSpec& spec, const EngineOptions& options,
                            const FitContext& context, const Freedom& freedom,
                            const TierLimits& limits, size_t wanted) {
  if (options.pipeline.ranks > 1)
    user_error(
        "mesh.pipeline is {}: layouts of pipelines are not searched yet; leave out --fit, and "
        "set what is \"auto\" to a value",
        options.pipeline.ranks);
  return LayoutSearch(spec, options, context, freedom, limits, wanted).run();
}

std::vector<std::string> layout_changes(const EngineOptions& from, const EngineOptions& to) {
  std::vector<std::string> changes;
  const auto add = [&](bool differs, std::string text) {
    if (differs) changes.push_back(std::move(text));
  };
  const ZeroOptions &z0 = from.zero, &z = to.zero;
  const OffloadOptions &o0 = from.offload, &o = to.offload;
  add(z.stage != z0.stage, fmt::format("zero_optimization.stage {}", z.stage));
  add(o.optimizer != o0.optimizer,
      fmt::format("zero_optimization.offload_optimizer.device {}", device_key(o.optimizer)));
  add(o.optimizer_ratio != o0.optimizer_ratio,
      fmt::format("zero_optimization.offload_optimizer.ratio {:g}", o.optimizer_ratio));
  add(o.host_step_ratio != o0.host_step_ratio,
      fmt::format("run.host_step {:g}", o.host_step_ratio));
  add(o.parameters != o0.parameters,
      fmt::format("zero_optimization.offload_param.device {}", device_key(o.parameters)));
  add(z.overlap != z0.overlap, fmt::format("zero_optimization.overlap_comm {}", z.overlap));
  add(z.prefetch_elems != z0.prefetch_elems,
      fmt::format("zero_optimization.stage3_prefetch_bucket_size {}", z.prefetch_elems));
  add(z.reduce_bucket_elems != z0.reduce_bucket_elems,
      fmt::format("zero_optimization.reduce_bucket_size {}", z.reduce_bucket_elems));
  add(to.micro_batch != from.micro_batch,
      fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {}",
                  to.micro_batch, to.micros));
  add(to.recompute != from.recompute,
      fmt::format("run.recompute {}", recompute_value(to.recompute).dump()));
  return changes;
}

std::string step_time_text(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.1f}ms", 1e3 * seconds);
  return seconds < 10 ? fmt::format("{:.2f}s", seconds) : format_duration(seconds);
}

std::string why_first(const SearchResult& found) {
  if (found.best.empty()) return "";
  const Layout& first = found.best[0];
  std::string text;
  if (found.best.size() == 1) {
    text = "It is the only one that fits.";
  } else {
    const Layout& second = found.best[1];
    const double waits = second.waits - first.waits,
                 work = (second.seconds - second.waits) - (first.seconds - first.waits);
    const double gain = 100 * (second.seconds / first.seconds - 1);
    const std::string other = join(layout_changes(first.options, second.options), ", ");
    text = gain < 0.05 ? fmt::format("The first and the second ({}) take the same time.", other)
                       : fmt::format("The first is {:.1f} % faster than the second ({}): it {}.",
                                     gain, other, work >= waits ? "computes less" : "waits less");
  }
  if (found.refused)
    text += fmt::format(
        " A faster one does not fit: {}would take {} less and needs {}{}.",
        [&] {
          const auto changes = layout_changes(first.options, found.refused->options);
          return changes.empty() ? "" : join(changes, ", ") + " ";
        }(),
        step_time_text(first.seconds - found.refused->seconds),
        format_bytes(found.refused->device_bytes),
        found.refused->host_bytes + found.refused->disk_bytes > 0 ? " on the device" : "");
  return text;
}

}  // namespace onefold

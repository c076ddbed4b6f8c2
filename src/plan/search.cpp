#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "engine/lines.h"
#include "plan/estimate.h"
#include "plan/layout_choices.h"

namespace onefold {
namespace {

constexpr int kRatioSteps = 8;
constexpr size_t kMostCompared = 4;  // meshes
constexpr int kRefusedPlanned = 4;   // of layouts whose state alone is too large
constexpr size_t kMostPassedOver = 64;
constexpr double kFarFromRoom = 0.8;
// Plans, after the fastest layout, of other meshes to compare it with.
constexpr int kMostToCompare = 1000;
// Of a search's work: what cells may take until one has been found that fits, in all, and with
// refinements.
constexpr double kToFind = 0.5, kToLook = 0.8, kToRefine = 0.9;
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

void set_ratio(EngineOptions& options, int step) {
  options.offload.optimizer_ratio = static_cast<double>(step) / kRatioSteps;
}

class LayoutSearch {
 public:
  LayoutSearch(const ModelSpec& spec, const std::vector<EngineOptions>& meshes,
               const FitContext& context, const Freedom& freedom, const TierLimits& limits,
               size_t wanted, KnownSteps& known, int64_t work)
      : spec_(spec),
        meshes_(meshes),
        context_(context),
        freedom_(freedom),
        limits_(limits),
        wanted_(wanted),
        choices_(spec, context, freedom, limits),
        known_(known),
        begun_(known.all_work()),
        work_(work) {
    result_.of_meshes = meshes_.size() > 1;
    result_.meshes = result_.looked_at = meshes_.size();
    for (EngineOptions& mesh : meshes_) mesh.memory_limit_bytes = Ledger::kNoLimit;
  }

  SearchResult run() {
    const int known = known_.least_seconds.plans();
    may_find_ = begun_ + static_cast<int64_t>(kToFind * static_cast<double>(work_));
    const bool done = within(kToLook, [&] { look_at_cells(); });
    may_find_ = Ledger::kNoLimit;
    if (!done) {
      result_.stopped = true;
      count_meshes();
      if (candidates_.empty()) within(kToLook, [&] { look_for_any(); });
    }
    result_.stopped |= !within(kToRefine, [&] { refine(); });
    settle();
    if (result_.best.empty()) within(1, [&] { plan_the_least(); });
    result_.plans += known_.least_seconds.plans() - known;
    return std::move(result_);
  }

 private:
  // Layouts that differ in stage, order, homes and travel: these decide what fits, the rest how
  // long computation takes. At first also in what is recomputed, where that is free.
  struct Cell {
    double least_seconds;
    size_t number;  // in which order they were made
    size_t mesh;
    Passing passing;
    int64_t micro_batch;
    int policy;  // -1: any

    bool operator<(const Cell& other) const {  // the last one is looked at first
      return std::pair(least_seconds, number) > std::pair(other.least_seconds, other.number);
    }
  };
  struct Candidate {
    EngineOptions options;
    Estimate estimate;
  };
  // A part of the search may take a share of its work. What plans is many calls deep in it, and
  // throws where that share is spent: the part ends there, with what it has found so far.
  struct Spent {};

  // Whether the part came to its end by itself.
  template <class Call>
  bool within(double share, const Call& call) {
    allowed_ = begun_ + static_cast<int64_t>(share * static_cast<double>(work_));
    try {
      call();
    } catch (const Spent&) {
      return false;
    }
    return true;
  }
  bool is_at_end() const {
    return known_.all_work() >= (candidates_.empty() ? std::min(allowed_, may_find_) : allowed_);
  }
  // Something must be planned, to be told of.
  bool has_spent() const { return is_at_end() && result_.least.device_bytes > 0; }
  double least_seconds_of(const EngineOptions& options) {
    if (is_at_end()) throw Spent();
    return known_.least_seconds.of(options);
  }

  // Those of which nothing is left that might have been better.
  void count_meshes() {
    std::vector<bool> left(meshes_.size(), false);
    if (current_ < left.size()) left[current_] = true;
    for (size_t mesh = pushed_; mesh < left.size(); ++mesh) left[mesh] = true;
    for (; !cells_.empty() && cells_.top().least_seconds <= slowest_wanted(); cells_.pop())
      left[cells_.top().mesh] = true;
    result_.looked_at = static_cast<size_t>(std::count(left.begin(), left.end(), false));
  }

  bool fits(const Estimate& e) const {
    return e.device <= limits_.device && e.host <= limits_.host && e.disk <= limits_.disk;
  }
  bool is_possible(const EngineOptions& options) const {
    return obstacle_to_mesh(spec_, options).empty() &&
           obstacle_to_nodes(options, context_.ranks).empty() &&
           obstacle_to_compression(options, context_.ranks).empty();
  }

  const Estimate& estimate(const EngineOptions& options) {
    const auto [place, is_new] = known_.estimates.try_emplace(layout_key(options));
    if (is_new) {
      if (has_spent()) {
        known_.estimates.erase(place);
        throw Spent();
      }
      place->second = estimate_in_order(options);
    }
    consider_least(options, place->second);
    return place->second;
  }

  // In the order that settle_order() will take, as far as steps of few micro-batches tell.
  Estimate estimate_in_order(EngineOptions options) {
    const bool chosen = !freedom_.order && !context_.order_is_given;
    if (chosen) options.order = Order::micro_first;
    const Estimate first = counted(options);
    if (!chosen || !has_orders(options, context_.ranks)) return first;
    options.order = Order::unit_first;
    const Estimate other = counted(options);
    return other.device <= first.device ? other : first;
  }

  Estimate counted(const EngineOptions& options) {
    const Estimate found = estimated_step(spec_, options, context_, result_.plans);
    known_.work += found.work;
    return found;
  }

  void settle_order(EngineOptions& options) const {
    if (!freedom_.order && !context_.order_is_given)
      options.order = choose_order(spec_, options, context_.ranks, context_.hardware);
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

  // Cells.

  EngineOptions options_of(const Cell& cell) const {
    EngineOptions options = meshes_[cell.mesh];
    options.pipeline.schedule = cell.passing.schedule;
    options.pipeline.interleave = cell.passing.interleave;
    options.sequence_parallel = cell.passing.sequence_parallel;
    options.micros = static_cast<int>(options.micro_batch * options.micros / cell.micro_batch);
    options.micro_batch = cell.micro_batch;
    if (cell.policy >= 0) options.recompute = choices_.policies(options)[size_t(cell.policy)];
    return options;
  }

  void push(Cell cell) {
    EngineOptions options = options_of(cell);
    options.recompute =
        cell.policy < 0 && freedom_.recompute ? Recompute() : fewest_blocks(options.recompute);
    if (options.pipeline.ranks > 1) options.order = Order::micro_first;
    if (!obstacle_to_mesh(spec_, options).empty()) return;
    cell.least_seconds = least_seconds_of(options);
    cell.number = cells_.size() + looked_at_;
    cells_.push(cell);
  }

  // What a policy may become.
  Recompute fewest_blocks(const Recompute& policy) const {
    return freedom_.recompute ? choices_.fewer_blocks(policy, 1) : policy;
  }

  void look_at_cells() {
    for (size_t mesh = 0; mesh < meshes_.size(); pushed_ = ++mesh)
      for (const Passing& passing : choices_.passings(meshes_[mesh]))
        if (state_has_room(mesh, passing))
          for (const int64_t micro_batch : choices_.micro_batches(meshes_[mesh]))
            push({0, 0, mesh, passing, micro_batch, -1});
    while (!cells_.empty() && cells_.top().least_seconds <= slowest_wanted()) {
      const Cell cell = cells_.top();
      cells_.pop();
      ++looked_at_;
      current_ = cell.mesh;
      if (!may_have_room(cell) || !has_room(cell)) continue;
      if (cell.policy < 0) {
        const auto policies = static_cast<int>(choices_.policies(meshes_[cell.mesh]).size());
        for (int policy = 0; policy < policies; ++policy)
          push({0, 0, cell.mesh, cell.passing, cell.micro_batch, policy});
        continue;
      }
      EngineOptions options = options_of(cell);
      for (const int stage : choices_.stages(options)) {
        options.zero.stage = stage;
        for (const Order order : choices_.orders(options)) {
          options.order = order;
          look_at(cell, options);
        }
      }
    }
    current_ = meshes_.size();
  }

  // Of the device, in the order that takes less where it is not given.
  int64_t least_bytes(EngineOptions options) {
    const bool chosen = !freedom_.order && !context_.order_is_given;
    if (chosen) options.order = Order::micro_first;
    const int64_t first = known_.least_bytes.of(options);
    if (!chosen || !has_orders(options, context_.ranks)) return first;
    options.order = Order::unit_first;
    return std::min(first, known_.least_bytes.of(options));
  }
  bool may_fit(const EngineOptions& options) { return least_bytes(options) <= limits_.device; }

  // Whether with some policy and stage; what has none is remembered.
  bool may_have_room(const Cell& cell) {
    if (cell.policy >= 0) return true;  // look_at() asks
    EngineOptions options = choices_.far_from_device(options_of(cell)), least = options;
    int64_t bytes = Ledger::kNoLimit;
    for (const Recompute& policy : choices_.policies(options))
      for (const int stage : choices_.stages(options)) {
        options.recompute = policy;
        options.zero.stage = stage;
        for (const Order order : choices_.orders(options)) {
          options.order = order;
          if (const int64_t one = least_bytes(options); one < bytes) {
            bytes = one;
            least = options;
          }
          if (bytes <= limits_.device) return true;
        }
      }
    refuse(least);
    return false;
  }
  // What bounds leave out. A few are planned, to say of the fastest what it would need.
  void refuse(const EngineOptions& far) {
    passed_over_.push_back({least_bytes(far), far});
    EngineOptions one = far;
    one.zero.overlap = choices_.travels(far).back().overlap;
    one.zero.prefetch_elems = choices_.travels(far).back().prefetch_elems;
    if (refused_by_bound_ < kRefusedPlanned && is_possible(one)) {
      ++refused_by_bound_;
      estimate(one);
    }
  }

  // Where the work was not enough to find anything: what bounds leave much room to, the fastest
  // first, with micro-batches as small as they can be and whole blocks recomputed.
  void look_for_any() {
    constexpr double kMuchRoom = 0.6;
    std::vector<std::pair<double, EngineOptions>> likely;
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      const int64_t micro_batch = smallest_micro_batch(mesh);
      if (micro_batch == 0) continue;
      const Passing passing = choices_.passings(meshes_[mesh])[0];
      EngineOptions options =
          choices_.far_from_device(options_of({0, 0, mesh, passing, micro_batch, -1}));
      if (freedom_.recompute) options.recompute = true;
      options = with(options, choices_.homes(options).back(), choices_.travels(options).back());
      options.zero.stage = choices_.stages(options).back();
      if (is_possible(options) && static_cast<double>(least_bytes(options)) <=
                                      kMuchRoom * static_cast<double>(limits_.device))
        likely.emplace_back(known_.least_seconds.of(options), options);
    }
    std::stable_sort(likely.begin(), likely.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [seconds, options] : likely)
      if (fits(estimate(options))) return add(options);
  }

  // Of a mesh at a stage, wherever state lives.
  int64_t least_held(size_t mesh, const EngineOptions& options) {
    const auto [place, is_new] =
        held_.try_emplace({mesh, options.pipeline.interleave, options.zero.stage});
    if (is_new) {
      const EngineOptions far = choices_.far_from_device(options);
      place->second = known_.least_bytes.of_state(far);
      if (place->second > limits_.device) passed_over_.push_back({place->second, far});
    }
    return place->second;
  }
  bool state_has_room(size_t mesh, const Passing& passing) {
    const int64_t micro_batch = smallest_micro_batch(mesh);
    if (micro_batch == 0) return false;
    EngineOptions options = options_of({0, 0, mesh, passing, micro_batch, -1});
    if (!obstacle_to_mesh(spec_, options).empty()) return true;  // of larger ones, perhaps
    bool has = false;
    for (const int stage : choices_.stages(options)) {
      options.zero.stage = stage;
      has |= least_held(mesh, options) <= limits_.device;
    }
    return has;
  }
  int64_t smallest_micro_batch(size_t mesh) const {
    return choices_.smallest_micro_batch(meshes_[mesh]);
  }

  // Whether what takes the least of a mesh fits, or does not miss it by far (of tiny layers other
  // policies take less): the smallest micro-batch, with all recomputed, at any stage.
  bool has_room(Cell cell) {
    if (meshes_.size() == 1) return true;
    const Passing& passing = cell.passing;
    const auto [place, is_new] = rooms_.try_emplace(
        {cell.mesh, passing.schedule, passing.interleave, passing.sequence_parallel}, true);
    if (!is_new) return place->second;
    cell.micro_batch = smallest_micro_batch(cell.mesh);
    cell.policy = -1;
    EngineOptions options = choices_.far_from_device(options_of(cell));
    std::vector<Recompute> policies = choices_.policies(options);
    std::erase_if(policies,
                  [](const Recompute& policy) { return policy.every <= 1 && !policy.joined; });
    if (policies.empty() || !obstacle_to_mesh(spec_, options).empty()) return true;
    for (const Recompute& policy : policies)
      for (const int stage : choices_.stages(options)) {
        options.recompute = policy;
        options.zero.stage = stage;
        for (const Order order : choices_.orders(options)) {
          options.order = order;
          const Travel way = choices_.travels(options).back();
          options.zero.overlap = way.overlap;
          options.zero.prefetch_elems = way.prefetch_elems;
          if (!may_fit(options)) continue;
          if (!is_possible(options)) return true;
          if (kFarFromRoom * static_cast<double>(estimate(options).device) <=
              static_cast<double>(limits_.device))
            return true;
        }
      }
    return place->second = false;
  }

  // Where nothing fits: what takes the least is planned, though its state alone is too large.
  void plan_the_least() {
    std::stable_sort(passed_over_.begin(), passed_over_.end(),
                     [](const PassedOver& a, const PassedOver& b) { return a.bytes < b.bytes; });
    for (size_t i = 0; i < std::min(passed_over_.size(), kMostPassedOver); ++i) {
      if (result_.least.device_bytes > 0 && result_.least.device_bytes <= passed_over_[i].bytes)
        break;
      EngineOptions options = passed_over_[i].options;
      const Travel travel = choices_.travels(options).back();
      options.zero.overlap = travel.overlap;
      options.zero.prefetch_elems = travel.prefetch_elems;
      for (const Recompute& policy : choices_.policies(options)) {
        options.recompute = policy;
        const int64_t least = result_.least.device_bytes;
        if (is_possible(options) && (least == 0 || least_bytes(options) < least)) estimate(options);
      }
    }
  }

  void look_at(const Cell& cell, const EngineOptions& options) {
    const TooLarge one{cell.mesh,          cell.passing,  cell.policy,
                       options.zero.stage, options.order, cell.micro_batch};
    if (covered(too_large_, one)) return;
    if (const EngineOptions far = choices_.far_from_device(options); !may_fit(far)) {
      refuse(far);
      return;
    }
    if (can_fit(options)) {
      look_at_homes(cell, options);
      return;
    }
    too_large_.push_back(one);
    if (const int64_t least = smallest_micro_batch(cell.mesh); least < cell.micro_batch)
      look_for_room(one, cell, options, least);
  }

  // Where the smallest micro-batch is too large, there need be no search between the two.
  void look_for_room(TooLarge one, Cell cell, const EngineOptions& given, int64_t micro_batch) {
    cell.micro_batch = one.micro_batch = micro_batch;
    EngineOptions options = options_of(cell);
    options.zero.stage = given.zero.stage;
    options.order = given.order;
    if (!covered(too_large_, one) && obstacle_to_mesh(spec_, options).empty() && !can_fit(options))
      too_large_.push_back(one);
  }

  // What a layout must not be slower than, or need not be looked at. Among meshes that is the
  // fastest one, once there are some to compare it with.
  double slowest_wanted() const {
    if (meshes_.size() == 1) {
      if (candidates_.size() < wanted_) return kUnbounded;
      std::vector<double> seconds;
      for (const Candidate& candidate : candidates_) seconds.push_back(candidate.estimate.seconds);
      std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(wanted_) - 1,
                       seconds.end());
      return seconds[wanted_ - 1];
    }
    constexpr double kSlack = 1.25;  // within which another mesh is worth a comparison
    const double fastest = fastest_;
    std::vector<const EngineOptions*> meshes;
    for (const Candidate& one : candidates_) {
      const auto same = [&](const EngineOptions* other) { return same_mesh(*other, one.options); };
      if (std::none_of(meshes.begin(), meshes.end(), same)) meshes.push_back(&one.options);
    }
    const bool compares = meshes.size() < std::min(wanted_, kMostCompared) &&
                          result_.plans - plans_at_fastest_ < kMostToCompare;
    return compares ? kSlack * fastest : fastest;
  }

  // The device alone, with state as near as possible or as far as possible, and messages either
  // way: tiny units take more room on their way than they leave.
  bool can_fit(const EngineOptions& options) {
    const std::vector<Travel> ways = choices_.travels(options);
    const std::vector<HomePair> pairs = choices_.homes(options);
    for (const HomePair* pair : {&pairs.back(), &pairs.front()})
      for (const Travel* way : {&ways.back(), &ways.front()}) {
        const EngineOptions one = with(options, *pair, *way);
        if (is_possible(one) && may_fit(one) && estimate(one).device <= limits_.device) return true;
      }
    return false;
  }

  // For each way to travel, the nearest homes: what is farther takes longer.
  void look_at_homes(const Cell& cell, const EngineOptions& given) {
    for (const Travel& travel : choices_.travels(given)) {
      std::vector<HomePair> near;
      for (const HomePair& pair : choices_.homes(given)) {
        const bool farther = std::any_of(near.begin(), near.end(), [&](const HomePair& other) {
          return distance(other.optimizer) <= distance(pair.optimizer) &&
                 distance(other.parameters) <= distance(pair.parameters);
        });
        EngineOptions options = with(given, pair, travel);
        if (farther || !is_possible(options) || !take_what_the_tier_holds(options)) continue;
        near.push_back(pair);
        options = with_ratio(options);
        if (too_slow(cell, options) || keeps_all(options)) continue;
        add(with_less_recomputed(options));
      }
    }
  }

  // What recomputes in vain: the same without fits, and is looked at too. (With as little of the
  // optimizer away as recomputation makes room for: that may be faster than keeping activations.)
  bool keeps_all(EngineOptions options) {
    if (!freedom_.recompute || !options.recompute.any()) return false;
    options.recompute = {};
    return may_fit(options) && fits(estimate(options));
  }

  // Even with as little recomputed as the cell allows for.
  bool too_slow(const Cell& cell, const EngineOptions& options) {
    if (meshes_.size() == 1) return false;
    const double less = known_.least_seconds.of(options) - cell.least_seconds;
    return estimate(options).seconds - less > slowest_wanted();
  }

  void add(const EngineOptions& options) {
    candidates_.push_back({options, estimate(options)});
    if (candidates_.back().estimate.seconds >= fastest_) return;
    fastest_ = candidates_.back().estimate.seconds;
    plans_at_fastest_ = result_.plans;
  }

  // All of the optimizer's state may be more than its tier has room for: the most that fits. False:
  // nothing does.
  bool take_what_the_tier_holds(EngineOptions& options) {
    if (!may_fit(options)) return false;
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
    const int most = static_cast<int>(std::ceil(options.offload.optimizer_ratio * kRatioSteps));
    return smallest_that_fits(options, 1, most, set_ratio,
                              [](const EngineOptions&) { return true; });
  }

  // By bisection, as long as the smallest that there can be is worth it; `last` is known to fit.
  template <class Change, class Worth>
  EngineOptions smallest_that_fits(EngineOptions options, int first, int last, const Change& change,
                                   const Worth& is_worth) {
    while (first < last) {
      const int middle = (first + last) / 2;
      change(options, middle);
      if (may_fit(options) && fits(estimate(options)))
        last = middle;
      else
        first = middle + 1;
      change(options, first);
      if (!is_worth(options)) break;
    }
    change(options, last);
    return options;
  }

  // Of the fewest blocks.
  EngineOptions with_less_recomputed(const EngineOptions& options) {
    const Recompute policy = options.recompute;
    if (!freedom_.recompute || choices_.blocks() < 2 || choices_.fewer_blocks(policy, 1) == policy)
      return options;
    const double rest = estimate(options).seconds - known_.least_seconds.of(options);
    return smallest_that_fits(
        options, 1, choices_.blocks(),
        [&](EngineOptions& o, int count) { o.recompute = choices_.fewer_blocks(policy, count); },
        [&](const EngineOptions& o) {
          return meshes_.size() == 1 || rest + known_.least_seconds.of(o) <= slowest_wanted();
        });
  }

  void refine() {
    sort();
    for (size_t i = 0; i < std::min(candidates_.size(), wanted_); ++i)
      for (const auto& change : choices_.refinements(candidates_[i].options))
        try_change(candidates_[i], change);
  }

  void try_change(Candidate& candidate, const std::function<void(EngineOptions&)>& change) {
    EngineOptions changed = candidate.options;
    change(changed);
    if (!is_possible(changed)) return;
    const Estimate& e = estimate(changed);
    // A gain within what a clock's rates are worth is none.
    if (fits(e) && e.seconds < 0.99 * candidate.estimate.seconds) candidate = {changed, e};
  }

  // The fastest first; of meshes each once.
  void sort() {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return std::pair(a.estimate.seconds, a.estimate.device) <
                              std::pair(b.estimate.seconds, b.estimate.device);
                     });
    std::vector<Candidate> kept;
    for (Candidate& one : candidates_) {
      const auto stands_for = [&](const Candidate& other) {
        return meshes_.size() > 1 ? same_mesh(other.options, one.options)
                                  : layout_key(other.options) == layout_key(one.options);
      };
      if (std::none_of(kept.begin(), kept.end(), stands_for)) kept.push_back(std::move(one));
    }
    candidates_ = std::move(kept);
  }

  // The best ones as they would run.
  void settle() {
    sort();
    for (const Candidate& candidate : candidates_) {
      if (result_.best.size() == wanted_) break;
      if (!result_.best.empty() && known_.all_work() >= begun_ + work_) break;
      EngineOptions options = candidate.options;
      settle_order(options);
      ++result_.plans;
      const Estimate exact = planned_step(spec_, options, context_);
      known_.work += exact.work;
      if (fits(exact)) result_.best.push_back(layout(options, exact));
    }
    std::stable_sort(result_.best.begin(), result_.best.end(),
                     [](const Layout& a, const Layout& b) { return a.seconds < b.seconds; });
    if (result_.refused && !result_.best.empty() &&
        result_.refused->seconds >= result_.best[0].seconds)
      result_.refused.reset();
  }

  const ModelSpec& spec_;
  std::vector<EngineOptions> meshes_;
  const FitContext& context_;
  const Freedom freedom_;
  const TierLimits limits_;
  const size_t wanted_;
  const LayoutChoices choices_;
  KnownSteps& known_;
  // Work that known_ held before, what may be added to it, and where the present part of the search
  // must end.
  const int64_t begun_, work_;
  int64_t allowed_ = 0, may_find_ = Ledger::kNoLimit;
  size_t pushed_ = 0, current_ = std::numeric_limits<size_t>::max();  // meshes
  std::priority_queue<Cell> cells_;
  size_t looked_at_ = 0;
  std::vector<TooLarge> too_large_;
  std::map<std::tuple<size_t, PipelineSchedule, int, bool>, bool> rooms_;  // by mesh and Passing
  // By mesh, stages of a rank of a pipeline and ZeRO's stage.
  std::map<std::tuple<size_t, int, int>, int64_t> held_;
  struct PassedOver {
    int64_t bytes;  // of state
    EngineOptions options;
  };
  std::vector<PassedOver> passed_over_;  // whose state alone is too large
  int refused_by_bound_ = 0;
  double fastest_ = kUnbounded;  // of the candidates, and the plans made when it was found
  int plans_at_fastest_ = 0;
  std::vector<Candidate> candidates_;  // that fit
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const ModelSpec& spec, const EngineOptions& options,
                            const FitContext& context, const Freedom& freedom,
                            const TierLimits& limits, size_t wanted, KnownSteps* known,
                            int64_t work) {
  return search_meshes(spec, options_of_meshes(spec, options, context, freedom.mesh), context,
                       freedom, limits, wanted, known, work);
}

SearchResult search_meshes(const ModelSpec& spec, const std::vector<EngineOptions>& meshes,
                           const FitContext& context, const Freedom& freedom,
                           const TierLimits& limits, size_t wanted, KnownSteps* known,
                           int64_t work) {
  KnownSteps own(spec, context.hardware, context.ranks);
  return LayoutSearch(spec, meshes, context, freedom, limits, wanted, known ? *known : own, work)
      .run();
}

}  // namespace onefold

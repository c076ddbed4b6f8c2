#include "plan/fit.h"

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "engine/lines.h"
#include "model/spec_limits.h"
#include "plan/estimate.h"
#include "plan/search.h"

namespace onefold {
namespace {

constexpr size_t kMostRemedies = 6;
constexpr int kMostRanks = 1 << 16;
constexpr int64_t kAdviceWork = kSearchWork / 5;
// Of a step that advice is about: a plan for it takes a few hundredths of a second, and dozens are
// made.
constexpr int64_t kMostUnitsAdvised = int64_t{1} << 15;

// Micro-batches of the longest step that a search plans, but for the one it finds.
constexpr int64_t kMicrosPlanned = 8;

bool plannable(const ModelSpec& spec, int64_t micros) {
  return units_computed(spec, micros) <= kMostUnitsAdvised;
}

int64_t planned_peak(const ModelSpec& spec, EngineOptions options, const FitContext& context) {
  options.memory_limit_bytes = Ledger::kNoLimit;
  if (!context.order_is_given)
    options.order = choose_order(spec, options, context.ranks, context.hardware);
  return Engine::plan_worst(spec, options, context.ranks, context.comm_scratch_bytes,
                            context.hardware)
      ->ledger()
      .peak_bytes();
}

// A candidate that changes more than another one which fits already is not worth naming.
bool covers(const std::vector<std::string>& more, const std::vector<std::string>& fewer) {
  return std::all_of(fewer.begin(), fewer.end(), [&](const std::string& change) {
    return std::find(more.begin(), more.end(), change) != more.end();
  });
}

// The fewest ranks, in powers of two, at which the most saving of all ways fits; the global batch
// must still divide.
std::vector<Remedy> more_ranks(const ModelSpec& spec, const EngineOptions& options,
                               FitContext context, int64_t limit_bytes) {
  EngineOptions saving = options;
  saving.zero.stage = 3;
  saving.zero.prefetch_elems = 0;
  saving.recompute = true;
  const int64_t sequences =
      options.micro_batch * options.micros * data_ranks(options, context.ranks);
  saving.micro_batch = 1;
  while ((context.ranks *= 2) <= kMostRanks) {
    const int ranks = data_ranks(options, context.ranks);
    if (sequences % ranks != 0) break;
    if (!plannable(spec, sequences / ranks)) continue;
    saving.micros = static_cast<int>(sequences / ranks);
    const int64_t peak = planned_peak(spec, saving, context);
    if (peak <= limit_bytes)
      return {{fmt::format("--ranks {} with zero_optimization.stage 3 "
                           "(stage3_prefetch_bucket_size 0), train_micro_batch_size_per_gpu 1, "
                           "gradient_accumulation_steps {} and run.recompute true",
                           context.ranks, saving.micros),
               peak}};
  }
  return {};
}

}  // namespace

bool has_orders(const EngineOptions& options, int ranks) {
  return options.micros > 1 && ranks > 1 && options.zero.stage >= 2 &&
         options.pipeline.ranks == 1;  // else its schedule is the order
}

Order choose_order(const ModelSpec& spec, const EngineOptions& options, int ranks,
                   const Hardware& hardware) {
  if (!has_orders(options, ranks)) return Order::micro_first;
  const auto peak = [&](Order order) {
    EngineOptions tried = options;
    tried.order = order;
    tried.memory_limit_bytes = Ledger::kNoLimit;
    return Engine::plan(spec, tried, ranks, 0, hardware)->ledger().peak_bytes();
  };
  return peak(Order::unit_first) <= peak(Order::micro_first) ? Order::unit_first
                                                             : Order::micro_first;
}

namespace {

Freedom everything_but_meshes() {
  Freedom freedom = Freedom::all();
  freedom.mesh = {};
  freedom.reduce_bucket = freedom.order = freedom.schedule = freedom.interleave = false;
  freedom.sequence_parallel = freedom.overlap_chunks = false;
  return freedom;
}

// What advice may change, from little to everything: who gets it wants to change little. What
// comes before `here` is a part of that, and so finds nothing where `here` does not.
struct WaysOut {
  std::vector<Freedom> little;
  Freedom here, homes, all;
};

WaysOut ways_out(const EngineOptions& options) {
  const bool recompute = !options.recompute.any();
  const Freedom messages{.overlap = true, .prefetch = true};
  Freedom all = everything_but_meshes();
  all.recompute = recompute;
  Freedom here = all;
  here.optimizer_home = here.parameter_home = here.ratio = false;
  return {{messages,
           {.stage = true},
           {.batch = true},
           {.recompute = recompute},
           {.stage = true, .recompute = recompute},
           {.stage = true, .batch = true},
           {.recompute = recompute, .batch = true}},
          here,
          {.optimizer_home = true, .parameter_home = true, .ratio = true},
          all};
}

// No mesh has less than an even share of all state, each once, on each rank.
bool states_may_fit(const ModelSpec& spec, const EngineOptions& options, const FitContext& context,
                    const TierLimits& limits) {
  EngineOptions alone = options;
  alone.tensor = alone.context = alone.expert = alone.overlap_chunks = 1;
  alone.sequence_parallel = false;
  alone.pipeline = {};
  alone.offload = {};
  alone.zero.node_ranks = 1;
  return LeastBytes(spec, 1).of_state(alone) / context.ranks <= limits.device;
}

// The fastest layout of each way out that has one, those that change little first. Of another mesh
// too, where nothing fits on the device with this one.
std::vector<Layout> fitting_layouts(const ModelSpec& spec, const EngineOptions& options,
                                    const FitContext& context, const TierLimits& limits,
                                    std::string* stopped) {
  KnownSteps known(spec, context.hardware, context.ranks);
  // Half of the work is for other meshes.
  const auto best_within = [&](const Freedom& freedom, int64_t until) {
    const int64_t work = std::max<int64_t>(0, until - known.all_work());
    const SearchResult found =
        search_layouts(spec, options, context, freedom, limits, 1, &known, work);
    if (stopped && found.stopped) *stopped = stopped_text(found);
    return found.best;
  };
  const auto best = [&](const Freedom& freedom) { return best_within(freedom, kAdviceWork / 2); };
  const WaysOut ways = ways_out(options);
  std::vector<Layout> fitting;
  const auto take = [&](const std::vector<Layout>& found) {
    fitting.insert(fitting.end(), found.begin(), found.end());
    return !found.empty();
  };
  const std::vector<Layout> here = best(ways.here);
  if (!here.empty())
    for (const Freedom& freedom : ways.little) take(best(freedom));
  take(here);
  take(best(ways.homes));
  take(best(ways.all));
  const bool divisible = !options.compression.any() && !options.local.on() && !options.stale.on();
  if (here.empty() && context.ranks > 1 && divisible &&
      (fitting.empty() || states_may_fit(spec, options, context, limits))) {
    Freedom freedom = fitting.empty() ? ways.all : ways.here;
    freedom.mesh = FreeAxes::all();
    take(best_within(freedom, kAdviceWork));
  }
  return fitting;
}

}  // namespace

// Beside what there is anyway, a processor has a disk, and a card the host's memory.
std::vector<Remedy> remedies(const ModelSpec& spec, const EngineOptions& options,
                             const FitContext& context, int64_t limit_bytes, std::string* stopped) {
  TierLimits limits{.device = limit_bytes};
  const bool card = context.hardware.device != "cpu";
  if (card || options.offload.uses(Tier::host)) limits.host = Ledger::kNoLimit;
  if (!card) limits.disk = Ledger::kNoLimit;
  std::vector<Layout> fitting;
  if (plannable(spec, kMicrosPlanned))
    fitting = fitting_layouts(spec, options, context, limits, stopped);
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const Layout& a, const Layout& b) { return a.seconds < b.seconds; });
  std::vector<Remedy> found;
  std::vector<std::vector<std::string>> found_changes;
  for (const Layout& layout : fitting) {
    const std::vector<std::string> changes = layout_changes(options, layout.options);
    const bool known = std::any_of(found_changes.begin(), found_changes.end(),
                                   [&](const auto& fewer) { return covers(changes, fewer); });
    if (known || found.size() == kMostRemedies) continue;
    found.push_back({join(changes, ", "), layout.device_bytes});
    found_changes.push_back(changes);
  }
  return found.empty() ? more_ranks(spec, options, context, limit_bytes) : found;
}

void require_fits(const ModelSpec& spec, const EngineOptions& options, const FitContext& context) {
  if (options.memory_limit_bytes == Ledger::kNoLimit) return;
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  const auto plan = Engine::plan_worst(spec, unlimited, context.ranks, context.comm_scratch_bytes,
                                       context.hardware);
  const int64_t peak = plan->ledger().peak_bytes();
  if (peak <= options.memory_limit_bytes) return;
  std::string advice;
  std::string stopped;
  for (const Remedy& remedy :
       remedies(spec, options, context, options.memory_limit_bytes, &stopped))
    advice += fmt::format("\n    {}  ({})", remedy.change, format_bytes(remedy.peak_bytes));
  if (advice.empty())
    advice =
        "\n    nothing that keeps the result: raise run.memory, or take a smaller model or "
        "a shorter data.sequence_length";
  if (!stopped.empty()) advice += "\n    (" + stopped + ")";
  const bool card_is_full = options.memory_limit_bytes == context.hardware.available_bytes();
  user_error("this run needs {}{} and {} {}:\n{}  what would fit:{}", format_bytes(peak),
             context.ranks > 1 ? " on each rank" : "",
             card_is_full ? "the card has left" : "run.memory allows",
             format_bytes(options.memory_limit_bytes), plan->ledger().table(), advice);
}

void require_available(int64_t peak_bytes, int ranks, const char* key) {
  const int64_t needed = ranks * peak_bytes, available = available_memory_bytes();
  if (available > 0 && needed > available)
    user_error(
        "this run needs {} of memory and the machine has {} left; set {} to {} to be told what "
        "would fit",
        format_bytes(needed), format_bytes(available), key, format_bytes(available / ranks));
}

void require_host_memory(int64_t bytes) {
  const int64_t available = available_memory_bytes();
  if (available <= 0 || bytes <= available) return;
  user_error(
      "offloaded state takes {} of the host's memory, which has {} left: leave more on the card "
      "(zero_optimization.offload_optimizer.ratio), or use fewer bytes for each parameter "
      "(data_types)",
      format_bytes(bytes), format_bytes(available));
}

void require_disk(const std::string& folder, int64_t bytes) {
  std::filesystem::path there = std::filesystem::absolute(folder);
  std::error_code ignored;
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path())
    there = there.parent_path();
  int64_t left = 0;
  if (files().free_bytes(there.string(), left) || bytes <= left) return;
  user_error(
      "offloaded state takes {} in {}, where {} are free: free some, or name a folder on another "
      "disk (nvme_path)",
      format_bytes(bytes), folder, format_bytes(left));
}

}  // namespace onefold

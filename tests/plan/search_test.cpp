// The search for the fastest layout, against trying everything.
#include "plan/search.h"

#include "error_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "sanitized.h"

namespace onefold {
namespace {

ModelSpec small_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  spec.num_layers = 3;
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

// Slow enough in everything that every choice counts.
Hardware slow_machine() {
  Hardware hardware{.name = "slow"};
  hardware.product_gflops = 1;
  hardware.memory_gb_per_s = 0.5;
  hardware.link_gb_per_s = 0.05;
  hardware.host_gb_per_s = 0.1;
  hardware.disk_gb_per_s = 0.02;
  return hardware;
}

EngineOptions four_sequences() {
  EngineOptions options{.threads = 1, .micro_batch = 4, .sequence = 32, .micros = 1};
  options.zero.persistence_elems = 0;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = 0;
  return options;
}

FitContext on_ranks(int ranks) { return {.ranks = ranks, .hardware = slow_machine()}; }

// All but the size of buckets, and the mesh.
Freedom most() {
  Freedom freedom = Freedom::all();
  freedom.mesh = {};
  freedom.reduce_bucket = false;
  return freedom;
}

struct Tried {
  EngineOptions options;
  int64_t device, host, disk;
  double seconds;
};

Tried planned_as(const ModelSpec& spec, const EngineOptions& options, const FitContext& context) {
  const auto plan = Engine::plan(spec, options, context.ranks, 0, context.hardware);
  return {options, plan->ledger().peak_bytes(), plan->ledger().peak_bytes(Tier::host),
          plan->ledger().peak_bytes(Tier::disk), plan->device().now()};
}

// Every combination, with every number of blocks.
std::vector<Tried> try_everything(const ModelSpec& spec, const FitContext& context,
                                  const std::vector<Tier>& tiers) {
  std::vector<Recompute> policies = {
      {}, true, Recompute::in_segments(1), Recompute::in_segments(3)};
  for (int count = 1; count <= 3; ++count) {
    policies.emplace_back(count, 0);
    policies.emplace_back(0, count);
    policies.push_back(Recompute::blocks(count));
  }
  std::vector<Tried> all;
  EngineOptions options = four_sequences();
  const auto each = [](const auto& values, const auto& call) {
    for (const auto& value : values) call(value);
  };
  const bool ranks = context.ranks > 1;
  each(policies, [&](const Recompute& policy) {
    options.recompute = policy;
    each(std::vector{1, 2, 4}, [&](int micros) {
      options.micros = micros;
      options.micro_batch = 4 / micros;
      each(ranks ? std::vector{0, 1, 2, 3} : std::vector{0}, [&](int stage) {
        options.zero.stage = stage;
        each(ranks ? std::vector{true, false} : std::vector{true}, [&](bool overlap) {
          options.zero.overlap = overlap;
          // Which a configuration can say at stage 3 alone.
          const bool ahead = stage == 3 && overlap;
          each(ahead ? std::vector<int64_t>{-1, 0} : std::vector<int64_t>{-1},
               [&](int64_t prefetch) {
                 options.zero.prefetch_elems = prefetch;
                 each(std::vector{Order::micro_first, Order::unit_first}, [&](Order order) {
                   options.order = order;
                   each(tiers, [&](Tier optimizer) {
                     options.offload.optimizer = optimizer;
                     each(tiers, [&](Tier parameters) {
                       options.offload.parameters = parameters;
                       all.push_back(planned_as(spec, options, context));
                     });
                   });
                 });
               });
        });
      });
    });
  });
  return all;
}

void expect_as_good_as_trying(const FitContext& context, const std::vector<Tier>& tiers) {
  const ModelSpec spec = small_model();
  const std::vector<Tried> all = try_everything(spec, context, tiers);
  std::vector<int64_t> peaks;
  for (const Tried& one : all) peaks.push_back(one.device);
  std::sort(peaks.begin(), peaks.end());
  for (const double share : {0.0, 0.05, 0.2, 0.5, 1.0}) {
    TierLimits limits{.device = peaks[static_cast<size_t>(share * double(peaks.size() - 1))]};
    if (tiers.size() > 1) limits.disk = Ledger::kNoLimit;
    SCOPED_TRACE(limits.device);
    const Tried* best = nullptr;
    for (const Tried& one : all)
      if (one.device <= limits.device && (!best || one.seconds < best->seconds)) best = &one;
    const SearchResult found = search_layouts(spec, four_sequences(), context, most(), limits, 12);
    ASSERT_FALSE(found.best.empty());
    EXPECT_LE(found.best[0].seconds, best->seconds * 1.0001)
        << order_name(best->options.order) << " "
        << join(layout_changes(found.best[0].options, best->options), ", ");
    EXPECT_LT(found.plans, 600);
    for (const Layout& layout : found.best) {
      EXPECT_LE(layout.device_bytes, limits.device);
      const Tried as_run = planned_as(spec, layout.options, context);
      EXPECT_EQ(layout.device_bytes, as_run.device);
      EXPECT_EQ(layout.seconds, as_run.seconds);
    }
  }
}

TEST(LayoutSearch, FindsOnTwoRanksWhatTryingEverythingFinds) {
  if (test::kSanitized) GTEST_SKIP() << "other tiers walk the same code";
  expect_as_good_as_trying(on_ranks(2), {Tier::device});
}

TEST(LayoutSearch, FindsOnOtherTiersWhatTryingEverythingFinds) {
  expect_as_good_as_trying(on_ranks(1), {Tier::device, Tier::disk});
}

TEST(LayoutSearch, ChangesWhatIsFreeAlone) {
  const ModelSpec spec = small_model();
  const EngineOptions given = four_sequences();
  const Freedom stage{.stage = true};
  for (const Layout& layout :
       search_layouts(spec, given, on_ranks(2), stage, {.host = Ledger::kNoLimit}).best) {
    EngineOptions changed = layout.options;
    changed.zero.stage = given.zero.stage;
    changed.order = given.order;
    EXPECT_EQ(layout_changes(given, changed), std::vector<std::string>{});
  }
  for (const Layout& layout : search_layouts(spec, given, on_ranks(2), most(), {}).best)
    EXPECT_EQ(layout.options.micro_batch * layout.options.micros, 4);
}

TEST(LayoutSearch, WithRoomForAllNothingIsMovedNorComputedTwice) {
  const SearchResult found = search_layouts(small_model(), four_sequences(), on_ranks(1), most(),
                                            {.host = Ledger::kNoLimit, .disk = Ledger::kNoLimit});
  ASSERT_FALSE(found.best.empty());
  const EngineOptions& best = found.best[0].options;
  EXPECT_FALSE(best.offload.any());
  EXPECT_FALSE(best.recompute.any());
  EXPECT_EQ(best.micros, 1);
  EXPECT_FALSE(found.refused);
}

TEST(LayoutSearch, KeepsEachTiersLimit) {
  const ModelSpec spec = small_model();
  const FitContext context = on_ranks(1);
  EngineOptions offloaded = four_sequences();
  offloaded.offload.optimizer = offloaded.offload.parameters = Tier::host;
  offloaded.recompute = true;
  offloaded.micro_batch = 1;
  offloaded.micros = 4;
  const Tried least = planned_as(spec, offloaded, context);
  offloaded.offload.optimizer = offloaded.offload.parameters = Tier::disk;
  const Tried far = planned_as(spec, offloaded, context);  // which the device steps
  // Half of what would go to the host's memory has room there.
  const TierLimits limits{
      .device = far.device + far.device / 4, .host = least.host / 2, .disk = Ledger::kNoLimit};
  const SearchResult found = search_layouts(spec, four_sequences(), context, most(), limits);
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) {
    EXPECT_LE(layout.device_bytes, limits.device);
    EXPECT_LE(layout.host_bytes, limits.host);
  }
  const SearchResult nothing =
      search_layouts(spec, four_sequences(), context, most(), {.device = 1000});
  EXPECT_TRUE(nothing.best.empty());
  EXPECT_GT(nothing.least.device_bytes, 1000);
  EXPECT_EQ(why_first(nothing), "");
}

TEST(LayoutSearch, LeavesOnTheDeviceWhatHasRoomThere) {
  const ModelSpec spec = small_model();
  const Freedom homes{.optimizer_home = true, .ratio = true};
  const FitContext context = on_ranks(1);
  EngineOptions whole = four_sequences(), away = whole;
  away.offload.optimizer = Tier::host;
  const int64_t most_bytes = planned_as(spec, whole, context).device,
                least_bytes = planned_as(spec, away, context).device;
  ASSERT_LT(least_bytes, most_bytes);
  const SearchResult found =
      search_layouts(spec, whole, context, homes,
                     {.device = (most_bytes + least_bytes) / 2, .host = Ledger::kNoLimit});
  ASSERT_FALSE(found.best.empty());
  EXPECT_EQ(found.best[0].options.offload.optimizer, Tier::host);
  EXPECT_LT(found.best[0].options.offload.optimizer_ratio, 1);
  ASSERT_TRUE(found.refused);  // all on the device
  EXPECT_LT(found.refused->seconds, found.best[0].seconds);
}

// The host's cores and the card each step a share, where that is faster.
TEST(LayoutSearch, SharesStepsOutBetweenHostAndCard) {
  EngineOptions options{.device = "cuda:0", .micro_batch = 4, .sequence = 2048, .micros = 1};
  options.precision = {.compute = DType::bf16, .gradients = DType::bf16};
  options.recompute = true;
  options.offload.optimizer = Tier::host;
  const FitContext context{.order_is_given = true, .hardware = hardware_named("h200")};
  const TierLimits limits{.host = Ledger::kNoLimit};
  const ModelSpec spec = spec_from_preset("llama-3.2-3b", "test");
  const SearchResult fixed = search_layouts(spec, options, context, {}, limits, 1);
  const SearchResult shared =
      search_layouts(spec, options, context, {.host_step = true}, limits, 1);
  ASSERT_FALSE(fixed.best.empty() || shared.best.empty());
  EXPECT_EQ(fixed.best[0].options.offload.host_step_ratio, 1);
  EXPECT_LT(shared.best[0].options.offload.host_step_ratio, 1);
  EXPECT_LT(shared.best[0].seconds, 0.99 * fixed.best[0].seconds);
  EXPECT_EQ(layout_changes(options, shared.best[0].options).size(), 1u);
}

// What recomputation frees on the device holds state that would otherwise be fetched from the host.
TEST(LayoutSearch, RecomputesWhereThatBringsTheOptimizerNearer) {
  const ModelSpec spec = spec_from_preset("llama-3.2-1b", "test");
  const FitContext context{.order_is_given = true, .hardware = hardware_named("h200")};
  EngineOptions options{.device = "cuda",
                        .micro_batch = 8,
                        .sequence = 2048,
                        .micros = 1,
                        .precision = {.compute = DType::bf16}};
  EngineOptions by_hand = options;
  by_hand.offload.optimizer = Tier::host;
  by_hand.offload.optimizer_ratio = 0.375;
  by_hand.recompute = true;
  const TierLimits limits{.device = int64_t{20} << 30, .host = int64_t{100} << 30};
  const Tried hand = planned_as(spec, by_hand, context);
  ASSERT_LE(hand.device, limits.device);
  Freedom freedom;
  freedom.optimizer_home = freedom.ratio = freedom.recompute = true;
  const SearchResult found = search_layouts(spec, options, context, freedom, limits, 3);
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(found.best[0].options.recompute.any());
  EXPECT_LT(found.best[0].options.offload.optimizer_ratio, by_hand.offload.optimizer_ratio + 1e-9);
  EXPECT_LE(planned_as(spec, found.best[0].options, context).seconds, hand.seconds);
}

// Neither the device nor the host holds all of the optimizer's state.
TEST(LayoutSearch, SharesStateOutWhereNoTierHoldsIt) {
  const ModelSpec spec = small_model();
  EngineOptions options = four_sequences();
  const FitContext context{.order_is_given = true};
  const Tried here = planned_as(spec, options, context);
  options.offload.optimizer = Tier::host;
  const auto away = Engine::plan(spec, options, 1, 0, context.hardware);
  const int64_t on_host = away->ledger().peak_bytes(Tier::host);
  Freedom freedom;
  freedom.optimizer_home = freedom.ratio = true;
  const TierLimits limits{.device = here.device - on_host / 4, .host = on_host * 3 / 4};
  const SearchResult found = search_layouts(spec, four_sequences(), context, freedom, limits, 3);
  ASSERT_FALSE(found.best.empty());
  const double ratio = found.best[0].options.offload.optimizer_ratio;
  EXPECT_GT(ratio, 0);
  EXPECT_LT(ratio, 1);
}

// Lanes of their own hold more at a time.
TEST(LayoutSearch, GivesUpOverlapWhereThatAloneFits) {
  const ModelSpec spec = small_model();
  EngineOptions options = four_sequences();
  options.zero.stage = 3;
  FitContext context{.ranks = 2, .order_is_given = true, .hardware = slow_machine()};
  context.hardware.cores = 16;  // one of which copies
  const auto peak = [&](bool overlap) {
    EngineOptions one = options;
    one.zero.overlap = overlap;
    return planned_as(spec, one, context).device;
  };
  ASSERT_LT(peak(false), peak(true));
  const SearchResult found =
      search_layouts(spec, options, context, {.overlap = true}, {.device = peak(false)});
  ASSERT_EQ(found.best.size(), 1u);
  EXPECT_FALSE(found.best[0].options.zero.overlap);
  EXPECT_NE(why_first(found).find("only one that fits"), std::string::npos) << why_first(found);
  EXPECT_NE(why_first(found).find("zero_optimization.overlap_comm true"), std::string::npos);
}

TEST(LayoutSearch, SaysWhyTheFirstIsFirst) {
  const ModelSpec spec = small_model();
  const int64_t whole = planned_as(spec, four_sequences(), on_ranks(1)).device;
  const SearchResult found = search_layouts(spec, four_sequences(), on_ranks(1),
                                            {.recompute = true}, {.device = whole - 1});
  ASSERT_GE(found.best.size(), 2u);
  const std::string why = why_first(found);
  EXPECT_NE(why.find("run.recompute"), std::string::npos) << why;
  EXPECT_NE(why.find("computes less"), std::string::npos) << why;
}

TEST(Remedies, NameOverlapWhereThatWouldDo) {
  const ModelSpec spec = small_model();
  EngineOptions options = four_sequences();
  options.zero.stage = 3;
  options.zero.prefetch_elems = 0;
  options.micro_batch = 1;
  options.recompute = true;
  const FitContext context{.ranks = 2, .order_is_given = true, .hardware = slow_machine()};
  EngineOptions quiet = options;
  quiet.zero.overlap = false;
  const int64_t limit = planned_as(spec, quiet, context).device;
  ASSERT_LT(limit, planned_as(spec, options, context).device);
  bool named = false;
  for (const Remedy& remedy : remedies(spec, options, context, limit)) {
    EXPECT_LE(remedy.peak_bytes, limit);
    named |= remedy.change == "zero_optimization.overlap_comm false";
  }
  EXPECT_TRUE(named);
}

TEST(HostMemory, ThatIsNotThereIsNamedWithWhatHelps) {
  require_host_memory(1);
  EXPECT_ERROR(require_host_memory(int64_t{1} << 60), "of the host's memory", "ratio");
}

}  // namespace
}  // namespace onefold

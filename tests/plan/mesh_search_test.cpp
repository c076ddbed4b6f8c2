// The search for the fastest mesh, against trying every one.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "engine/lines.h"
#include "plan/estimate.h"
#include "plan/pipeline_plan.h"
#include "plan/search.h"
#include "sanitized.h"

namespace onefold {
namespace {

ModelSpec model_of_four_layers(const char* preset = "llama-tiny") {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.num_layers = 4;
  spec.num_heads = spec.num_kv_heads = 4;
  spec.hidden_size = 64;
  spec.head_dim = 16;
  spec.tie_embeddings = false;
  spec.vocab_size = 96;
  return spec;
}

// Slow enough in everything that every choice counts; two ranks share a host.
Hardware slow_hosts() {
  Hardware hardware{.name = "slow"};
  hardware.product_gflops = 1;
  hardware.memory_gb_per_s = 0.5;
  hardware.link_gb_per_s = 0.2;
  hardware.host_ranks = 2;
  hardware.between_hosts_gb_per_s = 0.05;
  return hardware;
}

EngineOptions eight_sequences(int ranks, int64_t sequence) {
  EngineOptions options{.threads = 1, .micro_batch = 8 / ranks, .sequence = sequence, .micros = 1};
  options.zero.persistence_elems = 0;
  return options;
}

Freedom of_meshes() {
  return {
      .stage = true, .batch = true, .mesh = FreeAxes::all(), .schedule = true, .interleave = true};
}

struct TriedMesh {
  EngineOptions options;
  Estimate estimate;
};

// Every mesh of so many ranks that the model goes with, with every schedule, micro-batch and stage.
std::vector<TriedMesh> try_every_mesh(const ModelSpec& spec, const EngineOptions& given,
                                      const FitContext& context) {
  std::vector<TriedMesh> all;
  const auto each = [](const auto& values, const auto& call) {
    for (const auto& value : values) call(value);
  };
  const std::vector<int> sizes = {1, 2, 4};
  EngineOptions o = given;
  const auto plan = [&] {
    const int ranks = o.tensor * o.pipeline.ranks * o.context * o.expert;
    if (context.ranks % ranks != 0 || o.tensor > context.hardware.host_ranks) return;
    const int64_t sequences = 8 / data_ranks(o, context.ranks);
    each(std::vector<int64_t>{1, 2, 4, 8}, [&](int64_t micro_batch) {
      if (sequences % micro_batch != 0) return;
      o.micro_batch = micro_batch;
      o.micros = static_cast<int>(sequences / micro_batch);
      o.context_method = divides_heads(spec, o) ? ContextMethod::ulysses : ContextMethod::ring;
      if (!obstacle_to_mesh(spec, o).empty()) return;
      each(std::vector{0, 1, 2, 3}, [&](int stage) {
        o.zero.stage = stage;
        all.push_back({o, planned_step(spec, o, context)});
      });
    });
  };
  each(sizes, [&](int tensor) {
    o.tensor = tensor;
    each(sizes, [&](int context_ranks) {
      o.context = context_ranks;
      if (o.context > 1 && o.sequence / o.context < 256) return;
      each(spec.experts.enabled() ? sizes : std::vector{1}, [&](int expert) {
        o.expert = expert;
        each(sizes, [&](int stages) {
          o.pipeline.ranks = stages;
          each(std::vector{1, 2}, [&](int interleave) {
            if (interleave > 1 && interleave * stages > 4) return;
            o.pipeline.interleave = interleave;
            if (stages == 1 && interleave > 1) return;
            each(kPipelineSchedules, [&](PipelineSchedule schedule) {
              o.pipeline.schedule = schedule;
              if (stages == 1 && schedule != PipelineSchedule::one_f_one_b) return;
              plan();
            });
          });
        });
      });
    });
  });
  return all;
}

void expect_as_good_as_every_mesh(const ModelSpec& spec, int64_t sequence) {
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  const EngineOptions given = eight_sequences(4, sequence);
  const std::vector<TriedMesh> all = try_every_mesh(spec, given, context);
  std::vector<int64_t> peaks;
  LeastSeconds least(spec, context.hardware);
  LeastBytes least_bytes(spec, context.ranks);
  for (const TriedMesh& one : all) {
    EXPECT_LE(least_bytes.of(one.options), one.estimate.device)
        << join(layout_changes(given, one.options), ", ");
    peaks.push_back(one.estimate.device);
    EXPECT_LE(least.of(one.options), 1.0001 * one.estimate.seconds)
        << join(layout_changes(given, one.options), ", ");
  }
  std::sort(peaks.begin(), peaks.end());
  for (const double share : {0.0, 0.1, 0.5, 1.0}) {
    // What is extrapolated from fewer micro-batches may be some blocks more than it is.
    constexpr int64_t kBlocks = 1024;
    const auto which = static_cast<size_t>(share * static_cast<double>(peaks.size() - 1));
    const TierLimits limits{.device = peaks[which] + kBlocks};
    const TriedMesh* best = nullptr;
    for (const TriedMesh& one : all)
      if (one.estimate.device <= limits.device &&
          (!best || one.estimate.seconds < best->estimate.seconds))
        best = &one;
    const SearchResult found = search_layouts(spec, given, context, of_meshes(), limits);
    ASSERT_FALSE(found.best.empty());
    EXPECT_LE(found.best[0].seconds, 1.0001 * best->estimate.seconds)
        << join(layout_changes(found.best[0].options, best->options), ", ");
    for (const Layout& layout : found.best) {
      EXPECT_LE(layout.device_bytes, limits.device);
      const Estimate as_run = planned_step(spec, layout.options, context);
      EXPECT_EQ(layout.device_bytes, as_run.device);
      EXPECT_EQ(layout.seconds, as_run.seconds);
      EXPECT_LE(layout.options.tensor, 2);  // within a host
      EXPECT_EQ(layout.options.micro_batch * layout.options.micros *
                    data_ranks(layout.options, context.ranks),
                8);
    }
  }
}

TEST(MeshSearch, FindsOfADenseModelWhatTryingEverythingFinds) {
  if (test::kSanitized) GTEST_SKIP() << "the other model walks the same code";
  expect_as_good_as_every_mesh(model_of_four_layers(), 512);
}

TEST(MeshSearch, FindsOfAMixtureWhatTryingEverythingFinds) {
  ModelSpec spec = model_of_four_layers("mixtral-tiny");
  spec.experts.count = 4;
  expect_as_good_as_every_mesh(spec, 32);
}

// What travels beside computation may take no time: the bound must not count it.
TEST(MeshSearch, BoundsHoldWhereExchangesTravelBesideComputation) {
  Hardware card = slow_hosts();
  card.device = "cuda";
  const auto expect_below = [&](const ModelSpec& spec, EngineOptions options, int ranks) {
    for (const double link : {0.01, 0.2}) {
      card.link_gb_per_s = link;
      card.between_hosts_gb_per_s = link;
      const FitContext context{.ranks = ranks, .order_is_given = true, .hardware = card};
      for (const int stage : {0, 3})
        for (const int64_t micros : {1, 4}) {
          options.zero.stage = stage;
          options.micros = static_cast<int>(micros);
          const Estimate step = planned_step(spec, options, context);
          const double least = LeastSeconds(spec, card).of(options);
          EXPECT_LE(least, 1.0001 * step.seconds) << link << " GB/s, stage " << stage;
        }
    }
  };
  const ModelSpec dense = model_of_four_layers();
  EngineOptions options = eight_sequences(8, 1024);
  options.context = 4;
  options.context_method = ContextMethod::ring;
  expect_below(dense, options, 4);
  options.context_method = ContextMethod::ulysses;
  expect_below(dense, options, 4);
  options.context = 1;
  options.tensor = 4;
  options.overlap_chunks = 4;
  expect_below(dense, options, 4);
  ModelSpec mixture = model_of_four_layers("mixtral-tiny");
  mixture.experts.count = 4;
  options = eight_sequences(8, 256);
  options.expert = 4;
  expect_below(mixture, options, 4);
}

TEST(MeshSearch, KeepsTheAxesThatAreGiven) {
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  EngineOptions given = eight_sequences(2, 32);
  given.tensor = 2;
  Freedom freedom = of_meshes();
  freedom.mesh.tensor = false;
  const SearchResult found = search_layouts(model_of_four_layers(), given, context, freedom, {});
  ASSERT_GE(found.best.size(), 2u);
  for (const Layout& layout : found.best) EXPECT_EQ(layout.options.tensor, 2);
  EXPECT_FALSE(same_mesh(found.best[0].options, found.best[1].options));
  EXPECT_NE(why_first(found).find("mesh.pipeline"), std::string::npos) << why_first(found);
}

// Of a mesh with a pipeline that is given: every stage keeps the limit.
TEST(MeshSearch, LayoutsOfAPipelineAreThoseOfItsFullestRank) {
  const ModelSpec spec = model_of_four_layers();
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  EngineOptions given = eight_sequences(2, 32);
  given.pipeline.ranks = 2;
  Freedom freedom = of_meshes();
  freedom.mesh = {};
  freedom.recompute = true;
  const auto peak = [&](const EngineOptions& options) {
    return Engine::plan_worst(spec, options, 4, 0, context.hardware)->ledger().peak_bytes();
  };
  const TierLimits limits{.device = peak(given) * 3 / 4};
  const SearchResult found = search_layouts(spec, given, context, freedom, limits);
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) {
    EXPECT_EQ(layout.options.pipeline.ranks, 2);
    EXPECT_EQ(layout.device_bytes, peak(layout.options));
    EXPECT_LE(layout.device_bytes, limits.device);
  }
}

// What ranks exchange where a unit begins and ends belongs to the unit's action.
TEST(MeshSearch, APipelineOfDividedSequencesTakesItsTime) {
  const ModelSpec spec = model_of_four_layers();
  const Hardware hardware = slow_hosts();
  EngineOptions options = eight_sequences(1, 32);
  options.micro_batch = 2;
  options.micros = 4;
  options.tensor = options.pipeline.ranks = 2;
  const double whole = plan_pipeline(spec, options, 4, 0, hardware).times.seconds;
  options.sequence_parallel = true;
  const double divided = plan_pipeline(spec, options, 4, 0, hardware).times.seconds;
  EXPECT_GT(divided, 0.5 * whole);
  EXPECT_LE(LeastSeconds(spec, hardware).of(options), divided);
}

// What holds too much by its state alone is not planned, but for what takes the least.
TEST(MeshSearch, StatesThatHaveNoRoomAreNotPlanned) {
  const ModelSpec spec = model_of_four_layers();
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  const EngineOptions given = eight_sequences(4, 32);
  Freedom freedom = Freedom::all();
  freedom.optimizer_home = freedom.parameter_home = false;
  const SearchResult all = search_layouts(spec, given, context, freedom, {});
  const SearchResult nothing = search_layouts(spec, given, context, freedom, {.device = 1000});
  EXPECT_TRUE(nothing.best.empty());
  EXPECT_LT(nothing.plans, all.plans / 4);
  ASSERT_FALSE(all.best.empty());
  EXPECT_LT(nothing.least.device_bytes, all.best[0].device_bytes);
  EXPECT_GE(nothing.least.device_bytes, LeastBytes(spec, context.ranks).of(nothing.least.options));
}

// By work and not by time: twice the same, and said. What it has found is planned as it would run.
TEST(MeshSearch, StopsAfterItsWorkAndSaysSo) {
  const ModelSpec spec = model_of_four_layers();
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  const EngineOptions given = eight_sequences(4, 32);
  const auto search = [&](int64_t work) {
    return search_layouts(spec, given, context, Freedom::all(), {}, 6, nullptr, work);
  };
  const SearchResult whole = search(kSearchWork);
  EXPECT_FALSE(whole.stopped);
  EXPECT_EQ(whole.looked_at, whole.meshes);
  EXPECT_EQ(stopped_text(whole), "");
  const SearchResult some = search(5000), again = search(5000);
  EXPECT_TRUE(some.stopped);
  EXPECT_LT(some.looked_at, some.meshes);
  EXPECT_LT(some.plans, whole.plans);
  EXPECT_EQ(stopped_text(some), fmt::format("the search has stopped after the work that it may do: "
                                            "it has looked at {} of {} meshes; give an axis to "
                                            "search it whole",
                                            some.looked_at, some.meshes));
  const Json json = search_json(some, context.ranks), all = search_json(whole, context.ranks);
  EXPECT_EQ(json["stopped"], true);
  EXPECT_EQ(json["meshes"], some.meshes);
  EXPECT_EQ(json["meshes_looked_at"], some.looked_at);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["layouts"].size(), some.best.size());
  EXPECT_EQ(all["stopped"], false);
  EXPECT_EQ(all["meshes_looked_at"], all["meshes"]);
  ASSERT_FALSE(some.best.empty());
  EXPECT_EQ(some.best[0].seconds, again.best.at(0).seconds);
  EXPECT_EQ(some.best[0].seconds, planned_step(spec, some.best[0].options, context).seconds);
  EXPECT_GE(some.best[0].seconds, whole.best.at(0).seconds);
}

// What a rank holds at least is less than what it takes, whatever states are kept as.
TEST(MeshSearch, StatesHeldAreLessThanStepsTake) {
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  const auto expect_less = [&](const ModelSpec& spec, EngineOptions options) {
    for (const int stage : {0, 1, 2, 3})
      for (const int stages : {1, 2})
        for (const Tier home : {Tier::device, Tier::host}) {
          options.zero.stage = stage;
          options.pipeline.ranks = stages;
          options.offload.optimizer = home;
          options.micro_batch = 2 * stages;
          const int64_t held = LeastBytes(spec, context.ranks).of_state(options);
          EXPECT_GT(held, 0);
          EXPECT_LE(held, planned_step(spec, options, context).device)
              << "stage " << stage << ", pipeline " << stages;
        }
  };
  EngineOptions options = eight_sequences(4, 32);
  const ModelSpec dense = model_of_four_layers();
  expect_less(dense, options);
  options.precision.compute = DType::bf16;
  expect_less(dense, options);
  options.precision.moments = DType::u8;
  expect_less(dense, options);
  options.precision.gradients = DType::bf16;
  expect_less(dense, options);
  ModelSpec adapted = dense;
  adapted.lora = {.rank = 4, .targets = {"all-linear"}};
  expect_less(adapted, options);
  ModelSpec mixture = model_of_four_layers("mixtral-tiny");
  mixture.experts.count = 4;
  options.expert = 2;
  expect_less(mixture, options);
}

// Rings that were asked for stay, and pipelines do not follow from an order that was not given.
TEST(MeshSearch, MeshesOfOptionsKeepWhatIsNoAffairOfTheirs) {
  const ModelSpec spec = model_of_four_layers();
  FitContext context{.ranks = 4, .hardware = slow_hosts()};
  EngineOptions given = eight_sequences(2, 1024);
  given.context = 2;
  given.context_method = ContextMethod::ring;
  given.micros = 2;
  given.order = Order::unit_first;
  bool of_pipelines = false;
  for (const EngineOptions& one : options_of_meshes(spec, given, context, FreeAxes::all())) {
    if (one.context > 1) {
      EXPECT_EQ(one.context_method, ContextMethod::ring);
    }
    of_pipelines |= one.pipeline.ranks > 1;
  }
  EXPECT_TRUE(of_pipelines);
  context.order_is_given = true;
  for (const EngineOptions& one : options_of_meshes(spec, given, context, FreeAxes::all()))
    EXPECT_EQ(one.pipeline.ranks, 1);
}

// Two ways to attend take different times: none stands for the other.
TEST(MeshSearch, KnownStepsTellHowSequencesAreDivided) {
  const ModelSpec spec = model_of_four_layers();
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  EngineOptions given = eight_sequences(2, 1024);
  given.context = 2;
  KnownSteps known(spec, context.hardware, context.ranks);
  for (const ContextMethod method : {ContextMethod::ulysses, ContextMethod::ring}) {
    given.context_method = method;
    const auto best = [&](KnownSteps* shared) {
      return search_layouts(spec, given, context, {.stage = true}, {}, 1, shared).best.at(0);
    };
    EXPECT_EQ(best(&known).options.zero.stage, best(nullptr).options.zero.stage);
    const Estimate own = planned_step(spec, given, context);
    bool found = false;
    for (const auto& [key, estimate] : known.estimates) found |= estimate.seconds == own.seconds;
    EXPECT_TRUE(found);
  }
}

// Those of compressed gradients that do not go with it are passed over; what computes alone to be
// timed sends nothing.
TEST(MeshSearch, OfCompressedGradientsIsOfMeshesThatGoWithThem) {
  const FitContext context{.ranks = 8, .order_is_given = true, .hardware = slow_hosts()};
  const auto expect_possible = [&](const ModelSpec& spec, const EngineOptions& options) {
    const SearchResult found = search_layouts(spec, options, context, of_meshes(), {});
    ASSERT_FALSE(found.best.empty());
    EXPECT_GT(found.meshes, 3u);
    for (const Layout& layout : found.best)
      EXPECT_EQ(obstacle_to_compression(layout.options, context.ranks), "");
  };
  EngineOptions hosts = eight_sequences(8, 32);
  hosts.compression.gradients = {.type = WireFormat::Type::int8};
  hosts.compression.host_ranks = 4;
  expect_possible(model_of_four_layers(), hosts);
  EngineOptions momentum = eight_sequences(8, 32);
  momentum.compression.gradients = {.type = WireFormat::Type::sign};
  momentum.compression.whole_steps = 1;
  momentum.compression.corrects_momentum = true;
  momentum.compression.correction = {.momentum = 0.9f, .share = 0.1f, .masks = false};
  ModelSpec mixture = model_of_four_layers("mixtral-tiny");
  mixture.experts.count = 8;
  expect_possible(mixture, momentum);
}

TEST(Remedies, NameAMeshWhereNothingElseWouldDo) {
  const ModelSpec spec = model_of_four_layers();
  const FitContext context{.ranks = 4, .order_is_given = true, .hardware = slow_hosts()};
  EngineOptions given = eight_sequences(4, 32);
  const auto least = [&](const FreeAxes& axes) {
    Freedom freedom = Freedom::all();
    freedom.mesh = axes;
    freedom.sequence_parallel = false;
    return search_layouts(spec, given, context, freedom, {.device = 1, .disk = Ledger::kNoLimit})
        .least.device_bytes;
  };
  const int64_t here = least({}), elsewhere = least(FreeAxes::all());
  ASSERT_LT(elsewhere, here);
  const int64_t limit = (here + elsewhere) / 2;
  const std::vector<Remedy> ways = remedies(spec, given, context, limit);
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_LE(ways[0].peak_bytes, limit);
  EXPECT_NE(ways[0].change.find("mesh."), std::string::npos) << ways[0].change;
}

}  // namespace
}  // namespace onefold

// State on other tiers: whatever lives where, the bits are those of a run that has everything on
// the device, and what each tier holds is what the plan says. ONEFOLD_TEST_DEVICE=cuda:0 runs them
// on a card.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/broken_files.h"
#include "data/scratch.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::Weights;

ModelSpec offload_model(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

struct TierLayout {
  const char* name;
  Tier parameters, optimizer;
  double ratio = 1;
  int64_t host_elems = 0;
  double host_step = 1;
  Tier activations = Tier::device;
};
constexpr TierLayout kTierLayouts[] = {
    {"optimizer on the host", Tier::device, Tier::host},
    {"optimizer on the disk", Tier::device, Tier::disk},
    {"parameters on the host", Tier::host, Tier::device},
    {"parameters on the disk", Tier::disk, Tier::device},
    {"all on the disk", Tier::disk, Tier::disk},
    {"parameters on the disk, optimizer on the host", Tier::disk, Tier::host},
    {"parts of it", Tier::disk, Tier::disk, 0.5, 10000},
    {"all on the host", Tier::host, Tier::host},
    {"all on the host, stepped by the device", Tier::host, Tier::host, 1, 0, 0},
    {"optimizer on the host, half of it stepped there", Tier::device, Tier::host, 1, 0, 0.5},
    {"kept activations on the host", Tier::device, Tier::device, 1, 0, 1, Tier::host},
    {"everything on the host", Tier::host, Tier::host, 1, 0, 1, Tier::host},
    {"kept activations on the disk", Tier::device, Tier::device, 1, 0, 1, Tier::disk},
    {"everything on the disk", Tier::disk, Tier::disk, 1, 0, 1, Tier::disk},
};

EngineOptions offload_options(int stage, int micros = 1) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .micros = micros,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = 5000;
  return options;
}

void place(const TierLayout& layout, const std::string& folder, EngineOptions& options) {
  options.offload = {.parameters = layout.parameters,
                     .optimizer = layout.optimizer,
                     .optimizer_ratio = layout.ratio,
                     .host_parameter_elems = layout.host_elems,
                     .activations = layout.activations,
                     .host_step_ratio = layout.host_step,
                     .folder = folder};
}

struct TierRun {
  Weights weights;
  std::vector<double> losses, norms;
  std::array<int64_t, kTiers> peaks{};  // of rank 0
  double evaluated = 0;
};

TierRun train_tiers(const ModelSpec& spec, const EngineOptions& options, int ranks, int steps = 3) {
  TierRun run;
  test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < steps; ++step) {
      const StepResult result = test::train_step(engine);
      if (rank > 0) continue;
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradient_norm);
    }
    if (rank == 0)
      for (size_t tier = 0; tier < kTiers; ++tier)
        run.peaks[tier] = engine.ledger().peak_bytes(static_cast<Tier>(tier));
    test::OwnedBatch batch = test::random_rows(rank, options, spec.vocab_size);
    const double loss = engine.evaluate(batch.view()).first;
    const Weights weights = test::weights_of(engine);
    if (rank > 0) return;
    run.evaluated = loss;
    run.weights = weights;
  });
  return run;
}

void expect_same_run(const TierRun& run, const TierRun& reference) {
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  EXPECT_EQ(run.evaluated, reference.evaluated);
  expect_same_bits(run.weights, reference.weights);
}

void expect_tiers_planned(const ModelSpec& spec, const EngineOptions& options, int ranks,
                          const TierRun& run) {
  const auto plan = Engine::plan(spec, options, ranks, 0, test::test_hardware());
  for (size_t tier = 0; tier < kTiers; ++tier)
    EXPECT_EQ(plan->ledger().peak_bytes(static_cast<Tier>(tier)), run.peaks[tier])
        << tier_name(static_cast<Tier>(tier));
}

class OffloadBits : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(OffloadBits, EveryLayoutAtEveryStageGivesTheSameBitsAsPlanned) {
  const ModelSpec spec = offload_model(std::get<0>(GetParam()));
  const int ranks = std::get<1>(GetParam());
  if (ranks > 2 && !std::getenv("ONEFOLD_SLOW_TESTS")) GTEST_SKIP() << "ctest -L slow runs it";
  const ScratchFolder scratch;
  const std::string folder = scratch.path("state");
  test::Combinations combinations;
  for (const int micros : {1, 3}) {
    const TierRun reference = train_tiers(spec, offload_options(0, micros), ranks);
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks == 1 && stage > 0) continue;  // the same program
      for (const TierLayout& layout : kTierLayouts) {
        // Between stages 0 and 3 the layouts with one tier are enough.
        if (stage > 0 && stage < 3 && layout.parameters != layout.optimizer) continue;
        for (const Order order : {Order::micro_first, Order::unit_first}) {
          if (micros == 1 && order == Order::unit_first) continue;
          if (!combinations.take()) continue;
          SCOPED_TRACE(fmt::format("stage {}, {}, {} micro-batches {}", stage, layout.name, micros,
                                   order_name(order)));
          EngineOptions options = offload_options(stage, micros);
          options.order = order;
          options.zero.overlap = stage != 2;
          place(layout, folder, options);
          const TierRun run = train_tiers(spec, options, ranks);
          expect_same_run(run, reference);
          expect_tiers_planned(spec, options, ranks, run);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, OffloadBits,
                         testing::Combine(testing::Values("gpt2-tiny", "llama-tiny"),
                                          testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(std::get<1>(info.param));
                         });

// Number types, moments, recomputation, frozen units and phases, each with everything on the disk,
// and with the optimizer's states on the host, which steps them (all, or some of them).
TEST(Offload, EveryKindOfRunGivesTheSameBits) {
  const ModelSpec spec = offload_model("gpt2-tiny");
  const ScratchFolder scratch;
  const std::string folder = scratch.path("state");
  test::Combinations combinations;
  const auto check = [&](const char* what, const std::function<void(EngineOptions&)>& change) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", what, ranks));
      EngineOptions plain = offload_options(ranks == 1 ? 0 : 3);
      change(plain);
      const TierRun reference = train_tiers(spec, plain, ranks);
      for (const size_t layout : {4, 0, 7, 9, 10, 11}) {
        if (!combinations.take()) continue;
        SCOPED_TRACE(kTierLayouts[layout].name);
        EngineOptions offloaded = plain;
        place(kTierLayouts[layout], folder, offloaded);
        const TierRun run = train_tiers(spec, offloaded, ranks);
        expect_same_run(run, reference);
        expect_tiers_planned(spec, offloaded, ranks, run);
      }
    }
  };
  check("bf16 with a master", [](EngineOptions& o) {
    o.precision = {.compute = DType::bf16, .gradients = DType::f32, .master = true};
  });
  check("bf16 without a master", [](EngineOptions& o) {
    o.precision = {
        .compute = DType::bf16, .gradients = DType::bf16, .master = false, .moments = DType::bf16};
  });
  check("moments of 8 bits", [](EngineOptions& o) { o.precision.moments = DType::u8; });
  check("recomputation", [](EngineOptions& o) { o.recompute = Recompute(true); });
  check("segments", [](EngineOptions& o) { o.recompute = Recompute::in_segments(2); });
  check("several micro-batches, unit by unit", [](EngineOptions& o) {
    o.micros = 3;
    o.order = Order::unit_first;
    o.recompute = Recompute(true);
  });
  check("frozen units", [](EngineOptions& o) { o.frozen = {"embedding", "block.0"}; });
  check("phases", [](EngineOptions& o) { o.split_phases = true; });
}

// A step that changes nothing leaves the parameters on the device as they are, the first one too.
TEST(Offload, ASkippedStepOfTheHostChangesNothing) {
  const ModelSpec spec = offload_model("gpt2-tiny");
  EngineOptions options = offload_options(0);
  options.precision = {.compute = DType::f16};
  options.loss_scale = {.fixed = 0, .initial_power = 24, .hysteresis = 1};
  options.skip_overflow = true;
  for (const int steps : {1, 14}) {  // one that is skipped; others too
    EngineOptions offloaded = options;
    place(kTierLayouts[0], "", offloaded);
    const TierRun reference = train_tiers(spec, options, 1, steps);
    const TierRun run = train_tiers(spec, offloaded, 1, steps);
    EXPECT_EQ(run.evaluated, reference.evaluated);
    expect_same_bits(run.weights, reference.weights);
    EXPECT_EQ(std::isfinite(run.norms.back()), steps > 1);
  }
}

TEST(Offload, WhatTheHostStepsDoesNotTravel) {
  EngineOptions options = offload_options(0);
  options.precision = {.compute = DType::bf16};
  const auto brought = [&](double share) {
    place({"", Tier::device, Tier::host, 1, 0, share}, "", options);
    const auto plan =
        Engine::plan(offload_model("gpt2-tiny"), options, 1, 0, test::test_hardware());
    return plan->copies(Lane::fetch).bytes;
  };
  EXPECT_LT(brought(1), brought(0.5));
  EXPECT_LT(brought(0.5), brought(0));
}

TEST(Offload, TheDeviceHoldsAFewUnitsAndTheDiskTheRest) {
  ModelSpec spec = offload_model("gpt2-tiny");
  spec.num_layers = 24;
  EngineOptions options = offload_options(0);
  options.device = "cpu";  // a workspace of a card would be most of so small a model
  options.recompute = Recompute(true);
  const auto device = [&](Tier tier) {
    place({"", tier, tier}, "unused: plans touch no disk", options);
    return Engine::plan(spec, options, 1, 0, test::this_processor())->ledger().peak_bytes();
  };
  const int64_t all = device(Tier::device), little = device(Tier::disk);
  EXPECT_LT(little, all / 4);
  const auto plan = Engine::plan(spec, options, 1, 0, test::this_processor());
  EXPECT_GE(plan->ledger().peak_bytes(Tier::disk), 16 * spec.parameter_count());
}

TEST(Offload, KeptActivationsLeaveTheDevice) {
  ModelSpec spec = offload_model("gpt2-tiny");
  spec.num_layers = 24;
  EngineOptions options = offload_options(0);
  options.micro_batch = 4;
  for (const Recompute& recompute : {Recompute(), Recompute(true)}) {
    options.recompute = recompute;
    const auto planned = [&](Tier activations, Tier tier) {
      options.offload.activations = activations;
      options.offload.folder = "unused: plans touch no disk";
      const auto plan = Engine::plan(spec, options, 1, 0, test::test_hardware());
      return std::pair(plan->ledger().peak_bytes(Kind::activations),
                       plan->ledger().peak_bytes(tier));
    };
    for (const Tier tier : {Tier::host, Tier::disk}) {
      const auto [all, none] = planned(Tier::device, tier);
      const auto [few, away] = planned(tier, tier);
      EXPECT_EQ(none, 0);
      EXPECT_LT(few, all / 2);
      EXPECT_GT(away, all / 2);
    }
  }
}

TEST(Offload, StateIsInItsPlaceAfterAStepAndTheDeviceHoldsNone) {
  const ModelSpec spec = offload_model("gpt2-tiny");
  const ScratchFolder scratch;
  const std::string folder = scratch.path("state");
  EngineOptions options = offload_options(0);
  place(kTierLayouts[4], folder, options);
  Engine engine(spec, options);
  test::train_step(engine);
  for (const Kind kind : {Kind::parameters, Kind::gradients, Kind::optimizer}) {
    EXPECT_EQ(engine.ledger().held_bytes(kind), 0) << kind_name(kind);
    EXPECT_GT(engine.ledger().held_bytes(kind, Tier::disk), 0) << kind_name(kind);
  }
  EXPECT_GT(engine.copies(Lane::fetch).bytes, 0);
  EXPECT_GT(engine.copies(Lane::spill).bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the file has no name";
}

// Every fault ends the step with its reason, or changes nothing.
class OffloadFaults : public testing::TestWithParam<int> {};

TEST_P(OffloadFaults, EndCleanlyOrChangeNothing) {
  using test::Call;
  if (GetParam() >= 4 && !std::getenv("ONEFOLD_SLOW_TESTS"))
    GTEST_SKIP() << "ctest -L slow runs it";
  const ModelSpec spec = offload_model("gpt2-tiny");
  const ScratchFolder scratch;
  const std::string folder = scratch.path("state");
  EngineOptions options = offload_options(0);
  place(kTierLayouts[4], folder, options);
  const TierRun reference = train_tiers(spec, offload_options(0), 1, 2);
  const int seed = GetParam();
  test::Combinations combinations;
  for (int fault = 0; fault < 25; ++fault) {
    if (!combinations.take()) continue;
    const int skip = (seed * 25 + fault) * 7 % 400;
    SCOPED_TRACE(fmt::format("fault {}, after {} calls", fault, skip));
    test::BrokenFiles files;
    const char* reason = "";
    switch (fault % 5) {
      case 0:
        files.fail(Call::write_scratch, std::errc::io_error, "", skip, 1);
        reason = "Input/output error";
        break;
      case 1:
        files.fail(Call::read_scratch, std::errc::io_error, "", skip, 1);
        reason = "Input/output error";
        break;
      case 2:
        files.fail(Call::write_scratch, std::errc::no_space_on_device, "", skip);
        reason = "No space left on device";
        break;
      case 3:
        files.cut_writes(static_cast<size_t>(4096 + 1000 * fault));
        break;
      case 4:
        files.delay(Call::read_scratch, std::chrono::microseconds(100));
        break;
    }
    try {
      expect_same_run(train_tiers(spec, options, 1, 2), reference);
      EXPECT_EQ(files.failed(), 0);
    } catch (const UserError& error) {
      EXPECT_GT(files.failed(), 0);
      for (const std::string& part : {folder, std::string(reason), std::string("offloaded")})
        EXPECT_TRUE(contains(error.what(), part)) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, OffloadFaults, testing::Range(0, 20));

TEST(Offload, ADiskWithoutRoomOrFolderIsNamed) {
  const ModelSpec spec = offload_model("gpt2-tiny");
  const ScratchFolder scratch;
  const std::string folder = scratch.path("state");
  EngineOptions options = offload_options(0);
  place(kTierLayouts[4], folder, options);
  {
    test::BrokenFiles files;
    files.fail(test::Call::reserve, std::errc::no_space_on_device);
    EXPECT_ERROR(Engine(spec, options), "no room", folder, "nvme_path");
  }
  place(kTierLayouts[4], "/proc/none", options);
  EXPECT_ERROR(Engine(spec, options), "/proc/none");
}

}  // namespace
}  // namespace onefold

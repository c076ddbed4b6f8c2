// Training whose gradients, or weights, travel in wire formats: the same bits at every stage and in
// every bucket, as planned, at the volume of the formulas; and what it learns.
// ONEFOLD_TEST_DEVICE=cuda:0 runs it on a card.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/compressions.h"
#include "engine/ranks.h"
#include "error_text.h"
#include "model/zoo.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::NamedCompression;
using test::RankRun;
using test::train_on_ranks;
using test::Weights;
using Type = WireFormat::Type;

ModelSpec packed_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions packed_options(const CompressionOptions& compression, int stage, int micros = 1) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .micros = micros,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.compression = compression;
  return options;
}

// Those whose packets the tested device makes.
std::vector<NamedCompression> all_compressions() {
  std::vector<NamedCompression> all = test::all_compressions();
  if (test::test_device_name() != "cpu")
    std::erase_if(all, [](const NamedCompression& one) {
      return !obstacle_to_packing_on_cards(one.options.gradients).empty();
    });
  return all;
}

// Traffic beyond the scratch and states of a plan is in the test of volumes.
void expect_planned_packed(const EngineOptions& options, int ranks, const RankRun& run) {
  test::expect_planned(packed_model(), options, ranks, run, test::test_hardware());
}

class Compression : public testing::TestWithParam<NamedCompression> {};

TEST_P(Compression, HasTheSameBitsAtEveryStageAndInEveryBucketAsPlanned) {
  constexpr int kRanks = 3, kSteps = 3;
  const RankRun reference =
      train_on_ranks(packed_model(), packed_options(GetParam().options, 0), kRanks, kSteps);
  struct Travel {
    int64_t bucket;
    bool overlap;
  };
  for (const int stage : {0, 1, 2, 3})
    for (const Travel& travel : {Travel{0, true}, Travel{5000, false}, Travel{1 << 30, true}}) {
      SCOPED_TRACE(fmt::format("stage {}, buckets of {}", stage, travel.bucket));
      EngineOptions options = packed_options(GetParam().options, stage);
      options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = travel.bucket;
      options.zero.overlap = travel.overlap;
      const RankRun run = train_on_ranks(packed_model(), options, kRanks, kSteps);
      EXPECT_EQ(run.losses, reference.losses);
      EXPECT_EQ(run.norms, reference.norms);
      expect_same_bits(run.weights, reference.weights);
      expect_planned_packed(options, kRanks, run);
    }
}

TEST_P(Compression, ChangesResultsAndAccumulatesInOneOrder) {
  const RankRun packed =
      train_on_ranks(packed_model(), packed_options(GetParam().options, 2, 3), 2, 2);
  EngineOptions unit_first = packed_options(GetParam().options, 2, 3);
  unit_first.order = Order::unit_first;
  expect_same_bits(train_on_ranks(packed_model(), unit_first, 2, 2).weights, packed.weights);
  const RankRun whole = train_on_ranks(packed_model(), packed_options({}, 2, 3), 2, 2);
  EXPECT_NE(packed.weights, whole.weights);
}

INSTANTIATE_TEST_SUITE_P(Formats, Compression, testing::ValuesIn(all_compressions()),
                         [](const auto& info) { return std::string(info.param.name); });

// A packet of everything loses nothing: the bits are those of no compression.
TEST(CompressionOfEverything, HasTheBitsOfNone) {
  CompressionOptions all;
  all.gradients = {.type = Type::topk, .density = 1};
  for (const int stage : {0, 3})
    expect_same_bits(train_on_ranks(packed_model(), packed_options(all, stage), 3, 3).weights,
                     train_on_ranks(packed_model(), packed_options({}, stage), 3, 3).weights);
}

TEST(CompressionWarmup, SendsWholeGradientsFirst) {
  CompressionOptions late;
  late.gradients = {.type = Type::sign};
  late.whole_steps = 2;
  const RankRun whole = train_on_ranks(packed_model(), packed_options({}, 1), 2, 4);
  const RankRun warm = train_on_ranks(packed_model(), packed_options(late, 1), 2, 4);
  // The losses of three steps are of weights that two steps have changed.
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(warm.losses[i], whole.losses[i]) << i;
  EXPECT_NE(warm.losses[3], whole.losses[3]);
}

TEST(CompressionWarmup, LowersTheDensityByFours) {
  CompressionOptions warm;
  warm.gradients = {.type = Type::topk, .density = 0.001};
  warm.whole_steps = 10;
  warm.density_steps = 40;
  EXPECT_TRUE(warm.gradients_after(9).none());
  const double expected[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.001};
  for (int stage = 0; stage < 5; ++stage) {
    EXPECT_EQ(warm.gradients_after(10 + 10 * stage).density, expected[stage]);
    EXPECT_EQ(warm.gradients_after(19 + 10 * stage).density, expected[stage]);
  }
}

int64_t reduce_lane_bytes(const RankRun& run) {
  int64_t bytes = 0;
  for (const Traffic& traffic : run.traffic[static_cast<size_t>(Lane::reduce)])
    bytes += traffic.bytes_sent;
  return bytes;
}

// By a formula that knows nothing of packets: int8 is a byte for each element and two for each
// block of 256 of each shard.
TEST(CompressionVolume, IsThatOfTheFormula) {
  constexpr int kRanks = 3, kSteps = 2;
  CompressionOptions int8;
  int8.gradients = {.type = Type::int8};
  for (const int stage : {0, 2}) {
    int64_t expected = 0;
    for (const auto& unit : Model(packed_model()).units) {
      const int64_t shard = SlabLayout(unit->params(), kRanks).shard_elems();
      const int64_t packet = (shard + 2 * ((shard + 255) / 256) + 3) / 4 * 4;
      // Everyone's packets of everything are less than packets and sums where 3 < 1 + 4.
      expected += packet * (kRanks - 1) * (stage == 0 ? kRanks : 1) * kSteps;
    }
    const RankRun run = train_on_ranks(packed_model(), packed_options(int8, stage), kRanks, kSteps);
    EXPECT_EQ(reduce_lane_bytes(run), expected) << "stage " << stage;
    const auto plan = Engine::plan(packed_model(), packed_options(int8, stage), kRanks);
    int64_t planned = 0;
    for (const Traffic& traffic : plan->traffic(Lane::reduce)) planned += traffic.bytes_sent;
    EXPECT_EQ(planned * kSteps, expected);
  }
}

// As many elements in all as with one density, more where gradients are larger, within bounds.
TEST(CompressionDensities, FollowTheNormsOfGradients) {
  const std::vector<int64_t> elems = {1000, 1000, 5000, 40, 3000};
  const std::vector<double> squares = {1.0, 16.0, 5.0, 1e9, 0.0};
  const std::vector<double> found = CompressionOptions::densities(0.02, squares, elems);
  double sum = 0, even = 0;
  for (size_t u = 0; u < elems.size(); ++u) {
    EXPECT_LE(found[u], 0.08);
    EXPECT_GE(found[u], 0.02 / 4 - 1.0 / static_cast<double>(elems[u]));
    sum += static_cast<double>(sent_elems(found[u], elems[u]));
    even += static_cast<double>(sent_elems(0.02, elems[u]));
  }
  EXPECT_LE(sum, even);
  EXPECT_GE(sum, 0.9 * even);
  EXPECT_EQ(found[3], 0.075);  // 3 of 40: the most
  EXPECT_NEAR(found[4], 0.005, 1e-3);
  EXPECT_GT(found[1], 1.5 * found[0]);
  EXPECT_NEAR(found[0], found[2], 2e-3);  // of one mean square
  EXPECT_EQ(CompressionOptions::densities(0.02, std::vector<double>(5), elems),
            std::vector<double>(5, 0.02));
}

// Where packets are long, sums of them travel at stage 0, and where they are short all packets do,
// for which there must be room at every density between.
TEST(CompressionDensities, HaveRoomForPacketsOfEveryLength) {
  for (const int ranks : {3, 4, 6})
    for (const double density : {0.02, 0.05, 0.1, 0.2})
      for (const bool adaptive : {true, false}) {
        CompressionOptions topk;
        topk.gradients = {.type = Type::topk, .density = density};
        topk.adaptive = adaptive;
        topk.density_steps = adaptive ? 0 : 4;
        const EngineOptions options = packed_options(topk, 0);
        const RankRun run = train_on_ranks(packed_model(), options, ranks, 5);
        expect_planned_packed(options, ranks, run);
      }
}

TEST(CompressionDensities, SendNoMoreThanOneDensityAndChangeResults) {
  CompressionOptions even;
  even.gradients = {.type = Type::topk, .density = 0.02};
  CompressionOptions adaptive = even;
  adaptive.adaptive = true;
  const RankRun a = train_on_ranks(packed_model(), packed_options(adaptive, 2), 3, 4),
                e = train_on_ranks(packed_model(), packed_options(even, 2), 3, 4);
  EXPECT_LE(reduce_lane_bytes(a), reduce_lane_bytes(e));
  EXPECT_GE(reduce_lane_bytes(a), reduce_lane_bytes(e) * 9 / 10);
  EXPECT_EQ(a.losses[1], e.losses[1]);  // of one step: nothing was known before it
  EXPECT_NE(a.losses[3], e.losses[3]);
}

std::vector<NamedCompression> between_hosts() {
  std::vector<NamedCompression> all;
  for (NamedCompression one : all_compressions()) {
    if (one.options.correction.limit > 0) one.options.correction.limit = 0;
    one.options.host_ranks = 2;
    all.push_back(one);
  }
  return all;
}

class CompressionBetweenHosts : public testing::TestWithParam<NamedCompression> {};

TEST_P(CompressionBetweenHosts, HasTheSameBitsAtEveryStageAndInEveryBucketAsPlanned) {
  constexpr int kRanks = 4, kSteps = 2;
  const RankRun reference =
      train_on_ranks(packed_model(), packed_options(GetParam().options, 0), kRanks, kSteps);
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    EngineOptions options = packed_options(GetParam().options, stage);
    options.zero.reduce_bucket_elems = stage == 1 ? 0 : 1 << 30;
    options.zero.overlap = stage != 0;
    const RankRun run = train_on_ranks(packed_model(), options, kRanks, kSteps);
    EXPECT_EQ(run.losses, reference.losses);
    expect_same_bits(run.weights, reference.weights);
    expect_planned_packed(options, kRanks, run);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CompressionBetweenHosts, testing::ValuesIn(between_hosts()),
                         [](const auto& info) { return std::string(info.param.name); });

// A packet of everything loses nothing: only the order of sums is another than without hosts.
TEST(BetweenHosts, OfEverythingIsASumOfSums) {
  CompressionOptions all;
  all.gradients = {.type = Type::topk, .density = 1};
  all.host_ranks = 3;
  const RankRun hosts = train_on_ranks(packed_model(), packed_options(all, 2), 6, 3);
  const RankRun whole = train_on_ranks(packed_model(), packed_options({}, 2), 6, 3);
  for (size_t i = 0; i < hosts.losses.size(); ++i)
    EXPECT_NEAR(hosts.losses[i], whole.losses[i], 1e-5) << i;
}

// Between hosts a packet of one shard in each of the other hosts; inside a host fp32.
TEST(BetweenHosts, SendsPacketsToOtherHostsAlone) {
  constexpr int kRanks = 6, kInside = 2, kHosts = 3;
  CompressionOptions int8;
  int8.gradients = {.type = Type::int8};
  int8.host_ranks = kInside;
  int64_t packets = 0, whole = 0;
  for (const auto& unit : Model(packed_model()).units) {
    const int64_t shard = SlabLayout(unit->params(), kRanks).shard_elems();
    packets += (shard + 2 * ((shard + 255) / 256) + 3) / 4 * 4 * (kHosts - 1);
    whole += 4 * shard * kHosts * (kInside - 1);
  }
  const RankRun run = train_on_ranks(packed_model(), packed_options(int8, 2), kRanks, 1);
  const TrafficTable& table = run.traffic[static_cast<size_t>(Lane::reduce)];
  EXPECT_EQ(table[static_cast<size_t>(Collective::all_to_all)].bytes_sent, packets);
  EXPECT_EQ(table[static_cast<size_t>(Collective::reduce_scatter)].bytes_sent, whole);
  EXPECT_EQ(reduce_lane_bytes(run), packets + whole);
}

TEST(BetweenHosts, NeedsHostsOfOneSize) {
  CompressionOptions int8;
  int8.gradients = {.type = Type::int8};
  int8.host_ranks = 2;
  for (const int ranks : {2, 3})
    EXPECT_ERROR(Engine::plan(packed_model(), packed_options(int8, 1), ranks),
                 "compression.ranks_per_host is 2", "it must divide their number");
}

// What is kept is an element of fp32 for each of a gradient, on each rank.
TEST(CompressionMemory, OfWhatIsKeptIsThatOfAGradient) {
  CompressionOptions topk;
  topk.gradients = {.type = Type::topk};
  int64_t elems = 0;
  for (const auto& unit : Model(packed_model()).units)
    elems += SlabLayout(unit->params(), 2).elems();
  for (const int stage : {0, 3}) {
    const auto bytes = [&](const CompressionOptions& compression) {
      return Engine::plan(packed_model(), packed_options(compression, stage), 2)
          ->ledger()
          .peak_bytes(Kind::optimizer);
    };
    EXPECT_EQ(bytes(topk) - bytes({}), 4 * elems);
    CompressionOptions lost = topk;
    lost.feedback = false;
    EXPECT_EQ(bytes(lost), bytes({}));
    const EngineOptions options = packed_options(topk, stage);
    const auto traits = unit_traits(Model(packed_model()), options, 2);
    EXPECT_EQ(state_bytes(traits, options, 2).optimizer, bytes(topk));
  }
}

TEST(CompressedWeights, HaveTheSameBitsHoweverTheyTravelAndChangeResults) {
  CompressionOptions int8;
  int8.weights = {.type = Type::int8};
  const RankRun reference = train_on_ranks(packed_model(), packed_options(int8, 3), 3, 3);
  EngineOptions options = packed_options(int8, 3);
  options.zero.prefetch_elems = 1 << 30;
  options.zero.reduce_bucket_elems = 0;
  const RankRun ahead = train_on_ranks(packed_model(), options, 3, 3);
  expect_same_bits(ahead.weights, reference.weights);
  expect_planned_packed(options, 3, ahead);
  options.zero.overlap = false;
  expect_same_bits(train_on_ranks(packed_model(), options, 3, 3).weights, reference.weights);
  const RankRun whole = train_on_ranks(packed_model(), packed_options({}, 3), 3, 3);
  EXPECT_NE(whole.losses, reference.losses);
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(whole.losses[i], reference.losses[i], 0.01 * whole.losses[i]);
}

TEST(CompressedWeights, TakeAQuarterOfTheGathers) {
  CompressionOptions int8;
  int8.weights = {.type = Type::int8};
  const auto bytes = [](const CompressionOptions& compression) {
    const auto plan = Engine::plan(packed_model(), packed_options(compression, 3), 4);
    double sum = 0;
    for (const Traffic& traffic : plan->traffic(Lane::gather)) sum += double(traffic.bytes_sent);
    return sum;
  };
  EXPECT_NEAR(bytes(int8) / bytes({}), (1 + 2.0 / 256) / 4, 0.005);
}

TEST(CompressionPrecision, GradientsOf16BitsHaveTheSameBitsAtEveryStage) {
  for (const NamedCompression& named : all_compressions()) {
    if (std::string(named.name) != "int8" && std::string(named.name) != "topk" &&
        std::string(named.name) != "int8_lost")
      continue;
    SCOPED_TRACE(named.name);
    EngineOptions options = packed_options(named.options, 0);
    options.precision = {.compute = DType::bf16, .gradients = DType::bf16};
    const RankRun reference = train_on_ranks(packed_model(), options, 3, 2);
    for (const int stage : {1, 3}) {
      options.zero.stage = stage;
      const RankRun run = train_on_ranks(packed_model(), options, 3, 2);
      expect_same_bits(run.weights, reference.weights);
      expect_planned_packed(options, 3, run);
    }
  }
}

// A loss scale that doubles on its way has the bits of one that does not: what is kept, of
// gradients and of momentum, follows it, and so do the least magnitude that is sent and the squares
// that densities are by.
TEST(CompressionLossScale, DoesNotChangeBitsWhereItChanges) {
  CompressionOptions sign, momentum, least, densities;
  least.gradients = {.type = Type::threshold, .density = 0.5, .least = 1e-2};
  densities.gradients = {.type = Type::topk, .density = 0.02};
  densities.adaptive = true;
  sign.gradients = {.type = Type::sign};
  momentum.gradients = {.type = Type::topk, .density = 0.1};
  momentum.corrects_momentum = true;
  momentum.correction = {.momentum = 0.9f, .share = 1.0f, .masks = true};
  for (const CompressionOptions& compression : {sign, momentum, least, densities})
    for (const int stage : {0, 2}) {
      SCOPED_TRACE(describe(compression.gradients));
      EngineOptions options = packed_options(compression, stage);
      if (compression.corrects_momentum) options.optimizer = {.type = OptimizerSpec::Type::sgd};
      options.skip_overflow = true;
      const RankRun without = train_on_ranks(packed_model(), options, 2, 7);
      options.loss_scale = {.fixed = 0, .initial_power = 8, .window = 2};
      const RankRun with = train_on_ranks(packed_model(), options, 2, 7);
      expect_same_bits(with.weights, without.weights);
    }
}

// A rank's own gradient is limited as it is without the scale.
TEST(CompressionLossScale, DoesNotChangeLocalClipping) {
  CompressionOptions own;
  own.gradients = {.type = Type::topk, .density = 0.1};
  own.corrects_momentum = true;
  const auto weights_of = [&](double scale, float limit) {
    own.correction = {.momentum = 0.9f, .share = 1.0f, .masks = true, .limit = limit};
    EngineOptions options = packed_options(own, 1);
    options.optimizer = {.type = OptimizerSpec::Type::sgd};
    options.loss_scale = {.fixed = scale};
    return train_on_ranks(packed_model(), options, 2, 4).weights;
  };
  const Weights limited = weights_of(1, 1e-2f);
  EXPECT_NE(limited, weights_of(1, 0));
  expect_same_bits(weights_of(1024, 1e-2f), limited);
}

// What is whole and what is packed goes by the steps that changed the weights, as squares do: where
// the first two are skipped, what follows has the bits of a run in which none is.
TEST(CompressionLossScale, StepsThatAreSkippedDoNotCount) {
  CompressionOptions sign, momentum;
  sign.gradients = momentum.gradients = {.type = Type::sign};
  momentum.whole_steps = 3;
  momentum.corrects_momentum = true;
  momentum.correction = {.momentum = 0.9f, .share = 0.1f, .masks = false};
  for (const CompressionOptions& compression : {sign, momentum}) {
    EngineOptions options = packed_options(compression, 1);
    options.optimizer = {.beta2 = 0.95, .eps = 1e-4, .freeze_step = 3};
    if (!compression.corrects_momentum) options.optimizer.variance_scaler = 2;
    options.skip_overflow = true;
    const auto weights_after = [&](int updates, int skipped) {
      Weights weights;
      test::on_ranks(2, [&](int rank, std::shared_ptr<Communicator> communicator) {
        EngineOptions own = options;
        Engine* watched = nullptr;
        own.before_action = [&](const Action& action) {
          if (action.verb == Verb::squares && watched->steps_done() < skipped)
            test::break_gradient(*watched, action.unit);
        };
        Engine engine(packed_model(), own, std::move(communicator));
        watched = &engine;
        test::OwnedBatch batch = test::random_rows(rank, own, packed_model().vocab_size);
        const BatchView view = batch.view();
        for (int step = 0; step < updates + skipped; ++step) engine.train_step({&view, 1}, 1e-3);
        EXPECT_EQ(engine.updates_done(), updates);
        const Weights here = test::weights_of(engine);
        if (rank == 0) weights = here;
      });
      return weights;
    };
    expect_same_bits(weights_after(6, 2), weights_after(6, 0));
  }
}

// A gradient that is not finite is found through every format, and named.
TEST(CompressionDivergence, IsFoundAndWeightsStay) {
  for (const NamedCompression& named : all_compressions()) {
    SCOPED_TRACE(named.name);
    EngineOptions options = packed_options(named.options, 2);
    options.compression.whole_steps = 0;
    options.initial = [](const ParamSpec& param, int64_t, std::span<float> dst) {
      std::fill(dst.begin(), dst.end(), param.cols > 1 ? 0.1f : 1.0f);
      if (param.name.starts_with("block.1.mlp")) dst[0] = std::nanf("");
    };
    EXPECT_THROW(train_on_ranks(packed_model(), options, 2, 1), DivergedError);
  }
}

// Momentum before the sum, with everything sent and nothing masked, is the optimizer's own, from
// the beginning or after steps in which it was that.
TEST(CompressionMomentum, OfEverythingIsThatOfTheOptimizer) {
  using Optimizer = OptimizerSpec::Type;
  struct Case {
    const char* name;
    OptimizerSpec spec;
    int64_t whole_steps;
    double tolerance;
  };
  for (const Case& one :
       {Case{"sgd", {.type = Optimizer::sgd, .momentum = 0.9}, 0, 1e-6},
        Case{"sgd, after 3 steps", {.type = Optimizer::sgd, .momentum = 0.9}, 3, 1e-6},
        Case{"adamw",  // the gradient of a key's bias is rounding alone: below eps
             {.beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .freeze_step = 3},
             3,
             2e-6},
        Case{"lamb", {.type = Optimizer::lamb, .eps = 1e-6, .freeze_step = 3}, 3, 2e-6},
        Case{"lamb with ratios that stay",
             {.type = Optimizer::lamb,
             .eps = 1e-6,
             .weight_decay = 0.1,
             .freeze_step = 3,
             .frozen_trust = FrozenTrust{}},
             3,
             2e-6}})
    for (const int stage : {0, 1}) {
      SCOPED_TRACE(one.name);
      const bool sgd = one.spec.type == Optimizer::sgd;
      CompressionOptions own;
      own.gradients = {.type = Type::topk, .density = 1};
      own.corrects_momentum = true;
      own.whole_steps = one.whole_steps;
      own.correction = {.momentum = 0.9f, .share = sgd ? 1.0f : 0.1f, .masks = false};
      EngineOptions before = packed_options(own, stage), after = packed_options({}, stage);
      before.clipping = after.clipping = 0;
      before.optimizer = after.optimizer = one.spec;
      if (one.whole_steps == 0) before.optimizer.momentum = 0;
      const RankRun a = train_on_ranks(packed_model(), before, 2, 7),
                    b = train_on_ranks(packed_model(), after, 2, 7);
      for (const auto& [name, values] : a.weights)
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(values[i], b.weights.at(name)[i], one.tolerance) << name;
    }
}

// The rule of 0/1 Adam as its authors wrote it: an interval that doubles after so many updates.
TEST(CompressionOfVarianceSteps, IsNone) {
  CompressionOptions sign;
  sign.gradients = {.type = Type::sign};
  for (const int64_t scaler : {1, 3, 16}) {
    const OptimizerSpec optimizer{.freeze_step = 700, .variance_scaler = scaler};
    int64_t interval = 1, updates = 0;
    for (int64_t step = 1; step <= 1000; ++step) {
      const bool takes = step <= 700 && step % interval == 0;
      ASSERT_EQ(optimizer.takes_squares(step), takes) << step;
      ASSERT_EQ(sign.gradients_after(step - 1, optimizer).none(), takes) << step;
      if (takes && ++updates == scaler) {
        updates = 0;
        interval *= 2;
      }
    }
  }
  // Steps 1, 2 and 4 are whole, and so are the losses up to the third.
  EngineOptions whole = packed_options({}, 1), packed = packed_options(sign, 1);
  whole.optimizer = packed.optimizer = {.variance_scaler = 2};
  const RankRun a = train_on_ranks(packed_model(), whole, 2, 4),
                b = train_on_ranks(packed_model(), packed, 2, 4);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a.losses[i], b.losses[i]) << i;
  EXPECT_NE(a.losses[3], b.losses[3]);
  packed.zero.stage = 3;
  expect_same_bits(train_on_ranks(packed_model(), packed, 2, 4).weights, b.weights);
}

}  // namespace
}  // namespace onefold

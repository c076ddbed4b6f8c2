// ZeRO's promises: whatever the stage, and however state travels, the bits are the same; each rank
// holds what the formulas say; the plan is the run. ONEFOLD_TEST_DEVICE=cuda:0 runs them on a card
// that the ranks share.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

constexpr int64_t kAll = int64_t{1} << 40;

// Awkward on purpose: sizes that divide nothing, and units smaller than the ranks are many.
ModelSpec tiny(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions options_for(int stage, int micros = 1) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .micros = micros,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

void expect_planned(const ModelSpec& spec, const EngineOptions& options, int ranks,
                    const RankRun& run) {
  test::expect_planned(spec, options, ranks, run, test::test_hardware());
}

struct Travel {
  const char* name;
  int64_t prefetch, bucket;
  bool overlap = true;
};
constexpr Travel kTravels[] = {{"one by one", 0, 0},
                               {"a unit ahead", ZeroOptions::kAuto, 5000},
                               {"all at once", kAll, kAll},
                               {"no lanes", 0, 5000, false}};

void apply(const Travel& travel, EngineOptions& options) {
  options.zero.prefetch_elems = travel.prefetch;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = travel.bucket;
  options.zero.overlap = travel.overlap;
}

class ZeroBits : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  ModelSpec spec() const { return tiny(std::get<0>(GetParam())); }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(ZeroBits, EveryStageAndEveryWayOfTravelGiveTheSameBitsAsPlanned) {
  test::Combinations combinations;
  for (const int micros : {1, 4}) {
    const RankRun reference = train_on_ranks(spec(), options_for(0, micros), ranks(), 3);
    for (const int stage : {0, 1, 2, 3}) {
      for (const Travel& travel : kTravels) {
        for (const Order order : {Order::micro_first, Order::unit_first}) {
          if (micros == 1 && order == Order::unit_first) continue;  // the same program
          if (!combinations.take()) continue;
          SCOPED_TRACE(fmt::format("stage {}, {}, {} micro-batches {}", stage, travel.name, micros,
                                   order_name(order)));
          EngineOptions options = options_for(stage, micros);
          apply(travel, options);
          options.order = order;
          const RankRun run = train_on_ranks(spec(), options, ranks(), 3);
          EXPECT_EQ(run.losses, reference.losses);
          EXPECT_EQ(run.norms, reference.norms);
          expect_same_bits(run.weights, reference.weights);
          expect_planned(spec(), options, ranks(), run);
        }
      }
    }
  }
}

// The key bias of attention without rope has no effect on the loss: its true gradient is zero, and
// Adam makes steps of full length out of what rounding leaves.
bool is_noise(const ModelSpec& spec, const std::string& name, size_t element) {
  const auto i = static_cast<int64_t>(element);
  return spec.positions == Positions::learned && name.ends_with("qkv.bias") &&
         i >= spec.query_size() && i < spec.query_size() + spec.kv_size();
}

// The sums over ranks and over one long batch differ in order only.
TEST_P(ZeroBits, OneRankOnTheSameGlobalBatchAgreesToRounding) {
  const RankRun many = train_on_ranks(spec(), options_for(3), ranks(), 20);
  EngineOptions alone = options_for(0);
  alone.micro_batch = ranks();
  const RankRun one = train_on_ranks(spec(), alone, 1, 20);
  for (const auto& [name, values] : one.weights) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_noise(spec(), name, i)) continue;
      difference += std::pow(double{values[i]} - many.weights.at(name)[i], 2);
      size += std::pow(double{values[i]}, 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size)) << name;
  }
}

// Norms after branches, windows, branches beside each other, a head with a bias, a norm of what is
// looked up.
TEST(ZeroBitsOfOtherBlocks, AreTheSameAtEveryStageAsPlanned) {
  for (const std::string preset :
       {"gemma-tiny", "olmo2-tiny", "neox-tiny", "gptj-tiny", "bloom-tiny"}) {
    const ModelSpec spec = tiny(preset);
    const RankRun reference = train_on_ranks(spec, options_for(0, 2), 3, 3);
    for (int stage = 1; stage <= 3; ++stage)
      for (const bool again : {false, true}) {
        SCOPED_TRACE(fmt::format("{} stage {} {}", preset, stage, again));
        EngineOptions options = options_for(stage, 2);
        options.recompute = again;
        const RankRun run = train_on_ranks(spec, options, 3, 3);
        EXPECT_EQ(run.losses, reference.losses);
        EXPECT_EQ(run.norms, reference.norms);
        expect_same_bits(run.weights, reference.weights);
        expect_planned(spec, options, 3, run);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, ZeroBits,
                         testing::Combine(testing::Values("gpt2-tiny", "llama-tiny"),
                                          testing::Values(2, 3)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(std::get<1>(info.param));
                         });

int64_t slab_elems(const ModelSpec& spec, int ranks) {
  int64_t elems = 0;
  for (const auto& unit : Model(spec).units) elems += SlabLayout(unit->params(), ranks).elems();
  return elems;
}

// 16 elements end each tensor's line, and 16 for each rank each unit's; a vocabulary has its slack.
int64_t most_padding(const ModelSpec& spec, int ranks) {
  int64_t elems = 0;
  for (const auto& unit : Model(spec).units) {
    elems += 16 * (static_cast<int64_t>(unit->params().size()) + ranks);
    for (const ParamSpec& param : unit->params()) elems += param.slack_rows * param.cols;
  }
  return elems;
}

TEST(ZeroMemory, StatesFollowTheFormulasOfThePaperWithinPadding) {
  if (test::test_device_name() != "cpu") GTEST_SKIP() << "a card books larger blocks";
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = tiny(preset);
    for (const int ranks : {2, 3, 4, 8}) {
      const int64_t psi = slab_elems(spec, ranks);
      EXPECT_LE(psi, spec.parameter_count() + most_padding(spec, ranks));
      // Parameters, gradients, Adam's two moments: 4 + 4 + 8 bytes for each element.
      const int64_t expected[4] = {16 * psi, 8 * psi + 8 * psi / ranks, 4 * psi + 12 * psi / ranks,
                                   16 * psi / ranks};
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, stage {}", preset, ranks, stage));
        const EngineOptions options = options_for(stage);
        const RankRun run = train_on_ranks(spec, options, ranks, 2);
        for (const auto& kinds : run.kinds)
          EXPECT_EQ(kinds[static_cast<size_t>(Kind::parameters)] +
                        kinds[static_cast<size_t>(Kind::gradients)] +
                        kinds[static_cast<size_t>(Kind::optimizer)],
                    expected[stage]);
        const StateBytes predicted =
            state_bytes(unit_traits(Model(spec), options, ranks), options, ranks);
        EXPECT_EQ(predicted.total(), expected[stage]);
        expect_planned(spec, options, ranks, run);
      }
    }
  }
}

// A GPT of about this many parameters: its vocabulary makes up the difference.
ModelSpec gpt_of(double parameters, int64_t hidden, int64_t layers) {
  ModelSpec spec = spec_from_preset("gpt2", "test");
  spec.hidden_size = hidden;
  spec.num_layers = layers;
  spec.num_heads = spec.num_kv_heads = hidden / 128;
  spec.head_dim = 128;
  spec.intermediate_size = 4 * hidden;
  spec.vocab_size = 1;
  const double missing = parameters - static_cast<double>(spec.parameter_count());
  spec.vocab_size = static_cast<int64_t>(missing / static_cast<double>(hidden));
  return spec;
}

// Table 1 of the paper, in GB of 1e9 bytes, as printed there: stages 1, 2 and 3 of mixed-precision
// Adam.
struct PaperModel {
  double parameters;
  int64_t hidden, layers;
  const char* cells[6][3];
};
constexpr int kPaperRanks[] = {1, 4, 16, 64, 256, 1024};
const PaperModel kPaper[] = {{7.5e9,
                              4096,
                              36,
                              {{"120", "120", "120"},
                               {"52.5", "41.3", "30"},
                               {"35.6", "21.6", "7.5"},
                               {"31.4", "16.6", "1.88"},
                               {"30.4", "15.4", "0.47"},
                               {"30.1", "15.1", "0.12"}}},
                             {128e9,
                              12288,
                              70,
                              {{"2048", "2048", "2048"},
                               {"896", "704", "512"},
                               {"608", "368", "128"},
                               {"536", "284", "32"},
                               {"518", "263", "8"},
                               {"513", "257", "2"}}},
                             {1e12,
                              25600,
                              127,
                              {{"16000", "16000", "16000"},
                               {"7000", "5500", "4000"},
                               {"4750", "2875", "1000"},
                               {"4187", "2218", "250"},
                               {"4046", "2054", "62.5"},
                               {"4011", "2013", "15.6"}}}};

// The paper rounds some cells and cuts others short: each must hold within one of its last digit,
// and the number of parameters is itself met to a ten-thousandth.
TEST(ZeroPlan, ReproducesTableOneOfThePaper) {
  for (const PaperModel& paper : kPaper) {
    const ModelSpec spec = gpt_of(paper.parameters, paper.hidden, paper.layers);
    EXPECT_NEAR(static_cast<double>(spec.parameter_count()) / paper.parameters, 1, 1e-4);
    for (size_t row = 0; row < 6; ++row) {
      for (int stage = 1; stage <= 3; ++stage) {
        EngineOptions options = options_for(stage);
        const int ranks = kPaperRanks[row];
        // Mixed precision: a master copy beside the moments.
        options.precision = {.compute = DType::bf16, .gradients = DType::bf16};
        const StateBytes bytes =
            state_bytes(unit_traits(Model(spec), options, ranks), options, ranks);
        const std::string cell = paper.cells[row][stage - 1];
        const size_t point = cell.find('.');
        const double digit =
            point == std::string::npos ? 1 : std::pow(10, -double(cell.size() - point - 1));
        EXPECT_NEAR(static_cast<double>(bytes.total()) / 1e9, std::stod(cell),
                    digit + 1e-4 * std::stod(cell))
            << paper.parameters << " parameters, " << ranks << " ranks, stage " << stage;
      }
    }
  }
}

int64_t bytes_sent(const RankRun& run, Lane lane) {
  int64_t bytes = 0;
  for (const Traffic& traffic : run.traffic[static_cast<size_t>(lane)]) bytes += traffic.bytes_sent;
  return bytes;
}

// Stages 0-2 send 2 psi (N-1)/N elements a step. Stage 3 sends 3, less what need not be gathered
// twice: the head is entered once, and an embedding that is not tied is not read in backward.
TEST(ZeroVolume, IsExactlyThatOfTheFormulas) {
  constexpr int kSteps = 3;
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = tiny(preset);
    const Model model(spec);
    for (const int ranks : {2, 3, 4}) {
      for (const int micros : {1, 4}) {
        const auto elems = [&](size_t unit) {
          return SlabLayout(model.units[unit]->params(), ranks).elems();
        };
        const int64_t psi = slab_elems(spec, ranks);
        const int64_t saved = elems(model.units.size() - 1) + (spec.tie_embeddings ? 0 : elems(0));
        for (const int stage : {0, 1, 2, 3}) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, stage {}", preset, ranks, stage));
          EngineOptions options = options_for(stage, micros);
          options.order = stage == 3 ? Order::unit_first : Order::micro_first;
          const RankRun run = train_on_ranks(spec, options, ranks, kSteps);
          const int64_t sent = stage < 3 ? 2 * psi : 3 * psi - saved;
          EXPECT_EQ(bytes_sent(run, Lane::gather) + bytes_sent(run, Lane::reduce),
                    kSteps * 4 * sent / ranks * (ranks - 1));
          // The count of targets, and the sum of squares and losses: an all-reduce of a number for
          // each unit, and one more.
          const auto numbers = static_cast<int64_t>(model.units.size()) + 1;
          EXPECT_EQ(bytes_sent(run, Lane::compute),
                    kSteps * 8 * (ranks - 1) * (1 + 2 * ((numbers + ranks - 1) / ranks)));
        }
      }
    }
  }
}

TEST(ZeroVolume, ReuseAndPersistenceSaveGathers) {
  const ModelSpec spec = tiny("llama-tiny");
  EngineOptions options = options_for(3);
  const int64_t plain = bytes_sent(train_on_ranks(spec, options, 2, 1), Lane::gather);
  options.zero.max_reuse_distance = kAll;
  const RankRun reused = train_on_ranks(spec, options, 2, 1);
  EXPECT_LT(bytes_sent(reused, Lane::gather), plain);
  expect_planned(spec, options, 2, reused);
  options.zero.max_reuse_distance = 0;
  options.zero.persistence_elems = kAll;
  const RankRun persistent = train_on_ranks(spec, options, 2, 1);
  EXPECT_LT(bytes_sent(persistent, Lane::gather), plain);
  expect_planned(spec, options, 2, persistent);
  expect_same_bits(reused.weights, persistent.weights);
}

TEST(ZeroMemory, StageThreeNeverHoldsTheWholeModel) {
  ModelSpec spec = tiny("llama-tiny");
  spec.num_layers = 12;
  EngineOptions options = options_for(3);
  options.zero.prefetch_elems = 0;
  options.zero.reduce_bucket_elems = 0;
  constexpr int kRanks = 4;
  const RankRun run = train_on_ranks(spec, options, kRanks, 2);
  const int64_t whole_bytes = 4 * slab_elems(spec, kRanks);
  for (const auto& kinds : run.kinds)
    EXPECT_LT(kinds[static_cast<size_t>(Kind::parameters)] +
                  kinds[static_cast<size_t>(Kind::communication)],
              whole_bytes);
}

TEST(ZeroPlan, IsMadeForTenThousandRanksInSeconds) {
  const ModelSpec spec = spec_from_preset("gpt2-xl", "test");
  EngineOptions options = options_for(3);
  options.sequence = 1024;
  const auto plan = Engine::plan(spec, options, 10000);
  EXPECT_LT(plan->ledger().peak_bytes(Kind::optimizer), 8 * spec.parameter_count() / 9000);
}

// A rank reads the slices that it holds, and nothing else.
TEST(ZeroStart, WeightsFromAReaderAreTheSameOnAnyRanksAndReadOnce) {
  const ModelSpec spec = tiny("llama-tiny");
  std::atomic<int64_t> read = 0;
  const auto start = [&](int stage, int ranks) {
    EngineOptions options = options_for(stage);
    options.initial = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
      read += static_cast<int64_t>(dst.size());
      for (size_t i = 0; i < dst.size(); ++i)
        dst[i] =
            static_cast<float>(first + static_cast<int64_t>(i)) / static_cast<float>(param.elems());
    };
    read = 0;
    return train_on_ranks(spec, options, ranks, 0).weights;
  };
  const test::Weights alone = start(0, 1);
  EXPECT_EQ(read, spec.parameter_count());
  EXPECT_FLOAT_EQ(alone.at("head.norm.weight")[1], 1.0f / static_cast<float>(spec.hidden_size));
  expect_same_bits(alone, start(3, 3));
  EXPECT_EQ(read, spec.parameter_count());
  expect_same_bits(alone, start(1, 2));
  EXPECT_EQ(read, 2 * spec.parameter_count());
}

class Frozen : public testing::TestWithParam<std::string> {};

TEST_P(Frozen, UnitsKeepTheirWeightsAndHoldNoGradientOrOptimizerState) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = tiny(preset);
    EngineOptions options = options_for(0);
    options.frozen = {GetParam()};
    const RankRun untouched = train_on_ranks(spec, options, 2, 0);
    const RankRun reference = train_on_ranks(spec, options, 2, 3);
    std::string prefix = GetParam();
    if (prefix.ends_with('*')) prefix.pop_back();
    for (const auto& [name, values] : reference.weights)
      EXPECT_EQ(values == untouched.weights.at(name), name.starts_with(prefix)) << name;
    for (const int stage : {1, 2, 3}) {
      for (const int micros : {1, 3}) {
        EngineOptions sharded = options_for(stage, micros);
        sharded.frozen = options.frozen;
        EngineOptions whole = options_for(0, micros);
        whole.frozen = options.frozen;
        const RankRun run = train_on_ranks(spec, sharded, 2, 3);
        expect_same_bits(run.weights, train_on_ranks(spec, whole, 2, 3).weights);
        expect_planned(spec, sharded, 2, run);
        EXPECT_EQ(run.kinds[0][static_cast<size_t>(Kind::optimizer)],
                  state_bytes(unit_traits(Model(spec), sharded, 2), sharded, 2).optimizer);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Units, Frozen,
                         testing::Values("embedding", "block.0", "block.*", "block.1.mlp", "head"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           std::replace(name.begin(), name.end(), '*', 's');
                           return name;
                         });

TEST(FrozenUnits, AnUnknownUnitIsNamedWithTheOnesThereAre) {
  EngineOptions options = options_for(0);
  options.frozen = {"block.9"};
  EXPECT_ERROR(Engine(tiny("gpt2-tiny"), options), "no unit \"block.9\"");
  options.frozen = {"*"};
  EXPECT_ERROR(Engine(tiny("gpt2-tiny"), options), "nothing would be trained");
}

}  // namespace
}  // namespace onefold

// Sums between shares that travel in runs of rows while further rows are computed: the bits are
// those of the same mesh with sums in the order of computation, in every layout; as much is sent;
// and the plan is the run.
#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Tokens that several tiles of a product divide, unevenly.
ModelSpec divided_shape(const std::string& preset, int64_t kv_heads = 4) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = preset == "qwen3-tiny" ? 10 : 8;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  spec.max_sequence_length = 268;
  if (preset == "gpt2-tiny") spec.dropout = 0.1f;
  if (!spec.experts.enabled()) return spec;
  spec.experts.count = 4;
  spec.experts.intermediate_size = 17;
  return spec;
}

EngineOptions overlapped(int chunks, int stage = 0) {
  EngineOptions options{
      .tensor = 2, .overlap_chunks = chunks, .threads = 1, .micro_batch = 2, .sequence = 134};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

int64_t sums(const TrafficTable& table) {
  return table[static_cast<size_t>(Collective::all_reduce)].calls;
}

// A run against the same without overlap; the first has more and shorter sums.
void expect_bits_in_order(const ModelSpec& spec, const EngineOptions& options, int ranks,
                          int steps = 3) {
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, steps);
  EngineOptions plain = options;
  plain.overlap_chunks = 1;
  const test::RankRun in_order = test::train_on_ranks(spec, plain, ranks, steps);
  EXPECT_EQ(run.losses, in_order.losses);
  EXPECT_EQ(run.norms, in_order.norms);
  test::expect_same_bits(run.weights, in_order.weights);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
  constexpr auto kExchange = static_cast<size_t>(Lane::exchange);
  EXPECT_GT(sums(run.traffic[kExchange]), sums(in_order.traffic[kExchange]));
  const TrafficTable planned =
      Engine::plan(spec, options, ranks, 0, test::this_processor())->traffic(Lane::exchange);
  for (size_t c = 0; c < planned.size(); ++c) {
    EXPECT_EQ(run.traffic[kExchange][c].bytes_sent, in_order.traffic[kExchange][c].bytes_sent);
    EXPECT_EQ(run.traffic[kExchange][c].calls, steps * planned[c].calls);
    EXPECT_EQ(run.traffic[kExchange][c].bytes_sent, steps * planned[c].bytes_sent);
  }
}

TEST(OverlappedExchanges, HaveTheBitsOfThoseInOrderInEveryBlock) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny", "qwen3-tiny", "gemma-tiny",
                                   "neox-tiny", "gptj-tiny", "mixtral-tiny"})
    for (const int chunks : {2, 5}) {
      SCOPED_TRACE(fmt::format("{} in {}", preset, chunks));
      const bool few = preset == "llama-tiny" || preset == "qwen3-tiny";
      expect_bits_in_order(divided_shape(preset, few ? 2 : 4), overlapped(chunks), 2, 2);
    }
}

TEST(OverlappedExchanges, HaveThemAtEveryStageInEveryLayout) {
  const ModelSpec spec = divided_shape("llama-tiny", 2);
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool again : {false, true}) {
      SCOPED_TRACE(fmt::format("stage {}{}", stage, again ? ", again" : ""));
      EngineOptions options = overlapped(3, stage);
      options.recompute = again;
      options.zero.overlap = !again;
      options.order = stage == 2 ? Order::unit_first : Order::micro_first;
      expect_bits_in_order(spec, options, 4);
    }
}

TEST(OverlappedExchanges, HaveThemBesideOtherAxesAndInPipelines) {
  EngineOptions options = overlapped(2);
  options.context = 2;
  for (const ContextMethod method : {ContextMethod::ulysses, ContextMethod::ring}) {
    options.context_method = method;
    options.sequence = 264;
    expect_bits_in_order(divided_shape("llama-tiny"), options, 4, 2);
  }
  for (const PipelineSchedule schedule : kPipelineSchedules)
    for (const std::string preset : {"llama-tiny", "gptj-tiny"}) {
      SCOPED_TRACE(preset);
      options = overlapped(3);
      options.pipeline.ranks = 2;
      options.pipeline.schedule = schedule;
      options.micros = 4;
      ModelSpec spec = divided_shape(preset);
      spec.num_layers = 4;
      expect_bits_in_order(spec, options, 4, 2);
    }
}

TEST(OverlappedExchanges, HaveThemInSixteenBitsOnThreadsAndWithFourShares) {
  EngineOptions options = overlapped(4);
  options.precision.compute = options.precision.gradients = DType::bf16;
  options.threads = 2;
  expect_bits_in_order(divided_shape("llama-tiny", 2), options, 2);
  options.tensor = 4;
  options.threads = 1;
  options.precision = {};
  expect_bits_in_order(divided_shape("gpt2-tiny"), options, 4);
}

// Of fewer tokens than a tile of the products has there is one run.
TEST(OverlappedExchanges, OfFewTokensAreInOnePiece) {
  EngineOptions options = overlapped(4);
  options.micro_batch = 1;
  options.sequence = 3;
  const ModelSpec spec = divided_shape("llama-tiny");
  const test::RankRun run = test::train_on_ranks(spec, options, 2, 2);
  options.overlap_chunks = 1;
  const test::RankRun in_order = test::train_on_ranks(spec, options, 2, 2);
  test::expect_same_bits(run.weights, in_order.weights);
  EXPECT_EQ(sums(run.traffic[static_cast<size_t>(Lane::exchange)]),
            sums(in_order.traffic[static_cast<size_t>(Lane::exchange)]));
}

TEST(OverlappedExchanges, AreRefusedWhereNothingIsSummedByRows) {
  EngineOptions options = overlapped(2);
  ModelSpec spec = divided_shape("llama-tiny");
  EXPECT_EQ(obstacle_to_tensor(spec, options), "");
  options.sequence_parallel = true;
  spec.lora = {.rank = 2, .alpha = 4, .targets = {"all-linear"}};
  const std::string why = obstacle_to_tensor(spec, options);
  EXPECT_TRUE(contains(why, "mesh.sequence_parallel sums where units end")) << why;
  EXPECT_TRUE(contains(why, "products of adapters (lora) are not cut into rows")) << why;
}

}  // namespace
}  // namespace onefold

// Axes of a mesh on one card that ranks share: by the local exchange on its memory, and over NCCL
// with a double behind its table. Divided units and sequences learn what one rank on the card
// learns; pipelines have its bits. Where there is no card, that is said.
#include <gtest/gtest.h>

#include "comm/nccl.h"
#include "comm/nccl_double.h"
#include "device/cuda_library.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

constexpr int kSteps = 5;

struct AxisCase {
  const char* name;
  const char* preset;
  MeshAxes mesh;
  int data = 1;
  ContextMethod method = ContextMethod::ulysses;
  int interleave = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int stage = 0;
  DType compute = DType::f32;
  int chunks = 1;  // EngineOptions::overlap_chunks, of more tokens

  int ranks() const { return mesh.tensor * mesh.context * mesh.pipeline * mesh.expert * data; }
};

// Awkward sizes: a vocabulary that nothing divides, three queries to a key head.
ModelSpec divisible(const char* preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 3;
  spec.num_heads = 6;
  spec.num_kv_heads = spec.positions == Positions::rope ? 2 : 6;
  spec.head_dim = 8;
  spec.hidden_size = 24;
  spec.intermediate_size = 46;
  if (spec.experts.enabled()) {
    spec.experts.count = 4;
    spec.experts.intermediate_size = 17;
    spec.experts.dense_blocks = {1};
  }
  return spec;
}

void add_all_of_mixtures(ModelSpec& spec) {
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = true;
  spec.experts.balance_loss = 0.02f;
  spec.experts.z_loss = 0.01f;
  spec.experts.jitter = 0.05f;
  spec.experts.capacity_factor = 1;
}

class CudaAxes : public testing::TestWithParam<AxisCase> {
 protected:
  void SetUp() override {
    if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
      GTEST_SKIP() << problem;
    const AxisCase& c = GetParam();
    spec_ = divisible(c.preset);
    // A ring does not drop probabilities.
    spec_.dropout =
        spec_.positions == Positions::learned && c.method == ContextMethod::ulysses ? 0.1f : 0;
    if (c.mesh.expert > 1 && c.data > 1) add_all_of_mixtures(spec_);
    if (c.mesh.context > 1 && spec_.experts.enabled()) spec_.experts.jitter = 0.05f;
  }

  EngineOptions options(int stage) const {
    const AxisCase& c = GetParam();
    EngineOptions options{.device = "cuda:0",
                          .tensor = c.mesh.tensor,
                          .overlap_chunks = c.chunks,
                          .context = c.mesh.context,
                          .expert = c.mesh.expert,
                          .threads = 1,
                          .micro_batch = 2,
                          .sequence = c.chunks > 1 ? 96 : 24};
    options.context_method = c.method;
    options.pipeline = {
        .ranks = c.mesh.pipeline, .interleave = c.interleave, .schedule = c.schedule};
    options.micros = 4;
    options.clipping = 0.5;
    options.zero.stage = stage;
    options.zero.persistence_elems = 0;
    options.precision.compute = c.compute;
    return options;
  }

  // The same global batch on one rank of the card.
  test::RankRun alone() const {
    EngineOptions one = options(0);
    one.tensor = one.context = one.expert = one.overlap_chunks = 1;
    one.pipeline = {};
    one.micros *= GetParam().data * GetParam().mesh.expert;
    return test::train_on_ranks(spec_, one, 1, kSteps);
  }

  static void expect_near(const test::RankRun& run, const test::RankRun& one, double most) {
    EXPECT_LT(test::distance(run.weights, one.weights), most);
    ASSERT_EQ(run.losses.size(), one.losses.size());
    for (size_t step = 0; step < run.losses.size(); ++step) {
      EXPECT_NEAR(run.losses[step], one.losses[step], most * one.losses[step]) << step;
      EXPECT_NEAR(run.norms[step], one.norms[step], most * one.norms[step]) << step;
    }
  }
  static void expect_same(const test::RankRun& run, const test::RankRun& first) {
    EXPECT_EQ(run.losses, first.losses);
    EXPECT_EQ(run.norms, first.norms);
    test::expect_same_bits(run.weights, first.weights);
  }

  ModelSpec spec_;
};

std::shared_ptr<Communicator> over_the_double(std::shared_ptr<Communicator> ranks) {
  return over_nccl(std::move(ranks), {.api = &test::nccl_double::kApi});
}

TEST_P(CudaAxes, LearnWhatOneRankLearnsAsPlanned) {
  const AxisCase& c = GetParam();
  const test::RankRun run = test::train_on_ranks(spec_, options(c.stage), c.ranks(), kSteps);
  const test::RankRun one = alone();
  EXPECT_NE(run.losses.front(), run.losses.back());
  if (c.mesh.pipeline == c.ranks())
    expect_same(run, one);
  else
    expect_near(run, one, c.compute == DType::f32 ? 1e-5 : 5e-2);
  test::expect_planned(spec_, options(c.stage), c.ranks(), run, hardware_named("h200"));
}

TEST_P(CudaAxes, OverNcclHaveTheBitsOfTheSharedCardAtEveryStage) {
  const AxisCase& c = GetParam();
  const test::RankRun first = test::train_on_ranks(spec_, options(0), c.ranks(), kSteps);
  std::vector<int> stages = {0};
  if (c.data * c.mesh.context * c.mesh.expert > 1) stages = {0, 1, 2, 3};
  for (const int stage : stages) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    const test::RankRun run =
        test::train_on_ranks(spec_, options(stage), c.ranks(), kSteps, over_the_double);
    expect_same(run, first);
    test::expect_planned(spec_, options(stage), c.ranks(), run, hardware_named("h200"),
                         nccl_scratch_bytes(c.ranks()));
    if (stage > 0)
      expect_same(test::train_on_ranks(spec_, options(stage), c.ranks(), kSteps), first);
  }
}

constexpr AxisCase kAxisCases[] = {
    {"gpt2_tensor2", "gpt2-tiny", {.tensor = 2}},
    {"llama_tensor2", "llama-tiny", {.tensor = 2}},
    {"llama_tensor6_of_2_key_heads", "llama-tiny", {.tensor = 6}},
    {"llama_tensor2_bf16",
     "llama-tiny",
     {.tensor = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::one_f_one_b,
     0,
     DType::bf16},
    {.name = "llama_tensor2_overlapped",
     .preset = "llama-tiny",
     .mesh = {.tensor = 2},
     .data = 2,
     .chunks = 3},
    {.name = "gptj_tensor2_overlapped", .preset = "gptj-tiny", .mesh = {.tensor = 2}, .chunks = 2},
    {.name = "llama_pipeline2_tensor2_overlapped",
     .preset = "llama-tiny",
     .mesh = {.tensor = 2, .pipeline = 2},
     .schedule = PipelineSchedule::zero_bubble,
     .chunks = 3},
    {"gpt2_pipeline2", "gpt2-tiny", {.pipeline = 2}},
    {"llama_pipeline4", "llama-tiny", {.pipeline = 4}},
    {"llama_pipeline2_interleaved", "llama-tiny", {.pipeline = 2}, 1, ContextMethod::ulysses, 2},
    {"llama_pipeline2_gpipe",
     "llama-tiny",
     {.pipeline = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::gpipe},
    {"llama_pipeline2_zero_bubble",
     "llama-tiny",
     {.pipeline = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::zero_bubble},
    {"llama_pipeline2_tensor2_zero_bubble",
     "llama-tiny",
     {.tensor = 2, .pipeline = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::zero_bubble},
    {"mixtral_pipeline2_expert2_zero_bubble",
     "mixtral-tiny",
     {.expert = 2, .pipeline = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::zero_bubble},
    {"gpt2_ulysses2", "gpt2-tiny", {.context = 2}},
    {"llama_ulysses2", "llama-tiny", {.context = 2}},
    {"gpt2_ring2", "gpt2-tiny", {.context = 2}, 1, ContextMethod::ring},
    {"llama_ring3", "llama-tiny", {.context = 3}, 1, ContextMethod::ring},
    {"llama_tensor2_data2", "llama-tiny", {.tensor = 2}, 2},
    {"llama_pipeline2_tensor2", "llama-tiny", {.tensor = 2, .pipeline = 2}},
    {"llama_pipeline2_data2", "llama-tiny", {.pipeline = 2}, 2},
    {"llama_ring2_tensor2", "llama-tiny", {.tensor = 2, .context = 2}, 1, ContextMethod::ring},
    {"gpt2_pipeline2_ulysses2", "gpt2-tiny", {.context = 2, .pipeline = 2}},
    {"mixtral_ulysses2", "mixtral-tiny", {.context = 2}},
    {"mixtral_expert2", "mixtral-tiny", {.expert = 2}},
    {"mixtral_expert4", "mixtral-tiny", {.expert = 4}},
    {"mixtral_expert2_data2", "mixtral-tiny", {.expert = 2}, 2},
    {"mixtral_expert2_bf16",
     "mixtral-tiny",
     {.expert = 2},
     1,
     ContextMethod::ulysses,
     1,
     PipelineSchedule::one_f_one_b,
     0,
     DType::bf16},
};
INSTANTIATE_TEST_SUITE_P(Meshes, CudaAxes, testing::ValuesIn(kAxisCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Evaluation and losses of tokens pass through the host.
TEST_P(CudaAxes, EvaluateWhatOneRankDoes) {
  const AxisCase& c = GetParam();
  const EngineOptions many = options(0);
  EngineOptions one = many;
  one.tensor = one.context = one.expert = 1;
  one.pipeline = {};
  const auto losses_on = [&](const EngineOptions& own, int ranks) {
    std::vector<float> losses;
    test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec_, own, std::move(communicator));
      test::OwnedBatch batch = test::random_rows(3, own, spec_.vocab_size);
      const std::vector<float> mine = engine.token_losses(batch.view());
      if (rank == 0) losses = mine;
    });
    return losses;
  };
  const std::vector<float> run = losses_on(many, c.ranks() / c.data), alone = losses_on(one, 1);
  ASSERT_EQ(run.size(), alone.size());
  for (size_t i = 0; i < run.size(); ++i)
    EXPECT_NEAR(run[i], alone[i], (c.compute == DType::f32 ? 1e-5 : 5e-2) * alone[i]) << i;
}

// What travels beside computation has the bits of what is in order, by the local exchange and over
// NCCL.
void expect_bits_in_order(const ModelSpec& spec, EngineOptions options) {
  options.device = "cuda:0";
  options.threads = 1;
  options.micro_batch = options.micros = 2;
  options.sequence = 24;
  options.zero.persistence_elems = 0;
  const int ranks = 2 * options.expert * options.context;
  for (const DType compute : {DType::f32, DType::bf16})
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {} {}", stage, dtype_name(compute)));
      options.zero.stage = stage;
      options.precision.compute = compute;
      options.recompute = stage == 2;
      options.zero.overlap = false;
      const test::RankRun in_order = test::train_on_ranks(spec, options, ranks, kSteps);
      options.zero.overlap = true;
      for (const bool nccl : {false, true}) {
        const test::RankRun run = test::train_on_ranks(spec, options, ranks, kSteps,
                                                       nccl ? over_the_double : test::Wrap{});
        EXPECT_EQ(run.losses, in_order.losses);
        test::expect_same_bits(run.weights, in_order.weights);
        test::expect_planned(spec, options, ranks, run, hardware_named("h200"),
                             nccl ? nccl_scratch_bytes(ranks) : 0);
      }
    }
}

TEST(CudaExchangeLane, RowsToExpertsHaveTheBitsOfThoseInOrder) {
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
    GTEST_SKIP() << problem;
  ModelSpec spec = divisible("mixtral-tiny");
  expect_bits_in_order(spec, {.expert = 2});
  add_all_of_mixtures(spec);
  expect_bits_in_order(spec, {.expert = 2});
}

TEST(CudaExchangeLane, TurnsOfARingHaveTheBitsOfThoseInOrder) {
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
    GTEST_SKIP() << problem;
  for (const int context : {2, 3})
    expect_bits_in_order(divisible("llama-tiny"),
                         {.context = context, .context_method = ContextMethod::ring});
}

TEST(CudaExchangeLane, TokensForHeadsHaveTheBitsOfThoseInOrder) {
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
    GTEST_SKIP() << problem;
  expect_bits_in_order(divisible("llama-tiny"), {.context = 2});
}

// As on the host: the step changes nothing, and says for how many rows there was no room.
TEST(CudaAxisFaults, ABoundOfExpertsIsNeverExceededSilently) {
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
    GTEST_SKIP() << problem;
  const ModelSpec spec = divisible("mixtral-tiny");
  EngineOptions options{
      .device = "cuda:0", .expert = 4, .threads = 1, .micro_batch = 2, .sequence = 11};
  const test::RankRun unbounded = test::train_on_ranks(spec, options, 4, 3);
  options.expert_bound = 3;
  const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
  EXPECT_EQ(run.losses, unbounded.losses);
  test::expect_same_bits(run.weights, unbounded.weights);
  test::expect_planned(spec, options, 4, run, hardware_named("h200"));
  options.expert_bound = 1;
  EXPECT_ERROR(test::train_on_ranks(spec, options, 4, 3), "step 1, block.0.mlp",
               "rows are for one holder of experts, and there is room for 11",
               "mesh.expert_bound is 1 times an even share");
}

TEST(CudaAxisFaults, OfNcclNameRankChannelAndCall) {
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty())
    GTEST_SKIP() << problem;
  const ModelSpec spec = divisible("llama-tiny");
  test::nccl_double::Faults& faults = test::nccl_double::faults();
  for (const MeshAxes mesh :
       {MeshAxes{.tensor = 2}, MeshAxes{.context = 2}, MeshAxes{.tensor = 2, .pipeline = 2}}) {
    EngineOptions options{.device = "cuda:0",
                          .tensor = mesh.tensor,
                          .context = mesh.context,
                          .threads = 1,
                          .micro_batch = 1,
                          .sequence = 24};
    options.pipeline.ranks = mesh.pipeline;
    options.micros = 3;
    const int ranks = mesh.tensor * mesh.context * mesh.pipeline;
    const auto train = [&] {
      faults.calls = 0;
      return error_text([&] { test::train_on_ranks(spec, options, ranks, 2, over_the_double); });
    };
    ASSERT_EQ(train(), "");
    const int calls = faults.calls;
    for (int i = 0; i < 4; ++i) {
      faults.fails_at = calls * i / 4 + i;
      const std::string error = train();
      faults.fails_at = -1;
      EXPECT_TRUE(contains(error, "rank ")) << error;
      EXPECT_TRUE(contains(error, "channel \"")) << error;
      EXPECT_TRUE(contains(error, ", step ") || contains(error, "does not open")) << error;
      EXPECT_TRUE(contains(error, "unhandled system error") || contains(error, "was ended"))
          << error;
    }
  }
}

}  // namespace
}  // namespace onefold

#include "engine/generate.h"

#include "engine/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "engine/support.h"

namespace onefold {
namespace {

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// A model trained to overfit one sequence, so that its choices are not near ties.
class Generation : public testing::TestWithParam<std::string> {
 protected:
  Generation() : spec_(spec_from_preset(GetParam(), "test")), engine_(spec_, options()) {
    batch_ = test::random_batch(1, 40, spec_.vocab_size, 3);
    for (size_t i = 0; i + 1 < batch_.tokens.size(); ++i) batch_.targets[i] = batch_.tokens[i + 1];
    const std::vector<BatchView> views = {batch_.view()};
    for (int i = 0; i < 80; ++i) engine_.train_step(views, 1e-2);
  }
  static EngineOptions options() {
    return {.device = test::test_device_name(),
            .threads = 2,
            .micro_batch = 1,
            .sequence = 40,
            .positions = 67,
            .clipping = 1.0};
  }

  ModelSpec spec_;
  Engine engine_;
  test::OwnedBatch batch_;
};

TEST_P(Generation, GreedyContinuesWhatItWasTrainedOn) {
  const std::vector<int32_t> prompt(batch_.tokens.begin(), batch_.tokens.begin() + 10);
  const auto tokens = generate(engine_, prompt, {.sampling = {.temperature = 0}, .max_tokens = 25});
  EXPECT_EQ(tokens, std::vector<int32_t>(batch_.tokens.begin() + 10, batch_.tokens.begin() + 35));
}

// The cache must not be seen in the result: feeding token by token equals feeding all at once.
TEST_P(Generation, CachedLogitsEqualUncachedOnes) {
  const int64_t length = 23;
  const auto logits_after = [&](const std::vector<int64_t>& pieces) {
    Decoder decoder(engine_, 1, 40);
    int64_t done = 0;
    for (const int64_t piece : pieces) {
      decoder.feed(std::span<const int32_t>(batch_.tokens)
                       .subspan(static_cast<size_t>(done), static_cast<size_t>(piece)));
      done += piece;
    }
    EXPECT_EQ(done, length);
    const std::span<float> logits = decoder.logits(0);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const auto whole = logits_after({length}), split = logits_after({7, 1, 1, 13, 1});
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_NEAR(whole[i], split[i], 2e-4 * (1 + std::abs(whole[i])));
}

TEST_P(Generation, ASeedFixesTheTextAndAnotherChangesIt) {
  GenerateOptions options{.sampling = {.temperature = 3.0, .seed = 5}, .max_tokens = 20};
  const std::vector<int32_t> prompt = {1, 2};
  const auto first = generate(engine_, prompt, options);
  EXPECT_EQ(first, generate(engine_, prompt, options));
  options.sampling.seed = 6;
  EXPECT_NE(first, generate(engine_, prompt, options));
}

double log_probability(Engine& engine, std::vector<int32_t> tokens, size_t prompt) {
  test::OwnedBatch batch{.tokens = tokens,
                         .targets = {},
                         .samples = {0},
                         .batch = 1,
                         .sequence = static_cast<int64_t>(tokens.size())};
  batch.targets.assign(tokens.size(), -1);
  for (size_t i = prompt; i < tokens.size(); ++i) batch.targets[i - 1] = tokens[i];
  return -engine.evaluate(batch.view()).first;
}

TEST_P(Generation, BeamSearchFindsATextAtLeastAsLikelyAsGreedy) {
  const std::vector<int32_t> prompt = {
      5, 9};  // nothing it was trained on: greedy is not optimal there
  const auto greedy = generate(engine_, prompt, {.sampling = {.temperature = 0}, .max_tokens = 6});
  const auto beam = generate(engine_, prompt, {.max_tokens = 6, .beams = 8});
  ASSERT_EQ(greedy.size(), beam.size());
  std::vector<int32_t> a = prompt, b = prompt;
  a.insert(a.end(), greedy.begin(), greedy.end());
  b.insert(b.end(), beam.begin(), beam.end());
  EXPECT_GE(log_probability(engine_, b, 2), log_probability(engine_, a, 2) - 1e-3);
}

TEST_P(Generation, StopsAtTheEndTokenWithoutReturningIt) {
  const std::vector<int32_t> prompt(batch_.tokens.begin(), batch_.tokens.begin() + 10);
  const int32_t end = batch_.tokens[15];
  for (const int64_t beams : {1, 3}) {
    GenerateOptions options{
        .sampling = {.temperature = 0}, .max_tokens = 25, .beams = beams, .end_tokens = {end}};
    const auto tokens = generate(engine_, prompt, options);
    EXPECT_EQ(std::find(tokens.begin(), tokens.end(), end), tokens.end());
    EXPECT_LE(tokens.size(), 5u);
  }
}

TEST_P(Generation, StopsAtWhicheverEndTokenComesFirst) {
  const std::vector<int32_t> prompt(batch_.tokens.begin(), batch_.tokens.begin() + 10);
  GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 25};
  options.end_tokens = {batch_.tokens[30], batch_.tokens[17], batch_.tokens[23]};
  const auto tokens = generate(engine_, prompt, options);
  EXPECT_LE(tokens.size(), 7u);
  for (const int32_t end : options.end_tokens)
    EXPECT_EQ(std::find(tokens.begin(), tokens.end(), end), tokens.end());
}

// Whatever was seen before, longer, shorter or another text: the cache is not seen in the result.
TEST_P(Generation, AGeneratorWritesWhatAFreshOneWould) {
  Generator generator(engine_);
  const auto part = [&](size_t begin, size_t end) {
    return std::vector<int32_t>(batch_.tokens.begin() + static_cast<ptrdiff_t>(begin),
                                batch_.tokens.begin() + static_cast<ptrdiff_t>(end));
  };
  for (const std::vector<int32_t>& prompt :
       {part(0, 10), part(0, 18), part(0, 18), part(0, 5), part(3, 20), part(0, 30)}) {
    const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 8};
    EXPECT_EQ(generator.generate(prompt, options), generate(engine_, prompt, options));
  }
}

TEST_P(Generation, StopsWhereTheModelsPositionsEnd) {
  const std::vector<int32_t> prompt(batch_.tokens.begin(), batch_.tokens.begin() + 10);
  const auto tokens = generate(engine_, prompt, {.max_tokens = 1000000});
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), spec_.max_sequence_length - 10);
}

TEST_P(Generation, BadRequestsAreNamed) {
  const std::vector<int32_t> ok = {1}, none, foreign = {static_cast<int32_t>(spec_.vocab_size)};
  EXPECT_NE(error_of([&] { generate(engine_, none, {}); }).find("the prompt is empty"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { generate(engine_, foreign, {}); }).find("outside the model's vocabulary"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              generate(engine_, ok, {.sampling = {.temperature = -1}});
            }).find("temperature is -1"),
            std::string::npos);
  EXPECT_NE(error_of([&] { generate(engine_, ok, {.beams = 0}); }).find("0 beams"),
            std::string::npos);
}

TEST_P(Generation, WeightsThatAreNotFiniteAreNamedAndNeverSampledFrom) {
  for (const float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    test::change_weights(engine_,
                         [&](const ParamSpec&, std::span<float> values) { values[0] = poison; });
    for (const GenerateOptions& options :
         {GenerateOptions{.sampling = {.temperature = 0}}, GenerateOptions{},
          GenerateOptions{.sampling = {.top_k = 5}}, GenerateOptions{.beams = 3}}) {
      const std::string said = error_of([&] {
        generate(engine_, std::vector<int32_t>{0, 1}, options);
      });
      EXPECT_NE(said.find("its weights hold NaN or infinities"), std::string::npos) << said;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Generation,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Sampling, TopKKeepsTheKLikeliest) {
  const std::vector<float> logits = {0, 3, 1, 2};
  std::set<int32_t> seen;
  for (int i = 0; i < 100; ++i)
    seen.insert(pick_token(logits, {.temperature = 5, .top_k = 2}, i / 100.0));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 3}));
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f),
                                     std::log(0.05f)};
  std::set<int32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(pick_token(logits, {.top_p = 0.75}, i / 1000.0));
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1}));
}

TEST(Sampling, DrawsEachTokenAsOftenAsItsProbability) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.7f), std::log(0.1f)};
  std::vector<int> counts(3);
  for (int i = 0; i < 1000; ++i)
    ++counts[static_cast<size_t>(pick_token(logits, {}, (i + 0.5) / 1000))];
  EXPECT_EQ(counts, (std::vector<int>{200, 700, 100}));
}

TEST(Sampling, TemperatureZeroIsGreedyAndTiesGoToTheLowerId) {
  EXPECT_EQ(pick_token(std::vector<float>{1, 5, 5, 2}, {.temperature = 0}, 0.99), 1);
}

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

TEST(Sampling, ALogitThatIsNotANumberIsRefused) {
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, 1, 2}, {1, kNan, 2}, {1, 2, kNan}, {kNan, kNan, kNan}}) {
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 0}, SamplingOptions{}, SamplingOptions{.top_k = 1}}) {
      const std::string said = error_of([&] { pick_token(logits, options, 0.5); });
      EXPECT_NE(said.find("not a number"), std::string::npos) << said;
      EXPECT_NE(said.find("weights"), std::string::npos) << said;
    }
    std::vector<float> copy = logits;
    EXPECT_NE(error_of([&] { log_softmax(copy); }).find("not a number"), std::string::npos);
  }
}

TEST(Sampling, MinusInfinityIsNeverDrawn) {
  const std::vector<float> logits = {-kInf, 1, -kInf, 1, -kInf};
  for (const double uniform : {0.0, 0.49, 0.51, 1 - 0x1p-53}) {
    const int32_t token = pick_token(logits, {}, uniform);
    EXPECT_EQ(token, uniform < 0.5 ? 1 : 3) << uniform;
  }
  EXPECT_EQ(pick_token(logits, {.temperature = 0}, 0.5), 1);
  EXPECT_NE(error_of([] {
              pick_token(std::vector<float>{-kInf, -kInf}, {}, 0.5);
            }).find("every token the probability 0"),
            std::string::npos);
}

TEST(Sampling, PlusInfinityTakesAllProbability) {
  const std::vector<float> logits = {5, kInf, -kInf, kInf, 1e38f};
  for (const double uniform : {0.0, 0.49, 0.51, 0.99})
    EXPECT_EQ(pick_token(logits, {}, uniform), uniform < 0.5 ? 1 : 3) << uniform;
  EXPECT_EQ(pick_token(logits, {.temperature = 0}, 0.5), 1);
  std::vector<float> shares = logits;
  log_softmax(shares);
  EXPECT_EQ(shares, (std::vector<float>{-kInf, std::log(0.5f), -kInf, std::log(0.5f), -kInf}));
}

TEST(Sampling, OptionsThatAreNotFiniteAreRefused) {
  for (const float value : {kNan, kInf}) {
    EXPECT_NE(error_of([&] { check_sampling({.temperature = value}); }).find("temperature"),
              std::string::npos);
    EXPECT_NE(error_of([&] { check_sampling({.repetition_penalty = value}); }).find("penalty"),
              std::string::npos);
  }
}

TEST(Sampling, RepetitionPenaltyMovesLogitsAwayFromPresence) {
  std::vector<float> logits = {2, -2, 4};
  penalise_repetition(logits, std::vector<int32_t>{0, 1, 0}, 2.0);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 4}));
}

}  // namespace
}  // namespace onefold

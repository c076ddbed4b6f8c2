// Losses and scores: the same on any number of ranks, and those that logits give.
#include "run/evaluation.h"

#include <cmath>

#include "engine/decoder.h"
#include "engine/ranks.h"
#include "engine/sampling.h"
#include "inspect/hf_source.h"
#include "io/safetensors.h"
#include "run/session.h"
#include "run/support.h"

namespace onefold {
namespace {

class EvaluationTest : public RunTest {
 protected:
  // Of 23 validation sequences, the last of which is short.
  LossSum on_ranks(int ranks, int64_t micro, int64_t sequences, int stage = 0) const {
    std::string text;
    for (int i = 0; i < 16 * 22; ++i) text += static_cast<char>('a' + (7 * i + i / 26) % 26);
    folder_.write("held_out.txt", text + "the end");
    Config c = config({"data.validation=" + folder_.path("held_out.txt"),
                       fmt::format("run.eval_sequences={}", sequences)});
    c.batch.micro = micro;
    c.zero.stage = stage;
    c.zero.persistence_elems = 0;
    const RunData data = open_data(c);
    LossSum sum;
    test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(settled_model(c, data), engine_options(c), std::move(communicator));
      const LossSum mine = sum_losses(engine, *data.validation);
      if (rank == ranks - 1) sum = mine;  // every rank has the whole
    });
    return sum;
  }
};

TEST_F(EvaluationTest, HasTheSameBitsOnAnyNumberOfRanksAndAtEveryStage) {
  for (const int64_t sequences : {0, 7, 22}) {
    const LossSum one = on_ranks(1, 2, sequences);
    EXPECT_EQ(one.tokens, sequences == 0 ? 16 * 22 + 7 : 16 * sequences);
    EXPECT_NEAR(one.mean(), std::log(263), 0.5);
    for (const int ranks : {2, 3, 6}) {
      const LossSum many = on_ranks(ranks, 2, sequences, ranks == 3 ? 3 : 0);
      EXPECT_EQ(many.loss, one.loss) << ranks << " ranks, " << sequences << " sequences";
      EXPECT_EQ(many.tokens, one.tokens);
    }
  }
}

// A sequence's loss does not depend on those beside it, but the kernels' choice of tiles does on
// their number: each loss is rounded to fp32 differently, by a few parts in 10^7.
TEST_F(EvaluationTest, UsesTheSameSequencesForEveryMicroBatch) {
  const LossSum ones = on_ranks(1, 1, 9);
  for (const int64_t micro : {2, 3, 5, 8, 16}) {
    const LossSum other = on_ranks(2, micro, 9);
    EXPECT_EQ(other.tokens, ones.tokens);
    EXPECT_NEAR(other.mean(), ones.mean(), 2e-6) << micro;
  }
}

TEST_F(EvaluationTest, CountsTheBytesThatTargetsStandFor) {
  folder_.write("held_out.txt", "four words are here, and an end");
  const Config c = config({"data.validation=" + folder_.path("held_out.txt")});
  const RunData data = open_data(c);
  Engine engine(settled_model(c, data), engine_options(c));
  std::vector<int32_t> bytes(263, 1);
  bytes[256] = 0;  // the end of the text
  const LossSum sum = sum_losses(engine, *data.validation, bytes);
  EXPECT_EQ(sum.tokens, 31);
  EXPECT_EQ(sum.bytes, 30);  // but for the first
}

// The log-probability of each token, from the logits that generation has, one position after the
// other.
TEST_F(EvaluationTest, ScoresAreThoseOfTheDecodersLogits) {
  const ModelSpec spec = spec_from_preset("llama-tiny", "test");
  const EngineOptions options{.threads = 1, .micro_batch = 3, .sequence = 20, .training = false};
  std::vector<ScoredText> texts;
  for (const size_t length : {5u, 21u, 2u, 9u, 9u, 14u, 3u}) {
    ScoredText text;
    for (size_t i = 0; i < length; ++i)
      text.tokens.push_back(static_cast<int32_t>((7 * i + 31 * length) % 200));
    text.given = length / 2;
    texts.push_back(text);
  }
  std::vector<TextScore> wanted;
  Engine engine(spec, options);
  for (const ScoredText& text : texts) {
    Decoder decoder(engine, 1, 32);
    TextScore score;
    for (size_t at = 0; at + 1 < text.tokens.size(); ++at) {
      decoder.feed({&text.tokens[at], 1});
      const int32_t next = text.tokens[at + 1];
      if (at + 1 < text.given) continue;
      score.likeliest &= pick_token(decoder.logits(0), {.temperature = 0}, 0) == next;
      log_softmax(decoder.logits(0));
      score.log_probability += decoder.logits(0)[static_cast<size_t>(next)];
    }
    wanted.push_back(score);
  }
  const auto expect_wanted = [&](const std::vector<TextScore>& scores) {
    ASSERT_EQ(scores.size(), wanted.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i].log_probability, wanted[i].log_probability, 1e-4) << i;
      EXPECT_EQ(scores[i].likeliest, wanted[i].likeliest) << i;
    }
  };
  const std::vector<TextScore> alone = score_texts(engine, texts);
  expect_wanted(alone);
  for (const int ranks : {2, 4}) {
    EngineOptions sharded = options;
    sharded.zero = {.stage = 3, .persistence_elems = 0};
    test::on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine one(spec, sharded, std::move(communicator));
      const std::vector<TextScore> scores = score_texts(one, texts);
      for (size_t i = 0; i < scores.size(); ++i)
        EXPECT_EQ(scores[i].log_probability, alone[i].log_probability) << ranks;
    });
  }
}

// Against what transformers computes: tests/golden/README.md.
TEST(EvaluationGolden, ScoresAreThoseOfTransformers) {
  for (const char* name : {"gpt2", "llama3", "qwen3"}) {
    const std::string folder = std::string(ONEFOLD_GOLDEN_DIR) + "/hf/" + name;
    const SafetensorsFile expected(folder + "/expected.safetensors");
    std::vector<int32_t> tokens(static_cast<size_t>(expected.entry("tokens").elems()));
    expected.read("tokens", std::span<int32_t>(tokens));
    std::vector<float> logits(static_cast<size_t>(expected.entry("logits").elems()));
    expected.read("logits", std::span<float>(logits));
    const auto source = std::make_shared<HfSource>(folder);
    const auto vocabulary = static_cast<size_t>(source->model().vocab_size);
    const auto length = static_cast<size_t>(expected.entry("tokens").shape.at(1));
    std::vector<ScoredText> texts;
    std::vector<TextScore> wanted;
    for (size_t row = 0; row < tokens.size() / length; ++row) {
      for (size_t given = 1; given < length; given += 4) {
        const auto begin = tokens.begin() + static_cast<ptrdiff_t>(row * length);
        std::vector<float> next(
            logits.begin() + static_cast<ptrdiff_t>((row * length + given - 1) * vocabulary),
            logits.begin() + static_cast<ptrdiff_t>((row * length + given) * vocabulary));
        const int32_t best = pick_token(next, {.temperature = 0}, 0);
        log_softmax(next);
        for (const int32_t token : {best, (best + 1) % static_cast<int32_t>(vocabulary)}) {
          ScoredText text{.tokens = {begin, begin + static_cast<ptrdiff_t>(given)}, .given = given};
          text.tokens.push_back(token);
          texts.push_back(text);
          wanted.push_back({next[static_cast<size_t>(token)], token == best});
        }
      }
    }
    EngineOptions options{.threads = 1,
                          .micro_batch = 4,
                          .sequence = static_cast<int64_t>(length),
                          .training = false};
    options.initial = reader_of(source);
    Engine engine(source->model(), options);
    const std::vector<TextScore> scores = score_texts(engine, texts);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i].log_probability, wanted[i].log_probability, 2e-5) << name << i;
      EXPECT_EQ(scores[i].likeliest, wanted[i].likeliest) << name << i;
    }
  }
}

TEST(EvaluationGolden, WeightsThatAreNotFiniteAreNamed) {
  const ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  EngineOptions options{.threads = 1, .sequence = 8, .training = false};
  options.initial = [](const ParamSpec&, int64_t, std::span<float> dst) {
    std::fill(dst.begin(), dst.end(), NAN);
  };
  Engine engine(spec, options);
  const std::vector<ScoredText> texts = {{.tokens = {1, 2, 3}, .given = 1}};
  EXPECT_ERROR(score_texts(engine, texts), "not finite");
}

}  // namespace
}  // namespace onefold

// Frequencies that change where a text grows beyond the original context: its past is computed
// again, however it was fed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/decoder.h"
#include "engine/support.h"

namespace onefold {
namespace {

constexpr int64_t kOriginal = 9, kCapacity = 24;

class LongRope : public testing::Test {
 protected:
  static ModelSpec spec() {
    ModelSpec spec = spec_from_preset("llama-tiny", "test");
    const auto pairs = static_cast<size_t>(spec.rotary_size() / 2);
    spec.rope_scaling.type = RopeScaling::Type::longrope;
    spec.rope_scaling.factor = 4;
    spec.rope_scaling.original_max_sequence_length = kOriginal;
    spec.rope_scaling.short_factor.assign(pairs, 1.0);
    spec.rope_scaling.long_factor.assign(pairs, 3.0);
    spec.init_std = 0.5f;  // so that scores differ
    spec.complete("test");
    return spec;
  }

  // The logits after the first `count` tokens, fed in pieces.
  std::vector<float> logits_after(int64_t count, int64_t piece) {
    Decoder decoder(engine_, 1, kCapacity);
    feed(decoder, 0, count, piece);
    return logits_of(decoder);
  }
  static void feed(Decoder& decoder, int64_t from, int64_t to, int64_t piece) {
    for (int64_t at = from; at < to; at += piece) {
      std::vector<int32_t> tokens;
      for (int64_t i = at; i < std::min(to, at + piece); ++i)
        tokens.push_back(static_cast<int32_t>((7 * i * i + 3) % 263));
      decoder.feed(tokens);
    }
  }
  static std::vector<float> logits_of(Decoder& decoder) {
    return {decoder.logits(0).begin(), decoder.logits(0).end()};
  }
  static double apart(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max<double>(most, std::abs(a[i] - b[i]));
      largest = std::max<double>(largest, std::abs(a[i]));
    }
    return most / largest;
  }

  Engine engine_{spec(),
                 {.threads = 1,
                  .micro_batch = 1,
                  .sequence = 4,  // the most that is fed at once
                  .positions = kCapacity,
                  .training = false}};
};

TEST_F(LongRope, TheWholePastIsThatOfALongSequence) {
  for (const int64_t count : {kOriginal, kOriginal + 1, kOriginal + 6}) {
    const std::vector<float> one_by_one = logits_after(count, 1);
    EXPECT_LE(apart(one_by_one, logits_after(count, 4)), 1e-5) << count;
    EXPECT_LE(apart(one_by_one, logits_after(count, 3)), 1e-5) << count;
  }
  // The last token before the switch, with the past of a short sequence and of a long one.
  Decoder decoder(engine_, 1, kCapacity);
  feed(decoder, 0, kOriginal + 1, 2);
  decoder.keep(kOriginal - 1);
  feed(decoder, kOriginal - 1, kOriginal, 1);
  EXPECT_LE(apart(logits_of(decoder), logits_after(kOriginal, 1)), 1e-5);
}

TEST_F(LongRope, APastThatIsTakenOverKnowsItsTokens) {
  Decoder first(engine_, 1, kCapacity), second(engine_, 2, kCapacity);
  feed(first, 0, kOriginal, 3);
  const std::vector<int64_t> sources = {0, 0};
  second.take_past(first, sources);
  const auto token = static_cast<int32_t>((7 * kOriginal * kOriginal + 3) % 263);
  second.feed(std::vector<int32_t>{token, token});
  const std::vector<float> wanted = logits_after(kOriginal + 1, 1);
  for (const int64_t b : {0, 1}) {
    const std::span<float> logits = second.logits(b);
    EXPECT_LE(apart(wanted, {logits.begin(), logits.end()}), 1e-5) << b;
  }
}

TEST_F(LongRope, BothListsOfFactorsMatter) {
  ModelSpec other = spec();
  other.rope_scaling.long_factor = other.rope_scaling.short_factor;
  Engine plain(other, engine_.options());
  const auto after = [](Engine& engine, int64_t count) {
    Decoder decoder(engine, 1, kCapacity);
    feed(decoder, 0, count, 2);
    return logits_of(decoder);
  };
  EXPECT_EQ(after(engine_, kOriginal), after(plain, kOriginal));
  EXPECT_GT(apart(after(engine_, kOriginal + 1), after(plain, kOriginal + 1)), 1e-3);
}

}  // namespace
}  // namespace onefold

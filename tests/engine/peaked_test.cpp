// Gradients where softmax is peaked: logits differ by tens, as those of a trained model do and
// those of initial weights do not. A way of multiplying matrices whose errors grow with the largest
// operands of a row, and not with the products, passes the parity tests and is off by percents
// here.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/support.h"

namespace onefold {
namespace {

using Doubles = std::vector<double>;

constexpr double kTolerance = 1e-5;

// A tied GPT-2 whose block adds nothing to what it is given, as its last weights are zero: the head
// sees token + position, and a reference in double is short. The larger the positions, the less the
// token itself stands out among the logits.
struct Peaked {
  static constexpr int64_t kBatch = 2, kSequence = 128, kTokens = kBatch * kSequence;
  static constexpr int64_t kHidden = 384, kVocabulary = 1009;

  test::OwnedBatch batch = test::random_batch(kBatch, kSequence, kVocabulary, 1);
  test::Weights weights;

  static ModelSpec spec() {
    ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
    spec.hidden_size = kHidden;
    spec.vocab_size = kVocabulary;
    spec.num_layers = 1;
    spec.num_heads = spec.num_kv_heads = 6;
    spec.head_dim = kHidden / 6;
    spec.intermediate_size = 4 * kHidden;
    spec.max_sequence_length = kSequence;
    spec.complete("test");
    return spec;
  }

  void initialize(Engine& engine, float positions) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    test::change_weights(engine, [&](const ParamSpec& param, std::span<float> values) {
      const auto fill = [&](float deviation) {
        for (float& value : values) value = deviation * normal(random);
      };
      if (param.name == "embedding.tokens") fill(0.5f);
      if (param.name == "embedding.positions") fill(positions);
      if (param.name.ends_with("out.weight") || param.name.ends_with("down.weight")) fill(0);
    });
    weights = test::weights_of(engine);
  }
};

// The gradients of the mean loss, in double, by name.
class Reference {
 public:
  explicit Reference(const Peaked& model) : m_(model) {
    for (const char* name : {"embedding.tokens", "embedding.positions", "head.norm.weight",
                             "head.norm.bias", "block.0.mlp.down.bias"})
      gradients[name].resize(m_.weights.at(name).size());
    for (int64_t token = 0; token < Peaked::kTokens; ++token) add(token);
    loss /= Peaked::kTokens;
  }

  double loss = 0;
  std::map<std::string, Doubles> gradients;

 private:
  static constexpr size_t d = Peaked::kHidden, kWords = Peaked::kVocabulary;

  void add(int64_t index) {
    const auto token = static_cast<size_t>(m_.batch.tokens[static_cast<size_t>(index)]),
               target = static_cast<size_t>(m_.batch.targets[static_cast<size_t>(index)]),
               position = static_cast<size_t>(index % Peaked::kSequence);
    const std::vector<float>&table = m_.weights.at("embedding.tokens"),
          &positions = m_.weights.at("embedding.positions");
    Doubles &dtable = gradients["embedding.tokens"], &dpositions = gradients["embedding.positions"];
    Doubles x(d), normed(d), dnormed(d), p(kWords);
    double mean = 0, variance = 0, largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < d; ++i)
      x[i] = double{table[token * d + i]} + positions[position * d + i];
    for (const double value : x) mean += value / d;
    for (const double value : x) variance += (value - mean) * (value - mean) / d;
    const double scale = 1 / std::sqrt(variance + double{Peaked::spec().norm_eps});
    for (size_t i = 0; i < d; ++i) normed[i] = (x[i] - mean) * scale;  // weight 1, bias 0
    for (size_t word = 0; word < kWords; ++word) {
      for (size_t i = 0; i < d; ++i) p[word] += normed[i] * table[word * d + i];
      largest = std::max(largest, p[word]);
    }
    for (const double logit : p) sum += std::exp(logit - largest);
    loss += largest + std::log(sum) - p[target];
    for (size_t word = 0; word < kWords; ++word) {
      const double gradient =
          (std::exp(p[word] - largest) / sum - (word == target)) / Peaked::kTokens;
      for (size_t i = 0; i < d; ++i) {
        dtable[word * d + i] += gradient * normed[i];
        dnormed[i] += gradient * table[word * d + i];
      }
    }
    double along_ones = 0, along_normed = 0;
    for (size_t i = 0; i < d; ++i) {
      gradients["head.norm.weight"][i] += dnormed[i] * normed[i];
      gradients["head.norm.bias"][i] += dnormed[i];
      along_ones += dnormed[i] / d;
      along_normed += dnormed[i] * normed[i] / d;
    }
    for (size_t i = 0; i < d; ++i) {
      const double dx = scale * (dnormed[i] - along_ones - normed[i] * along_normed);
      gradients["block.0.mlp.down.bias"][i] += dx;
      dtable[token * d + i] += dx;
      dpositions[position * d + i] += dx;
    }
  }

  const Peaked& m_;
};

class PeakedLogits : public testing::TestWithParam<float> {};

TEST_P(PeakedLogits, GradientsAgreeWithDoublePrecision) {
  Peaked model;
  Engine engine(Peaked::spec(), {.threads = 2,
                                 .micro_batch = Peaked::kBatch,
                                 .sequence = Peaked::kSequence,
                                 .keep_gradients = true});
  model.initialize(engine, GetParam());
  const Reference reference(model);
  EXPECT_GT(reference.loss, 40);  // peaked, and not at the target
  const std::vector<BatchView> micros = {model.batch.view()};
  EXPECT_NEAR(engine.train_step(micros, 0.0).loss, reference.loss, 1e-6 * reference.loss);
  size_t checked = 0;
  test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> gradient) {
    const auto found = reference.gradients.find(param.name);
    if (found == reference.gradients.end()) return;
    const Doubles& expected = found->second;
    ASSERT_EQ(expected.size(), gradient.size()) << param.name;
    double largest = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(gradient[i] - expected[i]));
    }
    EXPECT_LE(worst, kTolerance * largest)
        << param.name << ": off by " << worst / largest << " of its largest element";
    RecordProperty(param.name, fmt::format("{:.1e}", worst / largest));
    ++checked;
  });
  EXPECT_EQ(checked, reference.gradients.size());
}

INSTANTIATE_TEST_SUITE_P(Positions, PeakedLogits, testing::Values(1.0f, 2.0f),
                         [](const auto& info) { return fmt::format("{:.0f}", info.param); });

}  // namespace
}  // namespace onefold

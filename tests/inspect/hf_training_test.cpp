// Models of every family train as transformers trains them, in double, and go on with the same
// tokens. tests/golden/README.md says how the golden folders were made. ONEFOLD_HF_GOLDENS names
// others, which tests/golden/check_families.py makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "engine/decoder.h"
#include "engine/support.h"
#include "inspect/hf_source.h"
#include "inspect/parameter_source.h"

namespace onefold {
namespace {

std::string golden_root() {
  const char* const others = std::getenv("ONEFOLD_HF_GOLDENS");
  return others ? others : ONEFOLD_GOLDEN_DIR;
}

// Cases that have gradients.
std::vector<std::string> cases() {
  std::vector<std::string> names;
  std::error_code missing;  // then there are none, which fails
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_root() + "/hf_gradients", missing))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class HfTraining : public testing::TestWithParam<std::string> {
 protected:
  std::vector<int32_t> golden_ints(const char* name) const {
    std::vector<int32_t> values(static_cast<size_t>(expected_.entry(name).elems()));
    expected_.read(name, std::span<int32_t>(values));
    return values;
  }
  std::vector<float> golden_floats(const char* name) const {
    std::vector<float> values(static_cast<size_t>(expected_.entry(name).elems()));
    expected_.read(name, std::span<float>(values));
    return values;
  }

  // An engine of the golden weights for its micro-batches.
  std::unique_ptr<Engine> opened(EngineOptions options) const {
    options.device = test::test_device_name();
    options.threads = 1;
    const auto source = std::make_shared<HfSource>(folder_);
    auto engine = std::make_unique<Engine>(source->model(), options);
    engine->state().write_parameters(reader_of(source));
    return engine;
  }
  EngineOptions batch_options() const {
    EngineOptions options;
    options.micro_batch = expected_.entry("tokens").shape.at(0);
    options.sequence = expected_.entry("tokens").shape.at(1);
    return options;
  }

  std::string folder_ = golden_root() + "/hf/" + GetParam();
  SafetensorsFile expected_{folder_ + "/expected.safetensors"};
};

// The difference is relative to the parameter's largest gradient: an element that is nearly zero by
// cancellation has no relative accuracy of its own in fp32.
TEST_P(HfTraining, EveryGradientIsThatOfTransformers) {
  EngineOptions options = batch_options();
  options.keep_gradients = true;
  const auto engine = opened(options);
  test::OwnedBatch batch{.tokens = golden_ints("tokens"),
                         .targets = golden_ints("targets"),
                         .batch = options.micro_batch,
                         .sequence = options.sequence};
  batch.samples.resize(static_cast<size_t>(batch.batch));
  const std::vector<BatchView> micros = {batch.view()};
  const double loss = golden_floats("loss")[0];
  EXPECT_NEAR(engine->train_step(micros, 0.0).loss, loss, 1e-5 * loss);
  const HfSource gradients(golden_root() + "/hf_gradients/" + GetParam());
  int checked = 0;
  double worst_of_all = 0;
  test::for_each_gradient(*engine, [&](const ParamSpec& param, std::span<const float> gradient) {
    std::vector<float> wanted(gradient.size());
    gradients.read(param, 0, wanted);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
      worst = std::max(worst, std::abs(static_cast<double>(gradient[i]) - wanted[i]));
    }
    EXPECT_LE(worst, 1e-5 * largest) << param.name << ": off by " << worst / largest;
    worst_of_all = std::max(worst_of_all, worst / largest);
    ++checked;
  });
  RecordProperty("worst_gradient_error", fmt::format("{:.1e}", worst_of_all));
  EXPECT_EQ(checked, static_cast<int>(parameters_of(engine->model().spec).size()));
}

TEST_P(HfTraining, TenStepsOfAdamWFollowTransformers) {
  EngineOptions options = batch_options();
  options.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  options.clipping = 1.0;
  const auto engine = opened(options);
  const std::vector<int32_t> all = golden_ints("batches");
  const std::vector<float> losses = golden_floats("losses");
  const auto length = static_cast<size_t>(options.sequence);
  auto next = all.begin();
  double worst = 0;
  for (const float wanted : losses) {
    test::OwnedBatch batch{.batch = options.micro_batch, .sequence = options.sequence};
    for (int64_t b = 0; b < options.micro_batch; ++b) {
      batch.tokens.insert(batch.tokens.end(), next, next + options.sequence);
      batch.targets.insert(batch.targets.end(), next + 1, next + 1 + options.sequence);
      next += static_cast<int64_t>(length) + 1;
    }
    batch.samples.resize(static_cast<size_t>(batch.batch));
    const std::vector<BatchView> micros = {batch.view()};
    const double loss = engine->train_step(micros, 1e-3).loss;
    EXPECT_NEAR(loss, wanted, 1e-5 * wanted);
    worst = std::max(worst, std::abs(loss - wanted) / wanted);
  }
  RecordProperty("worst_loss_error", fmt::format("{:.1e}", worst));
  EXPECT_EQ(losses.size(), 10u);
}

// Through the cache: the prompt at once, in two pieces, and token by token.
TEST_P(HfTraining, SixtyFourTokensAreThoseOfTransformers) {
  const std::vector<int32_t> wanted = golden_ints("generated");
  constexpr size_t kGenerated = 64;
  const size_t prompt = wanted.size() - kGenerated;
  const auto length = static_cast<int64_t>(wanted.size());
  const auto engine = opened({.micro_batch = 1, .sequence = length, .training = false});
  for (const size_t first : {prompt, size_t{3}, size_t{1}}) {
    Decoder decoder(*engine, 1, length);
    std::vector<int32_t> tokens(wanted.begin(), wanted.begin() + static_cast<int64_t>(prompt));
    decoder.feed(std::span(tokens).first(first));
    if (first < prompt) decoder.feed(std::span(tokens).subspan(first));
    while (tokens.size() < wanted.size()) {
      const std::span<float> logits = decoder.logits(0);
      tokens.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      decoder.feed({&tokens.back(), 1});
    }
    EXPECT_EQ(tokens, wanted) << "a prompt that begins with " << first;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HfTraining, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace onefold

// What the engine's tests share: tiny models, random batches, and a copy of all weights to compare.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <functional>

#include "engine/engine.h"
#include "sanitized.h"

namespace onefold::test {

// The device that is tested where a test is for any: ONEFOLD_TEST_DEVICE, or the CPU.
inline std::string test_device_name() {
  const char* name = std::getenv("ONEFOLD_TEST_DEVICE");
  return name ? name : "cpu";
}

// What plans of this machine's processor are made for, and of the device that is tested.
inline Hardware this_processor() { return {.multiplies_bf16 = cpu_multiplies_bf16()}; }
inline Hardware test_hardware() {
  return test_device_name() == "cpu" ? this_processor() : hardware_named("h200");
}

// Which combinations of a large matrix a test takes: all; under a sanitizer, which looks at how
// memory is used and not for bits, one of four.
class Combinations {
 public:
  bool take() { return !kSanitized || next_++ % 4 == 0; }

 private:
  int next_ = 0;
};

// A gradient of f32 is infinite from here on, as computation has left it.
inline void break_gradient(Engine& engine, int unit) {
  Device& device = engine.device();
  device.compute().wait(device.compute().mark().number);
  const float infinite = INFINITY;
  upload(device, std::span(&infinite, 1),
         std::as_const(engine).state().unit(unit).gradient_shard().flat().col_range(0, 1));
}

// A micro-batch that owns its tokens.
struct OwnedBatch {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> samples;
  std::vector<int32_t> starts = {};
  int64_t batch, sequence;

  BatchView view() const {
    return {.tokens = tokens,
            .targets = targets,
            .samples = samples,
            .starts = starts,
            .batch = batch,
            .sequence = sequence};
  }
};

inline OwnedBatch random_batch(int64_t batch, int64_t sequence, int64_t vocabulary, uint64_t seed) {
  OwnedBatch b{.batch = batch, .sequence = sequence};
  for (int64_t i = 0; i < batch * sequence; ++i) {
    const PhiloxWords words =
        philox(philox_key(seed, Draw::test), {static_cast<uint32_t>(i), 0, 0, 0});
    b.tokens.push_back(static_cast<int32_t>(words[0] % static_cast<uint32_t>(vocabulary)));
    b.targets.push_back(static_cast<int32_t>(words[1] % static_cast<uint32_t>(vocabulary)));
  }
  for (int64_t i = 0; i < batch; ++i) b.samples.push_back(static_cast<int64_t>(seed) * batch + i);
  return b;
}

// Rows number index * micro_batch and on of an endless stream: the same rows however a batch is
// divided. With documents, two in each row.
inline OwnedBatch random_rows(int64_t index, const EngineOptions& options, int64_t vocabulary) {
  OwnedBatch all{.batch = options.micro_batch, .sequence = options.sequence};
  for (int64_t row = 0; row < options.micro_batch; ++row) {
    const int64_t sample = index * options.micro_batch + row;
    const OwnedBatch one =
        random_batch(1, options.sequence, vocabulary, static_cast<uint64_t>(sample));
    all.tokens.insert(all.tokens.end(), one.tokens.begin(), one.tokens.end());
    all.targets.insert(all.targets.end(), one.targets.begin(), one.targets.end());
    all.samples.push_back(sample);
    if (!options.documents) continue;
    const int64_t second = sample % options.sequence;
    for (int64_t place = 0; place < options.sequence; ++place)
      all.starts.push_back(static_cast<int32_t>(place < second ? 0 : second));
  }
  return all;
}

using Weights = std::map<std::string, std::vector<float>>;

// All ranks together, as the three below.
inline void for_each_parameter(Engine& engine, const RankState::VisitWhole& visit) {
  engine.state().for_each_parameter(engine.channel(Lane::gather), visit);
}
inline void for_each_gradient(Engine& engine, const RankState::VisitWhole& visit) {
  engine.state().for_each_gradient(engine.channel(Lane::gather), visit);
}

inline Weights weights_of(Engine& engine) {
  Weights weights;
  for_each_parameter(engine, [&](const ParamSpec& param, std::span<const float> values) {
    weights[param.name].assign(values.begin(), values.end());
  });
  return weights;
}

// Lets `change` rewrite each parameter, whole.
inline void change_weights(Engine& engine,
                           const std::function<void(const ParamSpec&, std::span<float>)>& change) {
  Weights changed = weights_of(engine);
  for (const ParamSpec& param : parameters_of(engine.model().spec))
    change(param, changed[param.name]);
  engine.state().write_parameters([&](const ParamSpec& param, int64_t first, std::span<float> dst) {
    const std::vector<float>& values = changed.at(param.name);
    std::copy_n(values.begin() + first, dst.size(), dst.begin());
  });
}

inline void expect_same_bits(const Weights& a, const Weights& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const std::vector<float>& other = b.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
  }
}

// A few steps on random batches; returns the losses.
inline std::vector<double> train(Engine& engine, int steps, double learning_rate = 1e-3) {
  std::vector<double> losses;
  const EngineOptions& o = engine.options();
  for (int step = 0; step < steps; ++step) {
    std::vector<OwnedBatch> batches;
    for (int micro = 0; micro < o.micros; ++micro)
      batches.push_back(random_batch(o.micro_batch, o.sequence, engine.model().spec.vocab_size,
                                     static_cast<uint64_t>(step * o.micros + micro)));
    std::vector<BatchView> views;
    for (OwnedBatch& batch : batches) views.push_back(batch.view());
    losses.push_back(engine.train_step(views, learning_rate).loss);
  }
  return losses;
}

}  // namespace onefold::test

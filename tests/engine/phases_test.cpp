// Units are lists of phases: cutting a step into them, or leaving gradients of weights for later,
// changes no bit.
#include <gtest/gtest.h>

#include "engine/executor.h"
#include "engine/support.h"

namespace onefold {
namespace {

ModelSpec spec_of(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  spec.dropout = 0.1f;
  return spec;
}

// One unit on the CPU, with everything that a call needs.
class Bench {
 public:
  Bench(const ModelSpec& spec, const Unit& unit)
      : spec_(spec),
        unit_(unit),
        device_(open_device("cpu", 1)),
        memory_(*device_->memory(Tier::device)),
        arena_(memory_.allocate(Kind::workspace, 1 << 24, "arena")) {
    for (const ParamSpec& param : unit.params()) {
      params_.push_back(tensor(param.rows, param.cols, 1));
      grads_.push_back(tensor(param.rows, param.cols, 2));
    }
    batch_.batch = kBatch;
    batch_.sequence = kSequence;
    samples_ = memory_.allocate(Kind::data, kBatch * 8, "samples");
    batch_.samples = samples_.as(1, kBatch, DType::i64);
    const std::vector<int64_t> ids = {3, 4};
    upload(*device_, std::span<const int64_t>(ids), batch_.samples);
    rope_ = tensor(kSequence, spec.rope_cols(), 3);
    input_ = tensor(kBatch * kSequence, spec.hidden_size, 4);
    saved_ = memory_.allocate(Kind::activations, unit.saved_bytes(kBatch, kSequence, DType::f32),
                              "saved");
    output_ = tensor(kBatch * kSequence, spec.hidden_size, 5);
    doutput_ = tensor(kBatch * kSequence, spec.hidden_size, 6);
    dinput_ = tensor(kBatch * kSequence, spec.hidden_size, 7);
  }

  // Forward, then the phases of backward in this order; returns all gradients.
  std::vector<float> run(const std::vector<int>& order, bool in_place) {
    {
      UnitCall call = make_call();
      call.output = output_;
      const Arena::Scope scope(arena_);
      unit_.forward(call);
    }
    UnitCall call = make_call();
    call.grads = grads_;
    Tensor doutput = tensor(doutput_.rows, doutput_.cols, 6);  // fresh: in place destroys it
    call.doutput = doutput;
    call.dinput = in_place ? doutput : dinput_;
    const Arena::Scope scope(arena_);
    for (const int phase : order) unit_.run(true, phase, call);
    std::vector<float> all(call.dinput.f32(), call.dinput.f32() + call.dinput.elems());
    for (const Tensor& grad : grads_) all.insert(all.end(), grad.f32(), grad.f32() + grad.elems());
    return all;
  }

 private:
  static constexpr int64_t kBatch = 2, kSequence = 7;

  Tensor tensor(int64_t rows, int64_t cols, uint64_t seed) {
    buffers_.push_back(memory_.allocate(Kind::workspace, rows * cols * 4, "test"));
    const Tensor made = buffers_.back().as(rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i)
      made.f32()[i] = philox_normal(philox_key(seed, Draw::test), static_cast<uint64_t>(i));
    return made;
  }
  UnitCall make_call() {
    UnitCall call{
        .kernels = device_->kernels(), .arena = arena_, .batch = batch_, .params = params_};
    call.input = input_;
    call.saved = saved_.as(1, saved_.bytes(), DType::u8);
    call.rope = rope_;
    call.dropout = spec_.dropout;
    call.seed = 1;
    return call;
  }

  const ModelSpec& spec_;
  const Unit& unit_;
  std::unique_ptr<Device> device_;
  Ledger memory_;
  Arena arena_;
  std::vector<Buffer> buffers_;
  Buffer samples_, saved_;
  UnitBatch batch_;
  std::vector<Tensor> params_, grads_;
  Tensor rope_, input_, output_, doutput_, dinput_;
};

class Phases : public testing::TestWithParam<std::string> {};

TEST_P(Phases, GradientsOfWeightsMayComeAfterTheGradientOfTheInput) {
  const ModelSpec spec = spec_of(GetParam());
  const Model model(spec);
  int compared = 0;
  for (const auto& unit : model.units) {
    if (unit->is_first() || unit->has_loss()) continue;
    const int count = unit->phases(true, 14);
    std::vector<int> plain, later, weights;
    for (int i = 0; i < count; ++i) {
      plain.push_back(i);
      (unit->phase(true, i, 14).by_weights ? weights : later).push_back(i);
    }
    EXPECT_GE(weights.size(), 2u) << unit->name();
    later.insert(later.end(), weights.begin(), weights.end());
    Bench bench(spec, *unit);
    const std::vector<float> expected = bench.run(plain, true);
    EXPECT_EQ(expected, bench.run(plain, false)) << unit->name() << ", beside";
    EXPECT_EQ(expected, bench.run(later, false)) << unit->name() << ", weights last";
    ++compared;
  }
  EXPECT_EQ(compared, std::ssize(model.units) - 2);
}

// Every phase after which something would travel names a tensor.
TEST_P(Phases, WhatWouldTravelIsNamed) {
  const Model model(spec_of(GetParam()));
  int sums = 0;
  for (const auto& unit : model.units)
    for (const bool backward : {false, true})
      for (int i = 0; i < unit->phases(backward, 14); ++i)
        sums += unit->phase(backward, i, 14).role == Role::sum;
  // Each half of a block forward and backward, the table's look-up, and the head's gradient.
  EXPECT_EQ(sums, 4 * model.spec.num_layers + 2);
}

TEST_P(Phases, AStepCutIntoPhasesKeepsTheBitsAndThePeak) {
  const ModelSpec spec = spec_of(GetParam());
  for (const bool recomputes : {false, true}) {
    EngineOptions options{
        .threads = 1, .micro_batch = 2, .sequence = 13, .micros = 2, .clipping = 1.0};
    options.recompute = recomputes;
    Engine whole(spec, options);
    options.split_phases = true;
    Engine cut(spec, options);
    EXPECT_EQ(test::train(whole, 3), test::train(cut, 3));
    test::expect_same_bits(test::weights_of(whole), test::weights_of(cut));
    EXPECT_EQ(whole.ledger().peak_bytes(), cut.ledger().peak_bytes());
    EXPECT_EQ(Engine::plan(spec, options, 1, 0, test::this_processor())->ledger().peak_bytes(),
              cut.ledger().peak_bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Phases,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny",
                                         "gemma-tiny", "olmo2-tiny", "neox-tiny", "gptj-tiny",
                                         "bloom-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace onefold

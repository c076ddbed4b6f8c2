// Mixtures of experts: a unit against a dense oracle in double, what is dropped, and a training
// whose bits do not depend on how state is divided, as planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/scratch.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using Numbers = std::vector<double>;

ModelSpec small_mixture(const std::string& experts) {
  return spec_from_json(
      parse_json(R"({"vocab_size": 37, "hidden_size": 12, "num_layers": 1, "num_heads": 2,
        "max_sequence_length": 32, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu",
        "intermediate_size": 9, "experts": )" +
                     experts + "}",
                 "test"),
      "test");
}

// Everything that the unit of a mixture needs, and what it computes.
class MixtureBench {
 public:
  static constexpr int64_t kBatch = 2, kSequence = 4, kTokens = kBatch * kSequence;

  explicit MixtureBench(const ModelSpec& spec, bool training = true)
      : spec_(spec),
        unit_(make_mlp(spec, 0)),
        device_(open_device("cpu", 2)),
        memory_(*device_->memory(Tier::device)),
        arena_(memory_.allocate(Kind::workspace, 1 << 22, "arena")),
        training_(training) {
    for (const ParamSpec& param : unit_->params()) {
      // Weights of a norm near 1, matrices that keep the size of rows.
      const bool norm = !param.decay;
      params_.push_back(tensor(param.rows, param.cols, norm ? 0.2f : 0.3f, norm ? 1.0f : 0.0f));
      grads_.push_back(tensor(param.rows, param.cols, 1, 0));
    }
    input_ = tensor(kTokens, spec.hidden_size, 1, 0);
    doutput_ = tensor(kTokens, spec.hidden_size, 1, 0);
    output_ = tensor(kTokens, spec.hidden_size, 1, 0);
    dinput_ = tensor(kTokens, spec.hidden_size, 1, 0);
    load_ = memory_.allocate(Kind::workspace, load_elems(spec.experts.count) * 8, "load");
    scale_ = tensor(1, 1, 0, 1);
    batch_.batch = kBatch;
    batch_.sequence = kSequence;
  }

  void run() {
    const Buffer saved = memory_.allocate(
        Kind::activations, unit_->saved_bytes(kBatch, kSequence, DType::f32), "saved");
    UnitCall call{
        .kernels = device_->kernels(), .arena = arena_, .batch = batch_, .params = params_};
    call.input = input_;
    call.saved = saved.as(1, saved.bytes(), DType::u8);
    call.output = output_;
    call.training = training_;
    {
      const Arena::Scope scope(arena_);
      unit_->forward(call);
    }
    call.temps = {};
    call.grads = grads_;
    call.doutput = doutput_;
    call.dinput = dinput_;
    call.router_scale = scale_;
    call.load = load_.as(1, load_elems(spec_.experts.count), DType::f64);
    std::fill_n(call.load.f64(), call.load.elems(), 0.0);
    const Arena::Scope scope(arena_);
    unit_->backward(call);
  }

  Tensor& param(const std::string& end) { return params_[place(end)]; }
  Tensor grad(const std::string& end) const { return grads_[place(end)]; }
  const std::vector<ParamSpec>& specs() const { return unit_->params(); }
  const std::vector<Tensor>& params() const { return params_; }
  const std::vector<Tensor>& grads() const { return grads_; }
  Tensor input() const { return input_; }
  Tensor output() const { return output_; }
  Tensor doutput() const { return doutput_; }
  Tensor dinput() const { return dinput_; }

 private:
  size_t place(const std::string& end) const {
    for (size_t i = 0; i < unit_->params().size(); ++i)
      if (unit_->params()[i].name.ends_with(end)) return i;
    internal_error("no parameter {}", end);
  }
  Tensor tensor(int64_t rows, int64_t cols, float scale, float mean) {
    buffers_.push_back(memory_.allocate(Kind::workspace, rows * cols * 4, "test"));
    const Tensor made = buffers_.back().as(rows, cols);
    const PhiloxKey key = philox_key(buffers_.size(), Draw::test);
    for (int64_t i = 0; i < rows * cols; ++i)
      made.f32()[i] = mean + scale * philox_normal(key, static_cast<uint64_t>(i));
    return made;
  }

  const ModelSpec& spec_;
  std::unique_ptr<Unit> unit_;
  std::unique_ptr<Device> device_;
  Ledger memory_;
  Arena arena_;
  const bool training_;
  std::vector<Buffer> buffers_;
  Buffer load_;
  UnitBatch batch_;
  std::vector<Tensor> params_, grads_;
  Tensor input_, output_, doutput_, dinput_, scale_;
};

Numbers numbers_of(const Tensor& x) { return Numbers(x.f32(), x.f32() + x.elems()); }

// The unit in double: every expert computes every token, and weights say what counts.
class DenseOracle {
 public:
  DenseOracle(const ModelSpec& spec, const std::vector<ParamSpec>& specs,
              const std::vector<Tensor>& params, const Tensor& input)
      : spec_(spec), d_(static_cast<size_t>(spec.hidden_size)) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string& name = specs[i].name;
      values[name.substr(name.find('.', 6) + 1)] = numbers_of(params[i]);
    }
    values["input"] = numbers_of(input);
  }

  Numbers output() const {
    const Numbers& input = values.at("input");
    const size_t tokens = input.size() / d_;
    const auto experts = static_cast<size_t>(spec_.experts.count);
    std::vector<int64_t> taken(experts);
    const int64_t capacity = spec_.experts.capacity(static_cast<int64_t>(tokens));
    Numbers all;
    for (size_t t = 0; t < tokens; ++t) {
      const Numbers x = normed(&input[t * d_]);
      Numbers sum(&input[t * d_], &input[t * d_] + d_);
      const Numbers weights = weights_of(x, capacity, taken);
      for (size_t e = 0; e < experts; ++e)
        add(sum, weights[e], mlp(x, "mlp.experts", e, spec_.experts.intermediate_size));
      if (spec_.experts.shared_intermediate_size > 0) {
        double gate = 1;
        if (spec_.experts.shared_gate)
          gate = 1 / (1 + std::exp(-dot(&values.at("mlp.shared_gate.weight")[0], x)));
        add(sum, gate, mlp(x, "mlp.shared", 0, spec_.experts.shared_intermediate_size));
      }
      all.insert(all.end(), sum.begin(), sum.end());
    }
    return all;
  }

  std::map<std::string, Numbers> values;

 private:
  double dot(const double* row, const Numbers& x) const {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += row[i] * x[i];
    return sum;
  }
  static void add(Numbers& sum, double weight, const Numbers& x) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * x[i];
  }
  Numbers normed(const double* x) const {
    double square = 0;
    for (size_t i = 0; i < d_; ++i) square += x[i] * x[i] / static_cast<double>(d_);
    Numbers y;
    for (size_t i = 0; i < d_; ++i)
      y.push_back(x[i] / std::sqrt(square + double{spec_.norm_eps}) *
                  values.at("mlp_norm.weight")[i]);
    return y;
  }
  Numbers weights_of(const Numbers& x, int64_t capacity, std::vector<int64_t>& taken) const {
    const ExpertSpec& of = spec_.experts;
    const auto experts = static_cast<size_t>(of.count);
    Numbers logits, scores(experts), weights(experts);
    for (size_t e = 0; e < experts; ++e)
      logits.push_back(dot(&values.at("mlp.router.weight")[e * d_], x));
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    for (size_t e = 0; e < experts; ++e)
      scores[e] = of.scores == RouterScores::softmax ? std::exp(logits[e]) / sum
                                                     : 1 / (1 + std::exp(-logits[e]));
    std::vector<size_t> order(experts);
    for (size_t e = 0; e < experts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    order.resize(static_cast<size_t>(of.per_token));
    double chosen = 0;
    for (const size_t e : order) chosen += scores[e];
    for (const size_t e : order) {
      const bool kept = capacity == 0 || taken[e] < capacity;
      ++taken[e];
      if (kept) weights[e] = of.normalised ? scores[e] / chosen : scores[e];
    }
    return weights;
  }
  Numbers mlp(const Numbers& x, const std::string& name, size_t number, int64_t width) const {
    const auto n = static_cast<size_t>(width);
    const double* up = &values.at(name + ".up.weight")[number * 2 * n * d_];
    const double* down = &values.at(name + ".down.weight")[number * d_ * n];
    Numbers activated, y;
    for (size_t i = 0; i < n; ++i) {
      const double gate = dot(up + i * d_, x);
      activated.push_back(gate / (1 + std::exp(-gate)) * dot(up + (n + i) * d_, x));
    }
    for (size_t i = 0; i < d_; ++i) y.push_back(dot(down + i * n, activated));
    return y;
  }

  const ModelSpec& spec_;
  const size_t d_;
};

// Within 1e-6 of the largest element; central differences err by less than a hundredth of that.
void expect_close(const std::string& name, const Tensor& actual, const Numbers& expected) {
  ASSERT_EQ(static_cast<size_t>(actual.elems()), expected.size()) << name;
  double largest = 0, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(double{actual.f32()[i]} - expected[i]));
  }
  EXPECT_GT(largest, 0) << name;
  EXPECT_LE(worst, 1e-6 * largest) << name;
}

class Mixtures : public testing::TestWithParam<const char*> {};

TEST_P(Mixtures, AgreeWithADenseOracleInOutputAndEveryGradient) {
  const ModelSpec spec = small_mixture(GetParam());
  MixtureBench bench(spec);
  bench.run();
  DenseOracle oracle(spec, bench.specs(), bench.params(), bench.input());
  expect_close("output", bench.output(), oracle.output());
  const Numbers direction = numbers_of(bench.doutput());
  const auto gradient_of = [&](const std::string& name) {
    constexpr double kStep = 1e-5;
    Numbers gradient;
    for (double& value : oracle.values.at(name)) {
      const double before = value;
      double difference = 0;
      for (const double sign : {1.0, -1.0}) {
        value = before + sign * kStep;
        const Numbers y = oracle.output();
        for (size_t i = 0; i < y.size(); ++i) difference += sign * direction[i] * y[i];
      }
      value = before;
      gradient.push_back(difference / (2 * kStep));
    }
    return gradient;
  };
  expect_close("input", bench.dinput(), gradient_of("input"));
  for (size_t i = 0; i < bench.specs().size(); ++i) {
    const std::string& name = bench.specs()[i].name;
    expect_close(name, bench.grads()[i], gradient_of(name.substr(name.find('.', 6) + 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Mixtures,
    testing::Values(
        R"({"num_experts": 8, "experts_per_token": 2, "intermediate_size": 5})",
        R"({"num_experts": 4, "experts_per_token": 3, "normalise_weights": false,
            "shared_intermediate_size": 6, "shared_gate": true, "intermediate_size": 4})",
        R"({"num_experts": 5, "experts_per_token": 2, "scores": "sigmoid", "intermediate_size": 3,
            "shared_intermediate_size": 4, "capacity_factor": 0.7})",
        R"({"num_experts": 1, "experts_per_token": 1, "scores": "sigmoid", "intermediate_size": 5,
            "normalise_weights": false})"));

// A router that sees no difference sends every token to the first experts, which take the first
// tokens; the others pass by the residual connection alone.
TEST(Capacity, TakesTheFirstTokensAndTheOthersPassByTheResidual) {
  const ModelSpec spec = small_mixture(
      R"({"num_experts": 4, "experts_per_token": 2, "capacity_factor": 1, "intermediate_size": 5})");
  const int64_t capacity = 4;  // of 16 choices, a fourth
  ASSERT_EQ(spec.experts.capacity(MixtureBench::kTokens), capacity);
  for (const bool training : {true, false}) {
    MixtureBench bench(spec, training);
    std::fill_n(bench.param("router.weight").f32(), bench.param("router.weight").elems(), 0.0f);
    bench.run();
    for (int64_t t = 0; t < MixtureBench::kTokens; ++t) {
      const bool same =
          std::equal(bench.output().f32() + t * 12, bench.output().f32() + (t + 1) * 12,
                     bench.input().f32() + t * 12);
      EXPECT_EQ(same, training && t >= capacity) << t << " evaluation drops nothing";
    }
    // The experts that nobody was sent to learn nothing.
    const Tensor grad = bench.grad("experts.down.weight");
    for (int64_t row = 0; row < grad.rows; ++row)
      EXPECT_EQ(grad.f32()[row * grad.cols] == 0, row >= 2 * 12) << row;
  }
}

// ---- Whole trainings

ModelSpec training_mixture() {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.vocab_size = 101;
  spec.dropout = 0.1f;
  spec.experts.intermediate_size = 17;
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = true;
  spec.experts.dense_blocks = {1};
  spec.experts.balance_loss = 0.02f;
  spec.experts.z_loss = 0.01f;
  spec.experts.jitter = 0.05f;
  spec.experts.capacity_factor = 1;
  return spec;
}

EngineOptions mixture_options(int stage) {
  EngineOptions options{
      .threads = 1, .micro_batch = 2, .sequence = 11, .micros = 2, .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = 5000;
  return options;
}

TEST(ExpertTraining, HasTheSameBitsAtEveryStageAndTierAsPlanned) {
  const ModelSpec spec = training_mixture();
  const ScratchFolder folder;
  const test::RankRun reference = test::train_on_ranks(spec, mixture_options(0), 2, 3);
  for (int stage = 0; stage <= 3; ++stage)
    for (const int kind : {0, 1, 2}) {  // as it is; recomputed; offloaded
      SCOPED_TRACE(fmt::format("stage {}, kind {}", stage, kind));
      EngineOptions options = mixture_options(stage);
      options.recompute = kind == 1;
      if (kind == 2)
        options.offload = {.parameters = stage == 3 ? Tier::disk : Tier::device,
                           .optimizer = Tier::host,
                           .activations = Tier::host,
                           .folder = folder.path("")};
      const test::RankRun run = test::train_on_ranks(spec, options, 2, 3);
      EXPECT_EQ(run.losses, reference.losses);
      EXPECT_EQ(run.norms, reference.norms);
      test::expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec, options, 2, run, test::this_processor());
    }
}

TEST(ExpertTraining, HasTheSameBitsOnAnyThreads) {
  const ModelSpec spec = training_mixture();
  EngineOptions options = mixture_options(0);
  Engine one(spec, options);
  options.threads = 3;
  Engine three(spec, options);
  EXPECT_EQ(test::train(one, 3), test::train(three, 3));
  test::expect_same_bits(test::weights_of(one), test::weights_of(three));
}

// Ranks on the same global batch: routers' losses are means over micro-batches of all ranks.
TEST(ExpertTraining, OfManyRanksAgreesWithOneToRounding) {
  ModelSpec spec = training_mixture();
  spec.experts.capacity_factor = 0;  // which is a share of a micro-batch
  EngineOptions options = mixture_options(1);
  const test::RankRun two = test::train_on_ranks(spec, options, 2, 3);
  options.micros = 4;
  const test::RankRun one = test::train_on_ranks(spec, options, 1, 3);
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], two.losses[step], 1e-5 * one.losses[step]);
    EXPECT_NEAR(one.norms[step], two.norms[step], 1e-4 * one.norms[step]);
  }
}

TEST(ExpertTraining, CountsEveryChoiceOnceAndDropsNothingWithoutACapacity) {
  ModelSpec spec = training_mixture();
  for (const float factor : {0.0f, 0.5f}) {
    spec.experts.capacity_factor = factor;
    test::on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, mixture_options(2), std::move(communicator));
      for (int step = 0; step < 2; ++step) {
        const StepExperts load = test::train_step(engine).experts;
        ASSERT_EQ(load.layers.size(), 2u);
        for (const StepExperts::Layer& layer : load.layers) {
          ASSERT_EQ(layer.shares.size(), 5u);
          double sum = 0;
          for (const double share : layer.shares) {
            sum += share;
            // Counts of 2 x 2 micro-batches of 22 tokens with two choices each.
            EXPECT_NEAR(share * 176, std::round(share * 176), 1e-9);
          }
          EXPECT_NEAR(sum, 1, 1e-12);
          // Half of its even share leaves half at most.
          if (factor == 0)
            EXPECT_EQ(layer.dropped, 0);
          else
            EXPECT_GE(layer.dropped, 0.43);
        }
        EXPECT_GT(load.balance_loss, 0.02 * 1.9);  // 2 where all experts have the same
        EXPECT_GT(load.z_loss, 0);
      }
    });
  }
}

TEST(ExpertTraining, LearnsInSixteenBits) {
  ModelSpec spec = training_mixture();
  spec.dropout = 0;
  for (const DType type : {DType::bf16, DType::f16}) {
    EngineOptions options = mixture_options(0);
    Engine exact(spec, options);
    options.precision.compute = type;
    Engine rounded(spec, options);
    const std::vector<double> losses = test::train(exact, 4), others = test::train(rounded, 4);
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], others[i], 0.02 * losses[i]) << dtype_name(type);
    EXPECT_EQ(Engine::plan(spec, options, 1, 0, test::this_processor())->ledger().peak_bytes(),
              rounded.ledger().peak_bytes());
  }
}

TEST(ExpertRefusals, NameWhatIsNotThereYet) {
  const ModelSpec spec = training_mixture();
  EngineOptions options = mixture_options(0);
  options.optimizer.type = OptimizerSpec::Type::muon;
  EXPECT_ERROR(Engine(spec, options), "model.experts", "Muon");
  options = mixture_options(0);
  options.tensor = 32;
  EXPECT_ERROR(Engine::plan(spec, options, 32), "mesh.tensor is 32",
               "its experts.intermediate_size of");
}

}  // namespace
}  // namespace onefold

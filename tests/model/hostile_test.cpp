// Whole models in 16 bits on data that is hard on them: outlier channels, peaked logits and
// attention, huge and tiny embeddings, rows of zeros. Loss and every gradient, from the CPU's
// kernels and from the same graph in double with nothing but its tensors rounded, are compared with
// a reference in double throughout: the kernels may add nothing to what rounding does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "model/double_kernels.h"
#include "model/unit.h"

namespace onefold {
namespace {

using Values = std::vector<double>;

constexpr int64_t kBatch = 2, kSequence = 24, kTokens = kBatch * kSequence;

// What every run of a model starts from.
struct HostileModel {
  ModelSpec spec;
  std::map<std::string, std::vector<float>> weights;
  std::vector<int32_t> tokens, targets;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, Values> gradients;
};

// Runs all units forward and then backward, as an engine does, but one after the other in plain
// sight: tensors of `type`, gradients of parameters in fp32 (in double beside f64).
class WholeModel {
 public:
  WholeModel(const HostileModel& given, Kernels& kernels, DType type)
      : given_(given),
        kernels_(kernels),
        type_(type),
        exact_(type == DType::f64 ? DType::f64 : DType::f32),
        source_(make_host_memory()),
        memory_(*source_),
        arena_(memory_.allocate(Kind::workspace, int64_t{8} << 20, "arena")),
        model_(given.spec) {
    for (const auto& unit : model_.units) {
      params_.emplace_back();
      grads_.emplace_back();
      for (const ParamSpec& param : unit->params()) {
        params_.back().push_back(tensor(param.rows, param.cols, type));
        grads_.back().push_back(tensor(param.rows, param.cols, exact_));
        const std::vector<float>& values = given.weights.at(param.name);
        for (int64_t i = 0; i < param.elems(); ++i)
          test::set_number(params_.back().back(), i / param.cols, i % param.cols,
                           double{values[static_cast<size_t>(i)]});
      }
      for (const Unit::Shared& shared : unit->shared()) {
        params_.back().push_back(params_[static_cast<size_t>(shared.unit)][0]);
        grads_.back().push_back(grads_[static_cast<size_t>(shared.unit)][0]);
      }
    }
    batch_ = {.tokens = integers(given.tokens),
              .targets = integers(given.targets),
              .batch = kBatch,
              .sequence = kSequence};
    if (given.spec.positions == Positions::rope) {
      rope_ = tensor(kSequence, given.spec.head_dim, DType::f32);
      for (int64_t row = 0; row < kSequence; ++row)
        rope_row(given.spec, row,
                 {rope_.row_range(row, 1).f32(), static_cast<size_t>(given.spec.head_dim)});
    }
  }

  // The mean loss, and gradients by the sum of `scale` times it, divided by `scale` again.
  Outcome run(double scale) {
    const int64_t hidden = given_.spec.hidden_size;
    const size_t head = model_.units.size() - 1;
    std::vector<Tensor> inputs(1), saved;
    for (size_t unit = 0; unit < head; ++unit) {
      UnitCall call = call_of(unit);
      call.input = inputs.back();
      saved.push_back(
          tensor(1, model_.units[unit]->saved_bytes(kBatch, kSequence, type_), DType::u8));
      call.saved = saved.back();
      inputs.push_back(call.output = tensor(kTokens, hidden, type_));
      const Arena::Scope scope(arena_);
      model_.units[unit]->forward(call);
    }
    saved.emplace_back();
    const Tensor gradient = tensor(kTokens, hidden, type_), losses = tensor(1, kTokens, exact_),
                 loss_scale = tensor(1, 1, exact_);
    test::set_number(loss_scale, 0, 0, scale / kTokens);
    for (size_t unit = head + 1; unit-- > 0;) {
      UnitCall call = call_of(unit);
      call.input = inputs[unit];
      call.saved = saved[unit];
      call.grads = grads_[unit];
      call.doutput = call.dinput = gradient;
      call.losses = losses;
      call.loss_scale = loss_scale;
      const Arena::Scope scope(arena_);
      model_.units[unit]->backward(call);
    }
    return outcome(losses, scale);
  }

 private:
  Tensor tensor(int64_t rows, int64_t cols, DType type) {
    if (rows * cols == 0) return {};
    buffers_.push_back(memory_.allocate(Kind::data, rows * cols * dtype_bytes(type), "test"));
    std::memset(buffers_.back().data(), 0, static_cast<size_t>(buffers_.back().bytes()));
    return buffers_.back().as(rows, cols, type);
  }
  Tensor integers(const std::vector<int32_t>& values) {
    const Tensor made = tensor(1, static_cast<int64_t>(values.size()), DType::i32);
    std::copy(values.begin(), values.end(), made.i32());
    return made;
  }
  UnitCall call_of(size_t unit) {
    UnitCall call{.kernels = kernels_, .arena = arena_, .batch = batch_, .params = params_[unit]};
    call.rope = rope_;
    call.training = true;
    return call;
  }
  Outcome outcome(const Tensor& losses, double scale) const {
    Outcome result;
    for (int64_t i = 0; i < kTokens; ++i) result.loss += test::number_at(losses, 0, i) / kTokens;
    for (size_t unit = 0; unit < model_.units.size(); ++unit)
      for (size_t i = 0; i < model_.units[unit]->params().size(); ++i) {
        const Tensor& of = grads_[unit][i];
        Values& values = result.gradients[model_.units[unit]->params()[i].name];
        for (int64_t at = 0; at < of.elems(); ++at)
          values.push_back(test::number_at(of, at / of.cols, at % of.cols) / scale);
      }
    return result;
  }

  const HostileModel& given_;
  Kernels& kernels_;
  const DType type_, exact_;
  std::unique_ptr<MemorySource> source_;
  Ledger memory_;
  Arena arena_;
  Model model_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<Tensor>> params_, grads_;
  UnitBatch batch_;
  Tensor rope_;
};

// Changes a parameter's values, whole.
using Change = std::function<void(const ParamSpec&, std::vector<float>&)>;

void multiply(std::vector<float>& values, float factor) {
  for (float& value : values) value *= factor;
}

bool is_embedding(const ParamSpec& param) { return param.name.starts_with("embedding."); }

void no_change(const ParamSpec&, std::vector<float>&) {}

// A few channels of the residual hundreds of times as large as the others, from the embedding on
// and again from a block.
void outlier_channels(const ParamSpec& param, std::vector<float>& values) {
  for (int64_t row = 0; row < param.rows; ++row)
    for (int64_t col = 0; col < param.cols; ++col) {
      float& value = values[static_cast<size_t>(row * param.cols + col)];
      if (is_embedding(param) && (col == 5 || col == 17)) value *= 300;
      if (param.name == "block.0.mlp.down.weight" && row == 11) value *= 100;
    }
}

// Logits that differ by tens, and do not favour the target.
void peaked_logits(const ParamSpec& param, std::vector<float>& values) {
  if (param.name == "head.norm.weight") multiply(values, 40);
}

// Scores that differ by tens.
void peaked_attention(const ParamSpec& param, std::vector<float>& values) {
  if (param.name.ends_with("qkv.weight")) multiply(values, 6);
}

void huge_embeddings(const ParamSpec& param, std::vector<float>& values) {
  if (is_embedding(param)) multiply(values, 1000);
}

// So small that a norm's eps counts.
void tiny_embeddings(const ParamSpec& param, std::vector<float>& values) {
  if (is_embedding(param)) multiply(values, 1e-3f);
}

// Every third word and some positions, a head's projections, a quarter of an MLP.
void zero_rows(const ParamSpec& param, std::vector<float>& values) {
  for (int64_t row = 0; row < param.rows; ++row) {
    const bool zero = (param.name.ends_with("tokens") && row % 3 == 0) ||
                      (param.name.ends_with("positions") && row % 5 == 0) ||
                      (param.name.ends_with("qkv.weight") && row < 16) ||
                      (param.name.ends_with("up.weight") && row < param.rows / 4) ||
                      (param.name == "head.weight" && row % 4 == 0);
    if (zero) std::fill_n(values.begin() + row * param.cols, static_cast<size_t>(param.cols), 0.0f);
  }
}

struct HostileData {
  const char* name;
  Change change;
};
const HostileData kHostile[] = {{"nothing_hostile", no_change},
                                {"outlier_channels", outlier_channels},
                                {"peaked_logits", peaked_logits},
                                {"peaked_attention", peaked_attention},
                                {"huge_embeddings", huge_embeddings},
                                {"tiny_embeddings", tiny_embeddings},
                                {"zero_rows", zero_rows}};

ModelSpec hostile_spec(const std::string& family) {
  ModelSpec spec = spec_from_preset(family + "-tiny", "test");
  spec.vocab_size = 101;
  spec.hidden_size = 64;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = family == "gpt2" ? 4 : 2;
  spec.head_dim = 16;
  spec.intermediate_size = family == "gpt2" ? 256 : 176;
  spec.max_sequence_length = kSequence;
  spec.complete("test");
  return spec;
}

// Weights are numbers of `type`: the reference has the same.
HostileModel hostile_model(const std::string& family, const Change& change, DType type) {
  HostileModel made{.spec = hostile_spec(family)};
  uint64_t seed = 0;
  for (const ParamSpec& param : parameters_of(made.spec)) {
    std::vector<float>& values = made.weights[param.name];
    const float deviation = param.init == Init::residual ? 0.05f : param.rows == 1 ? 0.02f : 0.1f;
    for (int64_t i = 0; i < param.elems(); ++i)
      values.push_back((param.init == Init::ones ? 1.0f : 0.0f) +
                       deviation *
                           philox_normal(philox_key(seed, Draw::test), static_cast<uint64_t>(i)));
    change(param, values);
    for (float& value : values)
      value = type == DType::bf16 ? widened(narrowed<Bf16>(value)) : widened(narrowed<F16>(value));
    ++seed;
  }
  for (uint32_t i = 0; i < kTokens; ++i) {
    const PhiloxWords words = philox(philox_key(99, Draw::test), {i, 0, 0, 0});
    made.tokens.push_back(static_cast<int32_t>(words[0] % 101));
    made.targets.push_back(static_cast<int32_t>(words[1] % 101));
  }
  return made;
}

// The norm of the difference, relative to that of what is expected.
double error_of(const Values& actual, const Values& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

class HostileModels : public testing::TestWithParam<std::tuple<std::string, DType, HostileData>> {};

// A result in 16 bits is the rounded graph's wherever arithmetic in fp32 leaves it on the same side
// of a rounding. Where it does not, the two err by different roundings of the same size: of a
// tensor with few elements the sizes of two such errors may differ by a half.
constexpr double kBesideRounding = 1.5;

TEST_P(HostileModels, ErrByNoMoreThanRoundingDoes) {
  const auto& [family, type, data] = GetParam();
  const HostileModel given = hostile_model(family, data.change, type);
  ThreadPool pool(2);
  const std::unique_ptr<Kernels> cpu = make_cpu_kernels(pool), exact = test::make_double_kernels();
  // In fp16 gradients underflow without a scale, and overflow with a large one where a norm
  // multiplies by hundreds.
  const double scale = type == DType::f16 ? 8 : 1;
  const Outcome reference = WholeModel(given, *exact, DType::f64).run(1),
                rounded = WholeModel(given, *exact, type).run(scale),
                actual = WholeModel(given, *cpu, type).run(scale);
  const double rounding = std::abs(rounded.loss - reference.loss),
               off = std::abs(actual.loss - reference.loss);
  EXPECT_LE(off, kBesideRounding * rounding + 1e-4 * reference.loss);
  double largest = 0, largest_of_rounding = 0, worst = 0;
  for (const auto& [name, expected] : reference.gradients) {
    const double error = error_of(actual.gradients.at(name), expected),
                 by_rounding = error_of(rounded.gradients.at(name), expected);
    // Gradients that leave fp16 are the loss scale's business: both must show them.
    ASSERT_EQ(std::isfinite(error), std::isfinite(by_rounding)) << name;
    if (!std::isfinite(error)) continue;
    EXPECT_LE(error, kBesideRounding * by_rounding) << name;
    largest = std::max(largest, error);
    largest_of_rounding = std::max(largest_of_rounding, by_rounding);
    worst = std::max(worst, error / by_rounding);
  }
  RecordProperty("loss", fmt::format("{:.3f}", reference.loss));
  RecordProperty("largest", fmt::format("{:.1e}", largest));
  RecordProperty("largest_of_rounding", fmt::format("{:.1e}", largest_of_rounding));
  RecordProperty("ratio", fmt::format("{:.3f}", worst));
}

INSTANTIATE_TEST_SUITE_P(SixteenBits, HostileModels,
                         testing::Combine(testing::Values("gpt2", "llama"),
                                          testing::Values(DType::bf16, DType::f16),
                                          testing::ValuesIn(kHostile)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", std::get<0>(info.param),
                                              dtype_name(std::get<1>(info.param)),
                                              std::get<2>(info.param).name);
                         });

}  // namespace
}  // namespace onefold

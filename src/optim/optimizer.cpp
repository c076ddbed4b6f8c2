#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/block8.h"
#include "optim/whole_tensors.h"

namespace onefold {

std::vector<OptimizerState> OptimizerSpec::states(const Precision& precision,
                                                  bool has_hidden) const {
  std::vector<OptimizerState> list;
  if (precision.has_master()) list.push_back({kMaster});
  const auto add_moment = [&](const std::string& name, OptimizerState::Of of = {}) {
    list.push_back({name, precision.moments, 1, of});
    if (precision.moments == DType::u8) list.push_back({name + kScaleSuffix, DType::f32, kBlock8});
  };
  switch (type) {
    case Type::adamw:
    case Type::lamb:
      add_moment("moment1");
      add_moment("moment2");
      if (frozen_trust) {
        add_moment("fresh");
        list.push_back({"ratios", DType::f32, 1, OptimizerState::Of::ratios});
      }
      break;
    case Type::muon:
      add_moment("moment1");
      add_moment("moment2", has_hidden ? OptimizerState::Of::vectors : OptimizerState::Of::all);
      break;
    case Type::adafactor:
      list.push_back({"variance", DType::f32, 1, OptimizerState::Of::vectors});
      list.push_back({"factors", DType::f32, 1, OptimizerState::Of::factors});
      break;
    case Type::sgd:
    case Type::lion:
    case Type::lars:
      if (type != Type::sgd || momentum != 0) add_moment("momentum");
      break;
  }
  if (delayed) list.push_back({"delayed"});
  if (looks_ahead()) list.push_back({"ahead"});
  return list;
}

namespace {

// Whether `name` is `pattern`, where a star stands for any text.
bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (size_t end = star; end <= name.size(); ++end)
    if (matches(pattern.substr(star + 1), name.substr(end))) return true;
  return false;
}

}  // namespace

bool ParamGroup::has(const std::string& parameter) const {
  return std::any_of(match.begin(), match.end(),
                     [&](const std::string& pattern) { return matches(pattern, parameter); });
}

const ParamGroup* OptimizerSpec::group_of(const std::string& parameter) const {
  for (const ParamGroup& group : groups)
    if (group.has(parameter)) return &group;
  return nullptr;
}

bool OptimizerSpec::decays() const {
  return weight_decay != 0 ||
         std::any_of(groups.begin(), groups.end(),
                     [](const ParamGroup& group) { return group.weight_decay.value_or(0) != 0; });
}

int64_t OptimizerSpec::squares_taken(int64_t steps) const {
  const int64_t last = freeze_step > 0 ? std::min(steps, freeze_step) : steps;
  if (variance_scaler == 0) return last;
  int64_t count = 0, at = 0;
  for (int64_t interval = 1;; interval *= 2) {
    const int64_t first = (at / interval + 1) * interval;
    if (first > last) return count;
    const int64_t here = std::min(variance_scaler, (last - first) / interval + 1);
    count += here;
    at = first + (here - 1) * interval;
  }
}

double decay_of(const OptimizerSpec& spec, const SteppedParam& param) {
  if (param.weight_decay) return *param.weight_decay;
  return param.shape.matrix || spec.decay_all ? spec.weight_decay : 0.0;
}

AdamWStep adamw_step(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                     const SteppedParam& param) {
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  const auto correction = [&](double beta, int64_t steps) {
    return spec.bias_correction ? static_cast<float>(1 - std::pow(beta, static_cast<double>(steps)))
                                : 1.0f;
  };
  const bool frozen = rates.squares_stay || !spec.takes_squares(step);
  const AdamW hyper{.learning_rate = static_cast<float>(rates.learning_rate * param.rate),
                    .beta1 = rates.momentum_arrives ? 0.0f : static_cast<float>(beta1),
                    .beta2 = frozen ? 1.0f : static_cast<float>(beta2),
                    .eps = static_cast<float>(spec.eps),
                    .weight_decay = static_cast<float>(decay_of(spec, param)),
                    .bias_correction1 = correction(beta1, step),
                    .bias_correction2 = correction(beta2, spec.squares_taken(step)),
                    .l2 = spec.l2};
  const std::vector<Tensor>& state = param.state;
  if (state.size() == 2) return {hyper, param.stepped, state[0].flat(), state[1].flat()};
  return {
      hyper, param.stepped, {state[0].flat(), state[1].flat()}, {state[2].flat(), state[3].flat()}};
}

namespace {

SgdStep sgd_step(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                 const SteppedParam& param) {
  return {{.learning_rate = static_cast<float>(rates.learning_rate * param.rate),
           .momentum = rates.momentum_arrives ? 0.0f : static_cast<float>(spec.momentum),
           .weight_decay = static_cast<float>(decay_of(spec, param)),
           .nesterov = spec.nesterov,
           .first = step == 1},
          param.stepped,
          param.state.empty() ? Tensor{} : param.state[0].flat()};
}

LionStep lion_step(const OptimizerSpec& spec, int64_t, const StepRates& rates,
                   const SteppedParam& param) {
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  return {{.learning_rate = static_cast<float>(rates.learning_rate * param.rate),
           .beta1 = static_cast<float>(beta1),
           .beta2 = static_cast<float>(beta2),
           .weight_decay = static_cast<float>(decay_of(spec, param))},
          param.stepped,
          param.state[0].flat()};
}

// What SGD's kernel does of this kind: p - rate gradient, and momentum = keeps momentum + gradient
// (with keeps 0: the gradient). A rate of 0 moves nothing.
SgdStep moved(const SteppedParam& param, Tensor gradient, Tensor one, float rate) {
  SgdStep step{
      {.learning_rate = rate, .momentum = 0, .weight_decay = 0, .nesterov = false, .first = false},
      param.stepped,
      {}};
  step.stepped.grads = gradient;
  step.stepped.factor = one;
  return step;
}
SgdStep added(const SteppedParam& param, Tensor gradient, Tensor factor, float keeps,
              Tensor momentum) {
  SgdStep step = moved(param, gradient, factor, 0);
  step.hyper.first = keeps == 0;
  step.hyper.momentum = keeps == 0 ? 0.5f : keeps;
  step.momentum = momentum;
  return step;
}

Tensor exact_of(const SteppedParam& param) {
  return param.stepped.master.empty() ? param.stepped.params : param.stepped.master;
}

// Before the step weights return from where they have been taken, as far as rounding lets them, and
// `ahead` is what they are; after it `ahead` is how far they have moved, and they move on.
void return_from_ahead(const StepTools& tools, const OptimizerSpec& spec,
                       const StepControl& control, const UnitStep& unit,
                       const std::vector<Tensor>& ahead) {
  std::vector<SgdStep> back, keep;
  for (size_t i = 0; i < ahead.size(); ++i) {
    const SteppedParam& param = unit.params[i];
    back.push_back(moved(param, ahead[i], tools.one, static_cast<float>(spec.lookahead)));
    keep.push_back(added(param, exact_of(param), tools.one, 0, ahead[i]));
  }
  tools.kernels.sgd(control, back);
  tools.kernels.sgd(control, keep);
}
void move_ahead(const StepTools& tools, const OptimizerSpec& spec, const StepControl& control,
                const UnitStep& unit, const std::vector<Tensor>& ahead) {
  std::vector<SgdStep> difference, on;
  for (size_t i = 0; i < ahead.size(); ++i) {
    const SteppedParam& param = unit.params[i];
    difference.push_back(added(param, exact_of(param), tools.one, -1, ahead[i]));
    on.push_back(moved(param, ahead[i], tools.one, -static_cast<float>(spec.lookahead)));
  }
  tools.kernels.sgd(control, difference);
  tools.kernels.sgd(control, on);
}

// The gradients of the step before, which have been clipped; then this step's take their place:
// SGD's momentum begins as the gradient times its factor. The first step after those without delay
// applies nothing.
void delayed_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                  const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  require(spec.elementwise(), "delayed gradients of an optimizer that knows whole tensors");
  OptimizerSpec plain = spec;
  plain.delayed = false;
  UnitStep before = unit;
  std::vector<Tensor> ahead;
  std::vector<SgdStep> keep;
  for (SteppedParam& param : before.params) {
    if (spec.looks_ahead()) {
      ahead.push_back(param.state.back().flat());
      param.state.pop_back();
    }
    const Tensor delayed = param.state.back().flat();
    param.state.pop_back();
    if (step <= spec.delayed_after) continue;
    keep.push_back(added(param, param.stepped.grads, param.stepped.factor, 0, delayed));
    param.stepped.grads = delayed;
    param.stepped.factor = tools.one;
  }
  if (step <= spec.delayed_after) return optimizer_step(tools, plain, step, rates, control, before);
  if (step > spec.delayed_after + 1) {
    if (spec.looks_ahead()) return_from_ahead(tools, spec, control, before, ahead);
    optimizer_step(tools, plain, step - 1, rates, control, before);
    if (spec.looks_ahead()) move_ahead(tools, spec, control, before, ahead);
  }
  tools.kernels.sgd(control, keep);
}

}  // namespace

void optimizer_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  const auto all = [&](auto step_of) {
    std::vector<decltype(step_of(spec, step, rates, unit.params[0]))> list;
    for (const SteppedParam& param : unit.params) list.push_back(step_of(spec, step, rates, param));
    return list;
  };
  if (spec.delayed) return delayed_step(tools, spec, step, rates, control, unit);
  switch (spec.type) {
    case OptimizerSpec::Type::adamw:
      return tools.kernels.adamw(control, all(adamw_step));
    case OptimizerSpec::Type::sgd:
      return tools.kernels.sgd(control, all(sgd_step));
    case OptimizerSpec::Type::lion:
      return tools.kernels.lion(control, all(lion_step));
    case OptimizerSpec::Type::lamb:
      return lamb_step(tools, spec, step, rates, control, unit);
    case OptimizerSpec::Type::lars:
      return lars_step(tools, spec, rates, control, unit);
    case OptimizerSpec::Type::adafactor:
      return adafactor_step(tools, spec, step, rates, control, unit);
    case OptimizerSpec::Type::muon:
      return muon_step(tools, spec, step, rates, control, unit);
  }
}

}  // namespace onefold

// LAMB and LARS: a step's length is a ratio of norms of whole tensors.
#include <cmath>

#include "optim/pairs_of_squares.h"
#include "optim/whole_tensors.h"

namespace onefold {
namespace {

// Bias corrections are part of the rate, not of the direction, as DeepSpeed has it.
float lamb_rate(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                const SteppedParam& param) {
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  const auto count = static_cast<double>(step),
             squared = static_cast<double>(spec.squares_taken(step));
  const double corrected =
      spec.bias_correction ? std::sqrt(1 - std::pow(beta2, squared)) / (1 - std::pow(beta1, count))
                           : 1.0;
  return static_cast<float>(rates.learning_rate * param.rate * corrected);
}

// Every rank keeps each tensor's ratios, and makes them follow the same sums. Returns what this
// step is multiplied by, by the parameter's number.
Tensor trusted(const StepTools& tools, const OptimizerSpec& spec, const StepControl& control,
               const UnitStep& unit, const PairsOfSquares& squares, bool frozen) {
  const FrozenTrust& trust = *spec.frozen_trust;
  const Tensor ratios = tools.arena->take(1, unit.numbers, DType::f64);
  std::vector<TensorTrust> list;
  for (const SteppedParam& one : unit.wholes)
    list.push_back({.squares = squares.of(one.number),
                    .largest = frozen ? squares.largest(one.number) : Tensor{},
                    .ratios = one.common,
                    .dst = ratios.col_range(one.number, 1),
                    .least = spec.least_trust,
                    .most = spec.most_trust,
                    .beta = trust.beta,
                    .least_factor = trust.least,
                    .most_factor = trust.most,
                    .threshold = trust.threshold});
  tools.kernels.tensor_trust(control, list);
  return ratios;
}

// Where the second moment stays, and with it each tensor's ratio.
void frozen_lamb_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                      const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  const Arena::Scope scope(*tools.arena);
  const PairsOfSquares squares(tools, unit, true);
  const int64_t elems = stepped_elems(tools, unit);
  const Tensor directions = tools.arena->take(1, elems);
  const Tensor plain = spec.decays() ? tools.arena->take(1, elems) : directions;
  const auto part_of = [&](Tensor all) {
    return [all](const SteppedParam& part) {
      return all.col_range(part.place, part.stepped.params.elems());
    };
  };
  const auto direction_of = part_of(directions), plain_of = part_of(plain);
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  std::vector<FrozenLambStep> list;
  for (const SteppedParam& param : unit.params)
    list.push_back({{.beta1 = static_cast<float>(beta1),
                     .beta2 = static_cast<float>(beta2),
                     .eps = static_cast<float>(spec.eps),
                     .weight_decay = static_cast<float>(decay_of(spec, param)),
                     .eps_inside = spec.eps_inside,
                     .arrives = rates.momentum_arrives},
                    param.stepped,
                    direction_of(param),
                    spec.decays() ? plain_of(param) : Tensor{},
                    param.state[0].flat(),
                    param.state[1].flat(),
                    param.state[2].flat(),
                    param.common,
                    squares.own_largest(param.number)});
  tools.kernels.frozen_lamb(control, list);
  squares.take(plain_of, direction_of);
  const Tensor ratios = trusted(tools, spec, control, unit, squares, true);
  std::vector<MoveStep> moves;
  for (const SteppedParam& param : unit.params)
    moves.push_back({{.keep = 1, .rate = lamb_rate(spec, step, rates, param)},
                     along(param, direction_of(param)),
                     {},
                     ratios.col_range(param.number, 1)});
  tools.kernels.move(control, moves);
}

}  // namespace

void lamb_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
               const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  const bool frozen = rates.squares_stay || !spec.takes_squares(step);
  if (frozen && spec.frozen_trust) return frozen_lamb_step(tools, spec, step, rates, control, unit);
  const Arena::Scope scope(*tools.arena);
  const PairsOfSquares squares(tools, unit);
  const Tensor directions = tools.arena->take(1, stepped_elems(tools, unit));
  const auto direction_of = [&](const SteppedParam& part) {
    return directions.col_range(part.place, part.stepped.params.elems());
  };
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  std::vector<DirectionStep> list;
  for (const SteppedParam& param : unit.params)
    list.push_back({{.rule = Direction::Rule::lamb,
                     .beta1 = rates.momentum_arrives ? 0.0f : static_cast<float>(beta1),
                     .beta2 = frozen ? 1.0f : static_cast<float>(beta2),
                     .eps = static_cast<float>(spec.eps),
                     .weight_decay = static_cast<float>(decay_of(spec, param)),
                     .eps_inside = spec.eps_inside},
                    param.stepped,
                    direction_of(param),
                    param.state[0].flat(),
                    param.state[1].flat()});
  tools.kernels.direction(control, list);
  squares.take(direction_of);
  const Tensor ratios =
      spec.frozen_trust ? trusted(tools, spec, control, unit, squares, false) : Tensor{};
  std::vector<MoveStep> moves;
  for (const SteppedParam& param : unit.params)
    moves.push_back({{.keep = 1,
                      .rate = lamb_rate(spec, step, rates, param),
                      .least = static_cast<float>(spec.least_trust),
                      .most = static_cast<float>(spec.most_trust)},
                     along(param, direction_of(param)),
                     squares.of(param.number),
                     ratios.empty() ? Tensor{} : ratios.col_range(param.number, 1)});
  tools.kernels.move(control, moves);
}

// As the paper's: the rate is inside of the momentum.
void lars_step(const StepTools& tools, const OptimizerSpec& spec, const StepRates& rates,
               const StepControl& control, const UnitStep& unit) {
  const Arena::Scope scope(*tools.arena);
  const PairsOfSquares squares(tools, unit);
  squares.take([](const SteppedParam& part) { return part.stepped.grads; });
  const Tensor directions = tools.arena->take(1, stepped_elems(tools, unit));
  std::vector<DirectionStep> list;
  std::vector<MoveStep> moves;
  for (const SteppedParam& param : unit.params) {
    const Tensor direction = directions.col_range(param.place, param.stepped.params.elems());
    list.push_back({{.rule = Direction::Rule::lars,
                     .beta1 = static_cast<float>(spec.momentum),
                     .weight_decay = static_cast<float>(decay_of(spec, param)),
                     .learning_rate = static_cast<float>(rates.learning_rate * param.rate),
                     .trust = static_cast<float>(spec.trust)},
                    param.stepped,
                    direction,
                    param.state[0].flat(),
                    {},
                    squares.of(param.number)});
    moves.push_back({{.keep = 1, .rate = 1}, along(param, direction)});
  }
  tools.kernels.direction(control, list);
  tools.kernels.move(control, moves);
}

}  // namespace onefold

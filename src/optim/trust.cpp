// LAMB and LARS: a step's length is a ratio of norms of whole tensors.
#include <cmath>

#include "optim/pairs_of_squares.h"
#include "optim/whole_tensors.h"

namespace onefold {
// As DeepSpeed's: bias corrections are part of the rate, not of the direction.
void lamb_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
               const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  const Arena::Scope scope(*tools.arena);
  const PairsOfSquares squares(tools, unit);
  const Tensor directions = tools.arena->take(1, stepped_elems(tools, unit));
  const auto direction_of = [&](const SteppedParam& part) {
    return directions.col_range(part.place, part.stepped.params.elems());
  };
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  const bool frozen = rates.momentum_arrives || !spec.takes_squares(step);
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
  const auto count = static_cast<double>(step),
             squared = static_cast<double>(spec.squares_taken(step));
  const double corrected =
      spec.bias_correction ? std::sqrt(1 - std::pow(beta2, squared)) / (1 - std::pow(beta1, count))
                           : 1.0;
  std::vector<MoveStep> moves;
  for (const SteppedParam& param : unit.params)
    moves.push_back({{.keep = 1,
                      .rate = static_cast<float>(rates.learning_rate * param.rate * corrected),
                      .least = static_cast<float>(spec.least_trust),
                      .most = static_cast<float>(spec.most_trust)},
                     along(param, direction_of(param)),
                     squares.of(param.number)});
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

// Adafactor, as PyTorch's: the second moment of a matrix is the product of one factor for each row
// and one for each column.
#include <algorithm>
#include <cmath>

#include "optim/pairs_of_squares.h"
#include "optim/whole_tensors.h"

namespace onefold {
namespace {

constexpr double kEps = 0x1p-23;  // of fp32, as PyTorch's default

// The factors of a matrix: of its rows, then of its columns.
struct Factors {
  Tensor rows, columns;
};
Factors cut(Tensor both, const ParamShape& shape) {
  return {both.col_range(0, shape.rows), both.col_range(shape.rows, shape.cols)};
}

// One unit's matrices: their sums of squares over all ranks, and where the sums of the factors of
// rows are.
class Matrices {
 public:
  Matrices(const StepTools& tools, const UnitStep& unit) : tools_(tools), unit_(unit) {
    int64_t elems = 0;
    for (const ParamShape& shape : unit.shapes) {
      places_.push_back(elems);
      if (shape.matrix) elems += shape.rows + shape.cols;
    }
    const int ranks = tools.ranks->ranks();
    squares_ = tools.arena->take(1, (elems + ranks - 1) / ranks * ranks, DType::f64);
    sums_ = tools.arena->take(1, static_cast<int64_t>(unit.shapes.size()), DType::f64);
  }

  bool any() const { return !squares_.empty(); }

  void take_squares() const {
    tools_.kernels.fill(matrix(squares_.data, 1, 2 * squares_.cols), 0);
    std::vector<FactorSquares> list;
    for (const SteppedParam& part : unit_.owned) {
      if (!part.shape.matrix) continue;
      const Factors sums = squares_of(part);
      list.push_back({part.stepped.grads, part.first, sums.rows, sums.columns});
    }
    tools_.kernels.factor_squares(list);
    tools_.ranks->sum(squares_);
  }

  // Every rank has all factors, and makes them follow the same sums.
  void follow(const StepControl& control, double share) const {
    std::vector<Blend> list;
    for (const SteppedParam& one : unit_.wholes) {
      const Factors factors = factors_of(one), squares = squares_of(one);
      const auto rows = static_cast<double>(one.shape.rows),
                 cols = static_cast<double>(one.shape.cols);
      list.push_back({squares.rows, factors.rows, 1 / cols, share, one.stepped.factor});
      list.push_back({squares.columns, factors.columns, 1 / rows, share, one.stepped.factor});
    }
    tools_.kernels.blend(control, list);
    for (const SteppedParam& one : unit_.wholes)
      tools_.kernels.sum(factors_of(one).rows, sum_of(one));
  }

  static Factors factors_of(const SteppedParam& part) { return cut(part.common, part.shape); }
  Tensor sum_of(const SteppedParam& part) const { return sums_.col_range(part.number, 1); }

 private:
  Factors squares_of(const SteppedParam& part) const {
    const int64_t elems = part.shape.rows + part.shape.cols;
    return cut(squares_.col_range(places_[static_cast<size_t>(part.number)], elems), part.shape);
  }

  const StepTools& tools_;
  const UnitStep& unit_;
  std::vector<int64_t> places_;
  Tensor squares_, sums_;
};

}  // namespace

void adafactor_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  const Arena::Scope scope(*tools.arena);
  const PairsOfSquares squares(tools, unit);
  const Matrices matrices(tools, unit);
  const Tensor directions = tools.arena->take(1, stepped_elems(tools, unit));
  const auto direction_of = [&](const SteppedParam& part) {
    return directions.col_range(part.place, part.stepped.params.elems());
  };
  const auto count = static_cast<double>(step);
  const double share = std::pow(count, spec.decay_power);
  if (matrices.any()) {
    matrices.take_squares();
    matrices.follow(control, share);
  }
  std::vector<DirectionStep> vectors;
  std::vector<Factored> factored;
  for (const SteppedParam& param : unit.params)
    if (param.shape.matrix)
      factored.push_back({param.stepped, param.first, Matrices::factors_of(param).rows,
                          Matrices::factors_of(param).columns, matrices.sum_of(param),
                          static_cast<float>(kEps), direction_of(param)});
    else
      vectors.push_back({{.rule = Direction::Rule::adafactor,
                          .beta1 = static_cast<float>(1 - share),
                          .eps = static_cast<float>(kEps)},
                         param.stepped,
                         direction_of(param),
                         param.state[0].flat()});
  tools.kernels.factored(control, factored);
  tools.kernels.direction(control, vectors);
  squares.take(direction_of);
  std::vector<MoveStep> moves;
  for (const SteppedParam& param : unit.params) {
    const double rate = rates.learning_rate * param.rate;
    moves.push_back({{.keep = static_cast<float>(1 - rate * decay_of(spec, param)),
                      .rate = static_cast<float>(std::min(rate, 1 / std::sqrt(count))),
                      .least = static_cast<float>(spec.parameter_eps),
                      .most = static_cast<float>(spec.clip),
                      .elems = param.shape.elems()},
                     along(param, direction_of(param)),
                     squares.of(param.number)});
  }
  tools.kernels.move(control, moves);
}

}  // namespace onefold

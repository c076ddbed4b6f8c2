// Muon: hidden matrices go along their momentum made orthogonal, all others as AdamW's.
#include <algorithm>
#include <cmath>

#include "optim/whole_tensors.h"

namespace onefold {
namespace {

// x = a x + b (x x') x + c (x x')² x brings the singular values of x near 1.
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr float kEps = 1e-7f;  // of the norm that it is divided by first

class NewtonSchulz {
 public:
  // Who is not `active` only takes the memory, so that all ranks take as much.
  NewtonSchulz(const StepTools& tools, bool active)
      : kernels_(tools.kernels), arena_(*tools.arena), active_(active) {}

  // The smaller of x x' and x' x is the one whose powers are taken.
  void run(Tensor x, int iterations) {
    const Arena::Scope scope(arena_);
    normalise(x);
    const bool wide = x.rows <= x.cols;
    const int64_t n = std::min(x.rows, x.cols);
    const Tensor product = arena_.take(n, n), sum = arena_.take(n, n),
                 next = arena_.take(x.rows, x.cols);
    for (int i = 0; i < iterations; ++i) {
      multiply({.a = x, .b = x, .dst = product, .a_transposed = !wide, .b_transposed = wide});
      scale(product, kB / kC, sum);
      multiply({.a = product, .b = product, .dst = sum, .accumulate = true});
      scale(x, kA / kC, next);
      multiply({.a = wide ? sum : x, .b = wide ? x : sum, .dst = next, .accumulate = true});
      scale(next, kC, x);
    }
  }

 private:
  void normalise(Tensor x) {
    const Arena::Scope scope(arena_);
    const Tensor squares = arena_.take(1, 1, DType::f64), total = arena_.take(1, 1, DType::f64);
    const Tensor scratch = arena_.take_bytes(kernels_.sum_squares_scratch_bytes(x.elems()));
    if (!active_) return;
    const Squares one{x.flat(), squares};
    kernels_.sum_squares({&one, 1}, squares, total, scratch);
    kernels_.normalise(x, squares, kEps, x);
  }
  void multiply(Gemm product) {
    const Arena::Scope scope(arena_);
    product.scratch = arena_.take_bytes(kernels_.gemm_scratch_bytes(product));
    if (active_) kernels_.gemm(product);
  }
  void scale(Tensor x, float factor, Tensor dst) {
    if (active_) kernels_.scale(x, factor, dst);
  }

  Kernels& kernels_;
  Arena& arena_;
  const bool active_;
};

// Which rank makes each of a unit's hidden matrices orthogonal: in order, the one that has least to
// do so far.
std::vector<int> workers(const UnitStep& unit, int ranks) {
  std::vector<double> work(static_cast<size_t>(ranks));
  std::vector<int> chosen;
  for (const ParamShape& shape : unit.shapes) {
    const auto least = std::min_element(work.begin(), work.end());
    chosen.push_back(static_cast<int>(least - work.begin()));
    if (shape.hidden)
      *least += static_cast<double>(shape.elems()) *
                static_cast<double>(std::min(shape.rows, shape.cols));
  }
  return chosen;
}

// `whole`: the unit's directions, of which this rank has its shard, or all. Each matrix is made
// orthogonal on one rank, and what comes out goes to those who step it: as a sum with zeros.
void orthogonalise(const StepTools& tools, const OptimizerSpec& spec, const UnitStep& unit,
                   Tensor whole) {
  StepRanks& ranks = *tools.ranks;
  if (unit.sharded) ranks.gather(whole);
  const std::vector<int> worker = workers(unit, ranks.ranks());
  for (size_t p = 0; p < unit.shapes.size(); ++p) {
    const ParamShape& shape = unit.shapes[p];
    if (!shape.hidden || unit.offsets[p] < 0) continue;
    const Tensor matrix =
        whole.col_range(unit.offsets[p], shape.elems()).reshaped(shape.rows, shape.cols);
    const bool mine = worker[p] == ranks.rank();
    NewtonSchulz(tools, mine).run(matrix, spec.iterations);
    if (!mine) tools.kernels.fill(matrix, 0);
  }
  unit.sharded ? ranks.sum_shards(whole) : ranks.sum_whole(whole);
}

}  // namespace

void muon_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
               const StepRates& rates, const StepControl& control, const UnitStep& unit) {
  StepRates rest = rates;
  rest.learning_rate *= spec.adam_rate;
  std::vector<AdamWStep> vectors;
  std::vector<const SteppedParam*> matrices;
  for (const SteppedParam& param : unit.params)
    if (param.shape.hidden)
      matrices.push_back(&param);
    else
      vectors.push_back(adamw_step(spec, step, rest, param));
  tools.kernels.adamw(control, vectors);
  if (std::none_of(unit.shapes.begin(), unit.shapes.end(),
                   [](const ParamShape& shape) { return shape.hidden; }))
    return;

  const Arena::Scope scope(*tools.arena);
  const Tensor whole = tools.arena->take(1, unit.whole_elems);
  const int64_t elems = stepped_elems(tools, unit);
  const Tensor mine = unit.sharded ? whole.col_range(tools.ranks->rank() * elems, elems) : whole;
  tools.kernels.fill(whole, 0);  // what is no matrix travels too
  std::vector<DirectionStep> list;
  std::vector<MoveStep> moves;
  for (const SteppedParam* param : matrices) {
    const Tensor direction = mine.col_range(param->place, param->stepped.params.elems());
    list.push_back({{.rule = Direction::Rule::muon,
                     .beta1 = static_cast<float>(spec.momentum),
                     .nesterov = spec.nesterov},
                    param->stepped,
                    direction,
                    param->state[0].flat()});
    const ParamShape& shape = param->shape;
    const double rate = rates.learning_rate * param->rate;
    const double tall = static_cast<double>(shape.rows) / static_cast<double>(shape.cols);
    moves.push_back({{.keep = static_cast<float>(1 - rate * decay_of(spec, *param)),
                      .rate = static_cast<float>(rate * std::sqrt(std::max(1.0, tall)))},
                     along(*param, direction)});
  }
  tools.kernels.direction(control, list);
  orthogonalise(tools, spec, unit, whole);
  tools.kernels.move(control, moves);
}

}  // namespace onefold

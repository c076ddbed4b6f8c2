// Which optimizer, with which constants, and what it keeps of each parameter. The arithmetic is a
// kernel; how often and on what it runs is the engine's affair.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "optim/precision.h"
#include "tensor/ledger.h"

namespace onefold {

// A parameter as optimizers know it.
struct ParamShape {
  int64_t rows = 1, cols = 0;
  bool matrix = false;  // a matrix or a table: what decays unless all does
  bool hidden = false;  // a matrix of a block, between hidden activations

  int64_t elems() const { return rows * cols; }
};

// One tensor of state beside a parameter: what is allocated, sharded, saved and planned.
struct OptimizerState {
  // Of each element; or, whole on each rank, for that is little: of each element of what is no
  // matrix; of each row and then of each column of matrices; a few numbers of each parameter.
  enum class Of : uint8_t { all, vectors, factors, ratios };

  std::string name;  // in checkpoints
  DType dtype = DType::f32;
  int64_t block = 1;  // parameter elements that share one element of it
  Of of = Of::all;

  // Whether a step reads all that is kept of a parameter, whatever part of it is stepped.
  bool of_parameters() const { return of == Of::factors || of == Of::ratios; }

  int64_t elements(const ParamShape& shape) const {
    if (of == Of::ratios) return kTensorRatios;
    if (of != Of::all && shape.matrix != (of == Of::factors)) return 0;
    if (of == Of::factors) return shape.rows + shape.cols;
    return (shape.elems() + block - 1) / block;
  }
};

inline constexpr const char* kMaster = "master";

// Parameters that are stepped in a way of their own.
struct ParamGroup {
  std::vector<std::string> match;           // names of parameters, where * stands for anything
  double rate = 1;                          // times the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimizer's, whatever it decays
  bool frozen = false;                      // not stepped, and no part of the gradient's norm

  bool has(const std::string& parameter) const;
};

// LAMB: where the second moment stays as it is, so does each tensor's ratio of norms: it is the
// running mean of those before, times a factor that follows a second moment that goes on (1-bit
// LAMB, Li et al. 2021).
struct FrozenTrust {
  double beta = 0.9;             // of the mean
  double least = 0.5, most = 4;  // of the factor
  double threshold = 0.1;        // how far it may go from one step to the next
};

struct OptimizerSpec {
  enum class Type : uint8_t { adamw, sgd, lion, lamb, lars, adafactor, muon };
  Type type = Type::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decay_all = false;       // decay: "all"; else matrices and embedding tables alone
  bool l2 = false;              // Adam: the decay is part of the gradient
  bool bias_correction = true;  // of the moments, which start at 0
  // AdamW, LAMB: after so many steps the second moment stays as it is, so that what follows is
  // linear in gradients, as error feedback needs it (1-bit Adam, Tang et al. 2021); 0: never.
  int64_t freeze_step = 0;
  // AdamW: the second moment takes in the gradient of every step, so many times; of every second
  // step, as many times; of every fourth, and so on (0/1 Adam, Lu et al. 2022). 0: of every step.
  int64_t variance_scaler = 0;
  double momentum = 0;                         // SGD, LARS, Muon
  bool nesterov = false;                       // SGD, Muon
  bool eps_inside = false;                     // LAMB: under the root
  double least_trust = 0.01, most_trust = 10;  // LAMB
  // LAMB; without it the ratio is each step's own.
  std::optional<FrozenTrust> frozen_trust = {};
  double trust = 0.001;         // LARS
  double decay_power = -0.8;    // Adafactor: of the step, for its second moment
  double parameter_eps = 1e-3;  // Adafactor: least that a parameter's size counts
  double clip = 1;              // Adafactor: largest root mean square of a direction
  int iterations = 5;           // Muon: of Newton and Schulz
  double adam_rate = 1;         // Muon: AdamW's rate for the rest, by the learning rate

  // Each step applies the gradients of the one before, and keeps its own for the next: nothing
  // that a step computes with waits for its gradients. Of elementwise() ones. The first
  // `delayed_after` steps apply their own.
  bool delayed = false;
  int64_t delayed_after = 0;
  // Then: gradients are of weights that go on by so many times their last step, which is kept.
  double lookahead = 0;
  bool looks_ahead() const { return delayed && lookahead > 0; }

  std::vector<ParamGroup> groups = {};  // the first that has a parameter counts

  // Whether any parameter may decay.
  bool decays() const;

  // The group of a parameter; null: none.
  const ParamGroup* group_of(const std::string& parameter) const;

  // Whether each element is stepped by itself: then the host may step too.
  bool elementwise() const {
    return type == Type::adamw || type == Type::sgd || type == Type::lion;
  }
  // Whether moments of 8 bits are there for it: they are drawn anew in every step, and do not stay.
  bool takes_codes() const {
    return type == Type::adamw && freeze_step == 0 && variance_scaler == 0;
  }

  // Of how many of the first `steps` steps the second moment takes in the gradient; and whether it
  // does of one (counted from 1).
  int64_t squares_taken(int64_t steps) const;
  bool takes_squares(int64_t step) const { return squares_taken(step) > squares_taken(step - 1); }

  // What is kept of a unit's parameters: the master copy, if there is one; then AdamW's and LAMB's
  // two moments, or the one momentum of the others, if they have one. Muon's are those of AdamW,
  // the second only of vectors where the unit `has_hidden` matrices. With `frozen_trust` also the
  // second moment that goes on, and each tensor's ratios. Last, delayed gradients, and how far
  // weights moved last.
  std::vector<OptimizerState> states(const Precision& precision = {},
                                     bool has_hidden = false) const;
};

// What a schedule sets for one step, and what the engine knows of its gradients.
struct StepRates {
  double learning_rate = 0;
  std::optional<std::pair<double, double>> betas = {};  // instead of the optimizer's own
  // Ranks have sent their momentum: what is here is the first moment.
  bool momentum_arrives = false;
  bool squares_stay = false;  // the second moment takes in nothing, whatever the spec says

  StepRates(double rate) : learning_rate(rate) {}  // NOLINT: mostly a rate is all there is
};

// A parameter, or a part of it, and its state: states(), but for the master, which is `stepped`'s;
// those that it does not have are empty.
struct SteppedParam {
  ParamShape shape;
  Stepped stepped;
  std::vector<Tensor> state;
  int number = 0;                           // of the parameter in its unit
  int64_t place = 0;                        // of the part in what this rank steps of the unit
  int64_t first = 0;                        // the part's first element of the parameter
  Tensor common = {};                       // what is kept of the whole parameter: factors, ratios
  double rate = 1;                          // times the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimizer's
};

// What a step that has to know whole tensors asks of the other ranks.
class StepRanks {
 public:
  virtual ~StepRanks() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // f64, a multiple of ranks() long: the sum over ranks.
  virtual void sum(Tensor numbers) = 0;
  // f32, ranks() shards long: every rank's shard; this rank's shard of the sum; all of the sum.
  virtual void gather(Tensor whole) = 0;
  virtual void sum_shards(Tensor whole) = 0;
  virtual void sum_whole(Tensor whole) = 0;
};

// One unit's step on one rank.
struct UnitStep {
  std::vector<SteppedParam> params;  // all that this rank steps
  // Of what is only to be known: optimizers other than elementwise() ones.
  std::vector<SteppedParam> owned;  // the parts whose sums this rank takes: those of its shard
  int numbers = 0;                  // parameters of the unit
  std::vector<int64_t> offsets;     // of each parameter in the whole slab, or -1
  std::vector<ParamShape> shapes;   // of each parameter
  int64_t whole_elems = 0;          // of the whole slab
  // Each parameter of which a `common` state is kept, whatever this rank steps of it: shape,
  // number, factor and that state alone.
  std::vector<SteppedParam> wholes;
  bool sharded = false;  // `params` is a shard of it
};

// One optimizer step (counted from 1) on these parameters. Optimizers other than elementwise() ones
// take scratch from the arena, and exchange sums and matrices with the other ranks.
struct StepTools {
  Kernels& kernels;
  Arena* arena = nullptr;
  StepRanks* ranks = nullptr;
  Tensor one = {};  // [1, 1] f32, 1: the factor of gradients that have theirs already
};
void optimizer_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control, const UnitStep& unit);

}  // namespace onefold

// The engine holds one rank's training state in slabs and runs programs over it. The same class
// runs on the dry device: that is what sizes the scratch arena, and what a plan is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "engine/slab.h"
#include "kernels/kernels.h"
#include "model/unit.h"
#include "optim/optimizer.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

struct EngineOptions {
  int threads = 0;  // 0: all cores this process may use
  uint64_t seed = 1;
  int64_t micro_batch = 1;  // sequences
  int64_t sequence = 0;     // tokens
  int micros = 1;           // micro-batches of a step (gradient accumulation)
  bool training = true;     // false: no gradients and no optimizer state (generation, evaluation)
  bool recompute = false;
  bool keep_gradients = false;  // after the step too, for for_each_gradient()
  OptimizerSpec optimizer;
  double clipping = 0;  // largest global gradient norm; 0: off
  int64_t memory_limit_bytes = Ledger::kNoLimit;
};

struct StepResult {
  double loss = 0;           // mean over the valid targets of the global batch
  double gradient_norm = 0;  // before clipping
  int64_t valid_targets = 0;
};

// Seconds spent in each verb since the engine began.
struct VerbTimes {
  double forward = 0, backward = 0, norm = 0, step = 0;
};

// A loss or gradient that is not finite: step, unit and tensor are named, and the weights are those
// before the step.
class DivergedError : public UserError {
 public:
  using UserError::UserError;
};

class Engine {
 public:
  Engine(const ModelSpec& spec, const EngineOptions& options);
  ~Engine();

  // What a run with these options would hold, from a dry run of the same programs: its ledger's
  // books.
  static std::unique_ptr<Engine> plan(const ModelSpec& spec, const EngineOptions& options);

  // One optimizer step over options.micros micro-batches at this learning rate.
  StepResult train_step(std::span<const BatchView> micros, double learning_rate);

  // The sum of losses over the valid targets of one micro-batch, and their number.
  std::pair<double, int64_t> evaluate(const BatchView& batch);

  // Generation: logits [batch, vocab] of the last position of each sequence, given caches (one for
  // each block) that the call extends by batch.sequence positions.
  void decode(const BatchView& batch, std::span<KvCache> caches, Tensor logits);

  // Every parameter in order, by name: for saving, loading and comparing.
  void for_each_parameter(const std::function<void(const ParamSpec&, Tensor)>& visit) const;
  void for_each_gradient(const std::function<void(const ParamSpec&, Tensor)>& visit) const;

  int64_t steps_done() const { return steps_done_; }
  const Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  Ledger& ledger() { return ledger_; }
  const VerbTimes& times() const { return times_; }
  int threads() const { return pool_->threads(); }
  Kernels& kernels() { return *kernels_; }
  ThreadPool& pool() { return *pool_; }  // idle between calls

 private:
  struct UnitState;
  struct Walk;  // one program's run

  Engine(const ModelSpec& spec, const EngineOptions& options, Ledger::Memory memory,
         int64_t arena_bytes);
  static int64_t measure_arena(const ModelSpec& spec, const EngineOptions& options);
  void allocate(int64_t arena_bytes);
  void run(const Program& program, Walk& walk);
  void forward(const Action& action, Walk& walk);
  void backward(const Action& action, Walk& walk);
  void norm(const Action& action, Walk& walk);
  void step(const Action& action, Walk& walk);
  UnitCall call_for(int unit, const BatchView& batch);
  std::vector<Tensor> gradients_of(int unit);
  void check_loss(double loss, int micro) const;
  [[noreturn]] void report_not_finite(int unit);

  Model model_;
  EngineOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  Ledger ledger_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<UnitState>> states_;
  Arena arena_;
  Buffer rope_, losses_;
  Program training_, evaluation_;
  int64_t steps_done_ = 0;
  VerbTimes times_;
};

}  // namespace onefold

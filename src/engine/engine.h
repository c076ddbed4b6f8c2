// The engine holds one rank's training state and runs programs over it. The same class runs on the
// dry device with a dry communicator: that is what sizes the scratch arena, and what a plan is.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "engine/lane_thread.h"
#include "engine/options.h"
#include "engine/programs.h"
#include "engine/trace.h"
#include "engine/unit_state.h"
#include "kernels/kernels.h"
#include "model/unit.h"

namespace onefold {

struct StepResult {
  double loss = 0;           // mean over the valid targets of the global batch
  double gradient_norm = 0;  // before clipping
  int64_t valid_targets = 0;
};

// Seconds spent in each verb since the engine began; communication is what computation had to wait
// for.
struct VerbTimes {
  double forward = 0, backward = 0, norm = 0, step = 0, communication = 0;
};

// A loss or gradient that is not finite: step, unit, tensor and rank are named, and the weights are
// those before the step. All ranks throw it, and can still talk to each other.
class DivergedError : public AgreedError {
 public:
  static constexpr int kExitCode = 3;  // of a program that ends with it
  using AgreedError::AgreedError;
};

class Engine {
 public:
  // Every rank of the communicator makes an engine with the same options. Without one: a single
  // rank.
  Engine(const ModelSpec& spec, const EngineOptions& options,
         std::shared_ptr<Communicator> communicator = nullptr);
  ~Engine();

  // What each of `ranks` ranks with these options would hold and send, from a dry run of the same
  // programs: its ledger's books and its channels' traffic.
  static std::unique_ptr<Engine> plan(const ModelSpec& spec, const EngineOptions& options,
                                      int ranks = 1, int64_t comm_scratch_bytes = 0);

  // One optimizer step over this rank's options.micros micro-batches at this learning rate.
  StepResult train_step(std::span<const BatchView> micros, double learning_rate);

  // The sum of losses over the valid targets of one micro-batch, and their number, of this rank.
  std::pair<double, int64_t> evaluate(const BatchView& batch);

  // Generation (one rank): logits [batch, vocab] of the last position of each sequence, given
  // caches (one for each block) that the call extends by batch.sequence positions.
  void decode(const BatchView& batch, std::span<KvCache> caches, Tensor logits);

  // Every parameter in order, by name, whole: for saving and comparing. All ranks call it together;
  // sharded units are gathered one at a time.
  void for_each_parameter(const std::function<void(const ParamSpec&, Tensor)>& visit);
  // Elements [first, first + dst.cols) of each parameter, as far as this rank holds them: for
  // loading.
  void for_each_piece(
      const std::function<void(const ParamSpec&, int64_t first, Tensor dst)>& visit);
  // The same of the optimizer's state, by its name.
  void for_each_optimizer_piece(const std::function<void(const std::string& state, const ParamSpec&,
                                                         int64_t first, Tensor dst)>& visit);

  // What this rank alone puts into a checkpoint of a unit: its share of parameters and optimizer
  // state. It stays as it is until the unit's next step action.
  struct SavedPiece {
    const ParamSpec* param;
    std::string state;  // "parameters", or the optimizer's
    int64_t first;
    Tensor data;
  };
  std::vector<SavedPiece> saved_pieces(int unit) const;
  // The states that are saved of a unit's parameters.
  std::vector<std::string> saved_states(int unit) const;

  // Goes on with a run whose first `steps` steps are in the state that was loaded.
  void resume_after(int64_t steps) { steps_done_ = steps; }

  void for_each_gradient(const std::function<void(const ParamSpec&, Tensor)>& visit);

  // Every rank's numbers, [ranks][mine.size()] in rank order. All ranks call it together.
  std::vector<double> exchange(std::string_view what, std::span<const double> mine);

  // Every rank's text, in rank order. All ranks call it together.
  std::vector<std::string> collect(std::string_view what, const std::string& mine);

  int64_t steps_done() const { return steps_done_; }
  const Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  const Program& training() const { return training_; }
  int rank() const { return communicator_->rank(); }
  int ranks() const { return communicator_->ranks(); }
  Ledger& ledger() { return ledger_; }
  const VerbTimes& times() const { return times_; }
  // By lane (compute: the small exchanges): what was sent, and how long computation waited for it.
  const TrafficTable& traffic(Lane lane) const { return channel(lane).traffic(); }
  double exposed_seconds(Lane lane) const { return exposed_[static_cast<size_t>(lane)]; }
  Trace& trace() { return trace_; }
  int threads() const { return pool_->threads(); }
  Kernels& kernels() { return *kernels_; }
  ThreadPool& pool() { return *pool_; }  // idle between calls

 private:
  struct Walk;  // one program's run

  Engine(const ModelSpec& spec, const EngineOptions& options, Ledger::Memory memory,
         std::shared_ptr<Communicator> communicator, int64_t arena_bytes);
  static int64_t measure_arena(const ModelSpec& spec, const EngineOptions& options,
                               const Communicator& communicator);
  void open_channels();
  void allocate_state();
  void allocate_workspace(int64_t arena_bytes);
  void initialise_parameters();

  // executor.cpp
  void run(const Program& program, Walk& walk);
  void execute(const Action& action, Walk& walk);
  void wait_for(const Action& action, Walk& walk);
  void finish_lanes();
  void forward(const Action& action, Walk& walk);
  void backward(const Action& action, Walk& walk);
  void gather(const Action& action, Walk& walk);
  void reduce(const Action& action, Walk& walk);
  void release(const Action& action);
  void norm(const Action& action, Walk& walk);
  void clip(Walk& walk);
  void step(const Action& action, Walk& walk);
  void communicate(const Action& action, Walk& walk, std::function<void(const std::string&)> call);
  UnitCall call_for(int unit, const BatchView& batch, std::vector<Tensor>& params);
  UnitCall call_for(const BatchView& batch, std::span<const Tensor> params);
  std::vector<Tensor> gradients_of(int unit);
  double sum_squares(Tensor gradient, const Piece& piece);
  std::string loss_not_finite(double loss, int micro) const;
  std::string gradient_not_finite(int unit);
  // All ranks together. `clipped`: of each the sums by unit, and that of the losses.
  [[noreturn]] void report_divergence(const Walk& walk, std::span<const double> clipped);
  std::string at_rank() const;  // ", rank 2" where there are several

  const std::string& unit_name(int unit) const {
    return model_.units[static_cast<size_t>(unit)]->name();
  }
  UnitState& state(int unit) { return *states_[static_cast<size_t>(unit)]; }
  Channel& channel(Lane lane) const { return *channels_[static_cast<size_t>(lane)]; }
  bool dry() const { return ledger_.memory() == Ledger::Memory::dry; }

  Model model_;
  EngineOptions options_;
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<ThreadPool> pool_;
  Ledger ledger_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<UnitTraits> traits_;
  int lowest_trained_ = 0;  // the last unit whose backward runs
  std::vector<std::unique_ptr<UnitState>> states_;
  Arena arena_;
  Buffer rope_, losses_;
  std::array<Buffer, kLanes> channel_scratch_;
  std::array<std::unique_ptr<Channel>, kLanes> channels_;
  Program training_, evaluation_;
  int64_t steps_done_ = 0;
  std::vector<double> sum_squares_;  // by unit: this rank's shard, then all ranks'
  VerbTimes times_;
  std::array<double, kLanes> exposed_{};
  Trace trace_;
  std::array<std::unique_ptr<LaneThread>, kLanes> lanes_;  // last: they use the rest
};

}  // namespace onefold

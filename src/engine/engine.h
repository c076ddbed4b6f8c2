// An engine is one rank's part of a training: a device, the state on it, a program for a step, and
// what runs it. The same class runs on the dry device with a dry communicator: that is what sizes
// the scratch arena, and what a plan is.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/executor.h"
#include "engine/lines.h"
#include "engine/programs.h"
#include "engine/step_batches.h"

namespace onefold {

// What clipping has done to a unit's gradients, or to all of them.
struct ClippedGradients {
  double factor = 1;    // the least that a gradient was multiplied by
  int64_t tensors = 0;  // gradients that were made smaller
  int64_t values = 0;   // elements that were clamped
};

struct StepResult {
  double loss = 0;           // mean over the valid targets of the global batch
  double gradient_norm = 0;  // before clipping
  int64_t valid_targets = 0;
  bool skipped = false;   // gradients were not finite, and weights are as before
  double loss_scale = 1;  // of this step
  ClippedGradients clipped;
  StepExperts experts;                          // of a model that has some
  std::vector<ClippedGradients> clipped_units;  // by unit; where a ClipRule says more than one norm
};

// A loss or gradient that is not finite: step, unit, tensor and rank are named, and the weights are
// those before the step. All ranks throw it, and the communicator stays usable.
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

  // What one of `ranks` ranks with these options would hold and send on the described hardware,
  // from a dry run of the same programs: its ledger's books and its channels' traffic. Ranks differ
  // along the pipeline axis (see plan_worst()), and along the tensor axis only where a vocabulary
  // is not divided evenly: the first has the most of it. Throws InternalError if a program is not
  // sound.
  static std::unique_ptr<Engine> plan(const ModelSpec& spec, const EngineOptions& options,
                                      int ranks = 1, int64_t comm_scratch_bytes = 0,
                                      const Hardware& hardware = {}, int rank = 0);

  // The same of the rank that holds the most, the first rank of a pipeline's stage; `peaks`: of
  // each stage.
  static std::unique_ptr<Engine> plan_worst(const ModelSpec& spec, const EngineOptions& options,
                                            int ranks = 1, int64_t comm_scratch_bytes = 0,
                                            const Hardware& hardware = {},
                                            std::vector<int64_t>* peaks = nullptr);

  // One optimizer step over this rank's options.micros micro-batches at this learning rate.
  StepResult train_step(std::span<const BatchView> micros, const StepRates& rates);

  // The sum of losses over the valid targets of one micro-batch, and their number, of this rank
  // and those that have other parts of its sequences.
  std::pair<double, int64_t> evaluate(const BatchView& batch);

  // The same, loss by loss: 0 where there is no target.
  std::vector<float> token_losses(const BatchView& batch);

  // Goes on with a run whose first `steps` steps are in the state that was loaded.
  void resume_after(int64_t steps, const std::optional<LossScale::State>& scale = {},
                    std::span<const double> norms = {});
  // What was loaded has no momentum of any rank's own: theirs begins as the optimizer's.
  void begin_momentum_again() { momentum_begins_ = true; }
  int64_t steps_done() const { return steps_done_; }
  int64_t steps_here() const { return steps_done_ - resumed_after_; }  // by this engine
  // Those that have changed the weights: what learning rates and bias corrections count.
  int64_t updates_done() const { return steps_done_ - loss_scale_.state().skipped; }
  const LossScale& loss_scale() const { return loss_scale_; }
  // The past norms whose percentile limits the next one; none where that is off.
  const std::vector<double>& norms() const { return norms_; }
  // Of ranks whose moves are summed: the sum of learning rates since then.
  double rates_since_sum() const { return rates_since_sum_; }
  void set_rates_since_sum(double rates) { rates_since_sum_ = rates; }

  const Model& model() const { return model_; }  // the share that this rank computes
  const EngineOptions& options() const { return options_; }
  int rank() const { return control_.rank(); }
  int ranks() const { return control_.ranks(); }
  const Mesh& mesh() const { return lines_.mesh; }
  // Along the axes data and expert: which of the global batch's parts this rank computes (of each
  // sequence, a run of tokens, if there is a context axis).
  int data_rank() const {
    return mesh().place(Axis::data, rank()) * mesh().size(Axis::expert) +
           mesh().place(Axis::expert, rank());
  }
  int data_ranks() const { return mesh().size(Axis::data) * mesh().size(Axis::expert); }

  Device& device() { return *device_; }
  const Tiers& tiers() const { return tiers_; }
  Ledger& ledger() { return ledger_; }
  // With what the last step has left to the host completed; as it is, for other threads.
  RankState& state() {
    executor_.settle();
    return state_;
  }
  const RankState& state() const { return state_; }
  Control& control() { return control_; }
  Executor& executor() { return executor_; }
  StepBatches& batches() { return batches_; }
  const Program& evaluation() const { return evaluation_; }
  const Program& program() const { return training_; }
  const Pipeline& pipeline() const { return pipeline_; }
  Channel& channel(Lane lane) const { return channels_.of(lane); }

  // By lane (compute: the small exchanges): what was sent, and how long computation waited for it.
  TrafficTable traffic(Lane lane) const;
  // Of the lane exchange: along which axis.
  TrafficTable exchanged(Axis axis) const { return channels_.exchanged(axis); }
  // What a lane has packed to send it; null where nothing is.
  bool packs(Lane lane) const { return executor_.packs(lane); }
  std::optional<PackWork> packed(Lane lane) const { return executor_.packed(lane); }
  // What has travelled between the device and other tiers, and how long that took.
  const CopyWork& copies(Lane lane) const { return executor_.times().copies(lane); }
  double exposed_seconds(Lane lane) const { return executor_.times().exposed_seconds(lane); }
  double in_place_seconds(Lane lane) const { return executor_.times().in_place_seconds(lane); }
  const VerbTimes& times() const { return executor_.times().verbs(); }
  Trace& trace() { return executor_.times().trace(); }

 private:
  // What a dry run has measured: of the arena, and by unit of backwards in two parts.
  struct Scratch {
    int64_t arena_bytes = 0;
    std::vector<int64_t> later_bytes = {};
  };
  // Without scratch it is measured.
  Engine(const ModelSpec& spec, const EngineOptions& options, std::unique_ptr<Device> device,
         std::shared_ptr<Communicator> communicator, std::optional<Scratch> scratch);
  static Scratch measure_arena(const ModelSpec& spec, const EngineOptions& options,
                               const Hardware& hardware, int threads, Place place,
                               std::shared_ptr<const KernelScratch> scratch = nullptr);
  // After a read of what ranks have exchanged: PeerError if that failed behind the host's back.
  void require_exchanged() const;
  void end_step(bool skipped, const Walk& walk);
  void follow_scale(double before);
  template <typename T>
  void pass_to_all_stages(const char* what, std::span<T> values);
  template <typename T>
  std::vector<T> gather_from_parts(const char* what, std::span<const T> mine);
  // Whoever copies the state behind the run has all of it before it changes outside of a program.
  void announce_change() const;
  // Of local steps: where ranks begin, and their average.
  void begin_local_steps();
  void average_local_steps();
  // The same of those whose moves are summed.
  void add_moves(double learning_rate);
  void sum_moves();
  // visit(piece, rate, decay): what is stepped of a unit, by how much of the learning rate.
  void for_each_stepped(int unit,
                        const std::function<void(const SlabPiece&, double, double)>& visit);
  // Whether this rank computes with old weights.
  bool begin_stale_step();
  // Where each rank's own momentum begins: its part of the optimizer's.
  void begin_own_momentum(double loss_scale);
  double clip_limit() const;
  void count_clipped(const Walk& walk, StepResult& result) const;
  [[noreturn]] void report_divergence(const Walk& failed);

  EngineOptions options_;
  Lines lines_;
  Pipeline pipeline_;
  std::unique_ptr<Device> device_;
  Model model_;
  Tiers tiers_;
  Ledger ledger_;
  std::vector<UnitTraits> traits_;
  Program training_, evaluation_;
  RankState state_;
  Channels channels_;
  Control control_;
  StepBatches batches_;
  int64_t steps_done_ = 0, resumed_after_ = 0;
  LossScale loss_scale_;
  std::vector<double> norms_;
  double rates_since_sum_ = 0;
  bool momentum_begins_ = false;
  int skipped_in_a_row_ = 0;
  Executor executor_;  // last: its lanes use the rest
};

}  // namespace onefold

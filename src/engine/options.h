// What an engine is told: the shape of a step, where state lives, and what it may use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "comm/packed.h"
#include "engine/recompute.h"
#include "model/unit.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

class KernelProfile;

// ZeRO: how training state is spread over ranks, and how it travels. Sizes are elements. None of
// these changes a bit of the result.
struct ZeroOptions {
  static constexpr int64_t kAuto = -1;

  int stage = 0;                        // 0: all replicated; 1: optimizer sharded; 2: + gradients;
                                        // 3: + parameters
  int64_t prefetch_elems = kAuto;       // gathered ahead of use; auto: one unit
  int64_t max_live_elems = 1000000000;  // gathered at once
  int64_t max_reuse_distance = 0;       // keep what is used again within so many elements
  int64_t persistence_elems = 100000;   // units up to this size stay whole
  int64_t reduce_bucket_elems = 500000;
  int64_t gather_bucket_elems = 500000;
  bool overlap = true;  // gathers and reductions on lanes of their own
  // Stage 3: neighbours along the axes that share state, so many of them, keep what was gathered
  // whole between them until the next step. 1: nobody does.
  int node_ranks = 1;
};

// Which states live on another tier than the device's. None of these changes a bit of the result.
struct OffloadOptions {
  Tier parameters = Tier::device;
  Tier optimizer = Tier::device;     // gradients go where the optimizer's states are
  double optimizer_ratio = 1;        // how much of the latter, by units
  int64_t host_parameter_elems = 0;  // of parameters on a disk: so many stay in the host's memory
  Tier activations = Tier::device;   // what forward keeps for backward
  double host_step_ratio = 1;        // how much of the host tier's states the host's cores step
  std::string folder;                // of the disk tier's file
  Files::Requests requests{};        // how its calls are cut

  bool uses(Tier tier) const {
    return parameters == tier || optimizer == tier || activations == tier;
  }
  bool any() const {
    return parameters != Tier::device || optimizer != Tier::device || activations != Tier::device;
  }
};

// What travels along the data axis in a wire format. Each of these changes results.
struct CompressionOptions {
  WireFormat gradients, weights;  // weights: as they are gathered for use
  bool feedback = true;           // gradients: what was not sent is kept, and sent later
  int64_t whole_steps = 0;        // so many steps send gradients as they are, first of all
  // Sparse: over so many further steps the density falls, a quarter at a time, to the format's.
  int64_t density_steps = 0;
  // Sparse: each unit has a density of its own, by the norms of past gradients, for as many bytes.
  bool adaptive = false;
  // Ranks that share a host, as they are numbered: they sum gradients as they are, and packets
  // travel between hosts alone.
  int host_ranks = 1;
  // After the whole steps, whose momentum is the optimizer's, each rank's own momentum travels.
  bool corrects_momentum = false;
  MomentumCorrection correction;

  bool any() const { return !gradients.none() || !weights.none(); }
  // How gradients travel in the step after so many, of which those that are skipped are none; in
  // the end (a plan's step), `gradients`. What the second moment takes in between whole steps (0/1
  // Adam) travels whole.
  WireFormat gradients_after(int64_t updates, const OptimizerSpec& optimizer = {}) const;
  // The densities of units whose shards have so many elements, where these are their gradients'
  // squares: in proportion to the root of the mean square, but within kLeastDensity and
  // kMostDensity times `density`, and as many elements in all as with that alone. By operations
  // that IEEE fixes, for all ranks must have the same.
  static constexpr double kLeastDensity = 0.25, kMostDensity = 4;
  static std::vector<double> densities(double density, std::span<const double> squares,
                                       std::span<const int64_t> shard_elems);
  // States of each rank's own, one element for each of a trained parameter: names in checkpoints.
  static constexpr const char* kVelocity = "velocity";  // with corrects_momentum
  std::vector<std::string> own_states(int ranks) const;
};

// Local steps: each rank steps by its own gradients, and every so many steps the ranks' weights are
// averaged: an outer optimizer takes where they began, less the mean of where they are, for a
// gradient (local SGD: rate 1 and no momentum; DiLoCo: Nesterov's). Or, with AdamW whose second
// moment stays after the whole steps, what ranks have moved is summed in a wire format, and is the
// momentum of all that follows (0/1 Adam, Lu et al. 2022). All state is whole on each rank.
struct LocalOptions {
  int64_t steps = 1;        // from one average to the next; 1: gradients are summed, as ever
  bool sums_moves = false;  // 0/1 Adam: from one sum to the next, at most
  int64_t scaler = 0;       // then: intervals begin as one step, and double every so many steps
  int64_t whole_steps = 0;  // so many steps sum gradients, first of all
  float rate = 0.7f, momentum = 0.9f;
  bool nesterov = true;

  bool on() const { return steps > 1 || sums_moves; }
  // How far apart ranks meet about a step (counted from 1), and whether they do after it.
  int64_t interval(int64_t step) const;
  bool meets(int64_t step) const;
};

// Workers that do not wait for each other, in logical time: a rank goes on with the weights it has
// for some steps, and then takes the newest. For how many follows from the seed, the rank and the
// step at which it took them, and is at most `bound`; so a run has the same bits whenever it is
// repeated. Gradients of all ranks are summed in every step, whatever the age of the weights that
// they are of.
struct StaleOptions {
  int64_t bound = 0;        // the greatest age of weights, in steps; 0: none is old
  float compensation = 0;   // times g² (w - old w) is added to a rank's gradient g (DC-ASGD)
  int64_t whole_steps = 0;  // so many steps use the newest weights, first of all

  bool on() const { return bound > 0; }
  // The age of what a rank computes with in the step after so many.
  int64_t age(uint64_t seed, int rank, int64_t steps) const;
};

// What becomes of gradients between their sum and the step, beside EngineOptions::clipping.
struct ClipRule {
  enum class Of : uint8_t { all, unit, tensor };

  Of of = Of::all;        // what the limit is the norm's of
  bool adaptive = false;  // of each tensor, and times the norm of its weights
  double least = 1e-3;    // of that norm
  double value = 0;       // first of all: the largest element; 0: off
  double percentile = 0;  // the limit is at most this percentile of past norms; 0: off
  int64_t window = 1000;  // of so many of them

  // Whether factors differ from gradient to gradient.
  bool each() const { return adaptive || of != Of::all; }
  bool by_tensor() const { return adaptive || of == Of::tensor; }
  // Whether ranks exchange numbers of each tensor.
  bool counts_tensors() const { return by_tensor() || value > 0; }
};

// Pipelines: which units a rank computes, and in which order it takes its turns. None of these
// changes a bit of the result.
struct PipelineOptions {
  enum class By : uint8_t { flops, parameters };

  int ranks = 1;       // along the axis
  int interleave = 1;  // stages of each
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  By by = By::flops;            // what stages have the same of, as far as units allow
  std::vector<int> units = {};  // of each stage, where that is given
};

struct EngineOptions {
  std::string device = "cpu";  // device/device_name.h
  // Where ranks have a card each: NCCL's own sums (comm/nccl.h) in place of ordered ones.
  bool library_sums = false;
  // Ranks along the axes of the mesh that divide a model or its sequences (comm/mesh.h); with those
  // of the pipeline, the others are the data axis.
  int tensor = 1;                  // each unit is divided among them
  bool sequence_parallel = false;  // and what passes between units, too (Share::scattered)
  int overlap_chunks = 1;  // runs of rows whose sums travel beside the next (1: they do not)
  int context = 1;         // each sequence is
  ContextMethod context_method = ContextMethod::ulysses;
  int expert = 1;           // each mixture's experts are
  double expert_bound = 0;  // rows for each of them (ExpertShare::bound)
  PipelineOptions pipeline;
  int threads = 0;  // of this rank; 0: all cores this thread may use (dry: the described ones)
  uint64_t seed = 1;
  int64_t micro_batch = 1;  // sequences
  int64_t sequence = 0;     // tokens
  int64_t positions = 0;    // that a rope table spans; 0: those of a sequence
  bool documents = false;   // batches say where documents begin (BatchView::starts)
  int micros = 1;           // micro-batches of a step (gradient accumulation)
  Order order = Order::micro_first;
  bool training = true;  // false: no gradients and no optimizer state (generation, evaluation)
  Recompute recompute;
  bool split_phases = false;        // each phase of a unit is an action, with exchanges between
  bool keep_gradients = false;      // after the step too, for RankState::for_each_gradient()
  std::vector<std::string> frozen;  // units that are not trained
  ZeroOptions zero;
  OffloadOptions offload;
  CompressionOptions compression;
  LocalOptions local;
  StaleOptions stale;
  OptimizerSpec optimizer;
  Precision precision;
  LossScaleConfig loss_scale;
  // A step with gradients that are not finite is left out and counted, instead of ending the run.
  bool skip_overflow = false;
  double clipping = 0;  // largest global gradient norm; 0: off
  ClipRule clip_rule;
  int64_t memory_limit_bytes = Ledger::kNoLimit;  // of this rank
  // Fills elements [first, first + dst.size()) of a parameter: where weights start from. Without
  // it: random ones, by the seed. Called from many threads, for parts of one parameter at a time.
  // Adapters have one of their own.
  std::function<void(const ParamSpec&param, int64_t first, std::span<float> dst)> initial,
      initial_adapters;
  std::function<void(const Action&)> before_action;  // for watching a step, and for tests of faults
  std::shared_ptr<KernelProfile> profile;            // for timing kernels; null: none is

  // Of a sequence and of a micro-batch: what a rank computes.
  int64_t part_length() const { return sequence / context; }
  int64_t tokens() const { return micro_batch * part_length(); }
};

// States of each rank's own, in the order of UnitState's, where so many ranks sum their gradients.
inline std::vector<std::string> own_states_of(const EngineOptions& options, int summing_ranks) {
  if (!options.training) return {};
  if (options.local.sums_moves) return {"anchor", "moved", "residual"};
  if (options.local.on()) return {"anchor", "outer_momentum"};
  if (options.stale.on()) return {"stale"};
  return options.compression.own_states(summing_ranks);
}

// A parameter as optimizers know it.
inline ParamShape shape_of(const ParamSpec& param) {
  return {param.rows, param.cols, param.decay, param.decay && param.name.starts_with("block.")};
}

// What the optimizer keeps of a unit's trained parameters; nothing without training. `has_hidden`:
// the unit has matrices of a block.
inline std::vector<OptimizerState> kept_states(const EngineOptions& options, bool has_hidden) {
  if (!options.training) return {};
  return options.optimizer.states(options.precision, has_hidden);
}

}  // namespace onefold

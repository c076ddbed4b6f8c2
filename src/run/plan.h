// What a run will be, known before its first step: its data, model, length, and what each rank
// holds and sends, the last two from a dry run of the same programs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/launch.h"
#include "inspect/adapter.h"
#include "plan/fit.h"
#include "run/prediction.h"
#include "run/search.h"
#include "run/session.h"

namespace onefold {

// One kind of collective on one lane, of one rank in one step.
struct PlannedTraffic {
  Lane lane;
  Collective collective;
  int64_t calls = 0, bytes_sent = 0;
  Axis axis = Axis::data;  // of the lane exchange
};

// What one rank holds and sends. Ranks are alike, but for those at different places of a pipeline:
// then of the place that holds the most.
struct RankPlan {
  int ranks = 1;
  int place = 0;                     // along a pipeline
  std::vector<int64_t> place_peaks;  // bytes, by place
  int64_t peak_bytes = 0;
  int64_t context_bytes = 0;                    // beside it, of the card's driver and libraries
  std::string peak_moment;                      // the action at which it occurs
  std::array<int64_t, kKinds> bytes_at_peak{};  // by Kind
  std::array<int64_t, kKinds> kind_peaks{};     // each kind's own peak
  std::vector<PlannedTraffic> traffic;          // of one step
  // On the other tiers, which nothing but state is on, and what travels to and from them in a step.
  int64_t host_bytes = 0, disk_bytes = 0;
  int64_t fetched_bytes = 0, spilled_bytes = 0;
  std::optional<Prediction> predicted;  // where the hardware's rates are known
  std::vector<RankTrace> traces;        // then: of a step, of one rank at each place

  bool staged() const { return place_peaks.size() > 1; }
};

// `predicts`: the hardware has rates that mean something.
RankPlan plan_rank(const ModelSpec& model, const EngineOptions& options, int ranks,
                   int64_t comm_scratch_bytes = 0, const Hardware& hardware = {},
                   bool predicts = false);

struct RunPlan {
  RunData data;
  ModelSpec model;
  std::optional<LoraRecord> lora;  // of a run with adapters
  EngineOptions options;           // of each rank, with the order of micro-batches settled
  int64_t steps = 0;
  const char* transport = "threads";
  int cores = 1;                        // of each rank
  bool threads_by_environment = false;  // not by the cores, but by OMP_NUM_THREADS
  std::string resumes;  // the checkpoint or run that the weights come from; "": a new run
  RankPlan rank;
};

// The engine's options with what is "auto" settled: threads by the hardware's cores, recomputation
// and the order of micro-batches by memory. `available_bytes`: what recomputation must fit if
// run.memory does not say; 0: anything fits.
EngineOptions settled_options(const Config& config, const ModelSpec& model,
                              const FitContext& context, int64_t available_bytes);

// What a run on these ranks is planned for: this machine, with the rates that are known of it.
FitContext run_context(const Config& config, const Ranks& ranks, const std::string& rates);
// What each rank of it may use, if the search is to choose.
TierLimits run_limits(const Config& config, const Ranks& ranks, const FitContext& context);

// Reads the data. Throws UserError if the run would not fit run.memory, with what would. `rates`:
// a hardware description (hardware_named) whose rates this machine has; "": they are not known.
RunPlan plan_run(const Config& config, const Ranks& ranks, const std::string& rates = "");

// The plan in a few lines, and as JSON with the configuration in force.
std::string plan_text(const Config& config, const RunPlan& plan);
Json plan_json(const Config& config, const RunPlan& plan);

// The parts that a plan without data shares with it.
std::string model_text(const Config& config, const ModelSpec& model);
// Where the weights come from that training begins with.
std::string weights_text(const Config& config, const std::string& resumes = "");
// The adapters, and what share of all parameters they are; "" without.
std::string lora_text(const ModelSpec& model);
// The axes of the mesh; "" where data is the only one.
std::string mesh_text(const Config& config);
std::string batch_text(const Config& config, const EngineOptions& options);
std::string zero_text(const ModelSpec& model, const EngineOptions& options, int ranks);
std::string recompute_line(const EngineOptions& options, const ModelSpec& model);
// Both empty where there is nothing to say.
std::string groups_text(const Config& config, const ModelSpec& model);
std::string clipping_text(const EngineOptions& options);
std::string types_text(const EngineOptions& options);  // empty where all is fp32
// Which states live on other tiers, what is there, and what travels; "" if there are none.
std::string compression_text(const EngineOptions& options);
std::string offload_text(const EngineOptions& options, const RankPlan& plan);
// How long a step takes; "" where that is not known.
std::string time_text(const RankPlan& plan);
std::string memory_text(const RankPlan& plan);
std::string traffic_text(const RankPlan& plan);
// What each "auto" became, remarks, and the keys that change nothing; "" if there are none.
std::string notes_text(const Config& config);
Json rank_json(const RankPlan& plan);

}  // namespace onefold

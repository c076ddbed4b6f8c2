// A run's configuration: one JSON file with DeepSpeed's keys under DeepSpeed's names and meanings,
// plus our sections "model", "lora", "data" and "run". docs/config.md lists every key. Nothing is
// ignored in silence: a key is unknown, asks for what is not there yet, contradicts another, has
// its effect, or is noted as one that changes nothing. Paths are relative to the current directory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "data/documents.h"
#include "data/sequences.h"
#include "engine/options.h"
#include "model/spec.h"
#include "optim/schedule.h"

namespace onefold {

// The axes of the mesh of ranks.
struct MeshConfig {
  int64_t data = 1, tensor = 1, pipeline = 1, context = 1, expert = 1;
  bool sequence_parallel = false;  // ranks along `tensor` divide what passes between units, too
  int64_t overlap_chunks = 1;      // runs of rows whose sums along `tensor` travel beside others
  double expert_bound = 0;         // of rows that ranks along `expert` send; 0: none

  int64_t others() const { return tensor * pipeline * context * expert; }  // than data
  int ranks() const { return static_cast<int>(data * others()); }
};

// global = micro * accumulation * world_size, in sequences.
struct BatchConfig {
  int64_t global = 0;        // train_batch_size
  int64_t micro = 0;         // train_micro_batch_size_per_gpu
  int64_t accumulation = 0;  // gradient_accumulation_steps
  int64_t world_size = 1;    // ranks of the data and expert axes; not a key
};

struct DataConfig {
  DataSource train;                     // no paths: only a plan can be made
  std::vector<std::string> validation;  // read like `train`
  double validation_fraction = 0;       // the last part of the training data, held out; 0: none
  std::string tokenizer = "bytes";  // or the path of a tokenizer.json; "" (only for tokens): none
  int64_t sequence_length = 0;      // default: the model's longest, at most 1024
  DocumentMode documents = DocumentMode::kPacked;
  bool shuffle = true;

  bool has_validation() const { return !validation.empty() || validation_fraction > 0; }
};

struct RunConfig {
  std::string output;  // folder for checkpoints, metrics and event files; "": nothing is written
  uint64_t seed = 1;
  // The length of the run: at most one is not 0.
  int64_t steps = 0;
  double epochs = 0;
  int64_t tokens = 0;
  int64_t eval_every = 0;        // steps; 0: no evaluation
  int64_t eval_sequences = 0;    // of one evaluation, the first ones; 0: the whole validation data
  std::string device = "cpu";    // or cuda, cuda:N
  bool library_sums = false;     // of gradients over ranks, by NCCL in its own order
  int threads = 0;               // 0: all cores this process may use
  int64_t memory_bytes = 0;      // limit; 0: none
  int64_t save_every = 0;        // steps from one checkpoint to the next; 0: at the end only
  double save_minutes = 0;       // or minutes; 0: by steps alone
  int64_t keep_last = 2;         // checkpoints
  int64_t keep_every = 0;        // and those of every so many steps; 0: none
  bool stop_if_unsaved = false;  // "save_failures": "stop", else "warn"
  bool tensorboard = false;
  std::string tensorboard_folder;   // DeepSpeed's "tensorboard": events go here too; "": none
  std::string csv_folder;           // DeepSpeed's "csv_monitor": a table for each metric; "": none
  Recompute recompute;              // what is not kept, and computed again in backward
  std::string recompute_by;         // "selective" or "auto": recompute is found by planning
  std::string accumulate = "auto";  // the order of micro-batches: micro_first, unit_first, auto
  std::vector<std::string> freeze;  // units that are not trained
  double timeout_seconds = 600;     // how long a rank waits for the others
  bool check_collectives = false;   // compare what ranks call, over MPI (threads always do)
};

// What a plan says about the file besides the values in force.
struct ConfigNotes {
  std::vector<std::string> filled;   // "key value": what each "auto" became
  std::vector<std::string> idle;     // keys that change nothing here
  std::vector<std::string> remarks;  // sentences
};

// optimizer.batch_scaling: rates and warm-ups that were found for batches of another size.
struct BatchScaling {
  int64_t base_batch = 0;  // sequences; 0: off
  bool square_root = false;
  bool warmup = true;  // over as many sequences as with the base batch
};

// "delay": what may happen later than it would.
struct DelayConfig {
  bool one_step = false;  // gradients are applied one step later
  double lookahead = 0;   // and are of weights that are so many steps further
  LocalOptions local;     // ranks step by themselves, and are averaged now and then
  StaleOptions stale;     // ranks go on with old weights
  // So many steps are without any of these, first of all.
  int64_t whole_steps = 0;
};

struct Config {
  MeshConfig mesh;
  PipelineOptions pipeline;             // "pipeline", with the stages of the mesh
  std::string context_method = "auto";  // or "ulysses", "ring"; without that axis nothing
  BatchConfig batch;
  double gradient_clipping = 1;  // largest global gradient norm; 0: off
  ClipRule clip_rule;            // "clipping"
  BatchScaling batch_scaling;    // not a part of effective(): what came out is
  ZeroOptions zero;
  OffloadOptions offload;
  CompressionOptions compression;
  DelayConfig delay;
  Precision precision;
  LossScaleConfig loss_scale;
  bool skip_overflow = false;  // steps whose gradients are not finite are left out
  OptimizerSpec optimizer;
  double learning_rate = 1e-3;  // optimizer.params.lr: the schedule's top
  ScheduleConfig schedule;
  int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false;
  ModelSpec model;           // vocab_size 0: the tokenizer's. With the adapters of "lora"
  std::string model_source;  // the preset's name, the path of config.json, or "inline"
  // model.weights: the Hugging Face folder whose weights training starts from; "": random ones.
  std::string model_weights;
  std::string lora_adapter;  // lora.adapter: the folder whose adapters training starts from
  DataConfig data;
  RunConfig run;
  ConfigNotes notes;  // not a part of what runs: effective() has none of it

  // Throws one UserError with all that is wrong.
  static Config from_json(const Json& root, int64_t world_size = 1);

  // What training needs and a plan does not: data.train, and the length of the run. Throws
  // UserError.
  void require_training() const;

  // Optimizer steps of the run, for a training set that makes `sequences` sequences. Whole batches
  // only.
  int64_t total_steps(int64_t sequences) const;
  // The longest run whose tokens can be counted.
  int64_t most_steps() const;

  // Every value in force, as a configuration that reads back to the same Config.
  Json effective() const;
};

// What an engine is told of it.
EngineOptions engine_options(const Config& config);

// The file's document with the overrides ("a.b=c") applied in order.
Json read_config(const std::string& path, std::span<const std::string> overrides);
// The configuration that it makes; errors name the file.
Config config_of(const Json& root, const std::string& path, int64_t world_size = 1);
// Both.
Config load_config(const std::string& path, std::span<const std::string> overrides,
                   int64_t world_size = 1);

// How many ranks the document's "mesh" names; 1 without one.
int64_t mesh_ranks(const Json& root);

// run.timeout and run.check_collectives alone, which are needed before the number of ranks is
// known. Other mistakes are reported by load_config.
CommOptions comm_options(const std::string& path, std::span<const std::string> overrides);

// Sets one value by its path. The value is JSON if it parses as such, else a string; objects on the
// way are made. null removes the key, whatever it holds.
void apply_override(Json& root, const std::string& assignment);

}  // namespace onefold

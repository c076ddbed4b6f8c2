#include "run/plan.h"

#include <algorithm>

#include "base/block8.h"
#include "base/process.h"
#include "base/text.h"
#include "data/byte_input.h"
#include "data/hf_tokenizer.h"
#include "plan/recompute.h"
#include "run/pipeline_drawing.h"

namespace onefold {
namespace {

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

int64_t step_tokens(const Config& config) {
  return config.batch.global * config.data.sequence_length;
}

// How many sequences an evaluation uses: on any ranks the same.
std::string validation_text(const RunPlan& plan) {
  if (!plan.data.validation) return "";
  const int64_t used = plan.data.validation->rows(),
                all = plan.data.validation->sequences().count();
  return used == all
             ? fmt::format(" (validation: all {})", counted(all, "sequence"))
             : fmt::format(" (validation: {} of {})", format_count(used), counted(all, "sequence"));
}

std::string data_text(const RunPlan& plan) {
  const RunData& data = plan.data;
  std::string text = fmt::format(
      "data     {}, {} held out{}, {}, {}; {} of tokens in memory\n",
      counted(data.train_tokens, "training token"), format_count(data.validation_tokens),
      validation_text(plan), counted(data.documents, "document"),
      describe_end_of_text(data.end_of_text, data.tokenizer ? &*data.tokenizer : nullptr),
      format_bytes(data.memory_bytes));
  if (data.masked)
    text += fmt::format("         loss on the answers alone: {} of a pass\n",
                        counted(data.targets, "token"));
  if (data.skipped.skipped > 0)
    text += fmt::format("         {} skipped, the first because {}\n",
                        counted(data.skipped.skipped, "line"), data.skipped.first_skipped);
  return text;
}

std::string run_text(const Config& config, const RunPlan& plan) {
  const std::string ranks =
      plan.rank.ranks == 1 ? ""
                           : fmt::format("{} ranks over {} with ", plan.rank.ranks, plan.transport);
  // Set by habit, or by a launcher, for other programs: whoever wonders at the speed finds it here.
  const std::string reason =
      plan.threads_by_environment
          ? fmt::format(", as OMP_NUM_THREADS says ({} there)", counted(plan.cores, "core"))
          : "";
  return fmt::format("run      {} step{} = {}, {:.2f} epochs, on {}{}{}{}{}\n", plan.steps,
                     plan.steps == 1 ? "" : "s", counted(plan.steps * step_tokens(config), "token"),
                     plan.data.train->epochs(plan.steps),
                     plan.options.device == "cpu" ? "" : plan.options.device + " with ", ranks,
                     counted(plan.options.threads, "thread"), plan.rank.ranks == 1 ? "" : " each",
                     reason);
}

}  // namespace

RankPlan plan_rank(const ModelSpec& model, const EngineOptions& options, int ranks,
                   int64_t comm_scratch_bytes, const Hardware& hardware, bool predicts) {
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  std::vector<int64_t> peaks;
  const auto dry =
      Engine::plan_worst(model, unlimited, ranks, comm_scratch_bytes, hardware, &peaks);
  RankPlan plan{.ranks = ranks,
                .place = dry->pipeline().place,
                .place_peaks = std::move(peaks),
                .peak_bytes = dry->ledger().peak_bytes(),
                .context_bytes = hardware.context_bytes,
                .peak_moment = dry->ledger().peak_moment()};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    plan.bytes_at_peak[kind] = dry->ledger().bytes_at_peak(static_cast<Kind>(kind));
    plan.kind_peaks[kind] = dry->ledger().peak_bytes(static_cast<Kind>(kind));
  }
  const auto add = [&](Lane lane, const TrafficTable& table, Axis axis = Axis::data) {
    for (size_t c = 0; c < table.size(); ++c)
      if (table[c].calls > 0)
        plan.traffic.push_back(
            {lane, static_cast<Collective>(c), table[c].calls, table[c].bytes_sent, axis});
  };
  for (const Lane lane : {Lane::gather, Lane::reduce}) add(lane, dry->traffic(lane));
  for (const Axis axis : kExchangeAxes) add(Lane::exchange, dry->exchanged(axis), axis);
  for (const Lane lane : {Lane::send, Lane::compute}) add(lane, dry->traffic(lane));
  plan.host_bytes = dry->ledger().peak_bytes(Tier::host);
  plan.disk_bytes = dry->ledger().peak_bytes(Tier::disk);
  plan.fetched_bytes = dry->copies(Lane::fetch).bytes;
  plan.spilled_bytes = dry->copies(Lane::spill).bytes;
  if (!predicts) return plan;
  plan.predicted = predict(*dry, hardware.name);
  plan.traces = {plan.predicted->trace};
  if (!plan.staged()) return plan;
  const PipelinePlan together =
      plan_pipeline(model, unlimited, ranks, comm_scratch_bytes, hardware);
  plan.predicted->wait_for_other_stages(together.times.seconds);
  plan.traces = traces_of(together);
  return plan;
}

EngineOptions settled_options(const Config& config, const ModelSpec& model,
                              const FitContext& context, int64_t available_bytes) {
  EngineOptions options = engine_options(config);
  if (options.threads == 0) options.threads = context.hardware.cores;
  const int64_t limit = config.run.memory_bytes > 0 ? config.run.memory_bytes : available_bytes;
  if (config.run.recompute_by == "selective")
    options.recompute = selective_recompute(model, options, context);
  else if (config.run.recompute_by == "auto" && limit > 0)
    options.recompute = least_recompute(model, options, context, limit);
  if (!context.order_is_given)
    options.order = choose_order(model, options, context.ranks, context.hardware);
  return options;
}

namespace {

// Each process reads the data; a pipe can be read by one.
void require_readable(const Config& config, const Ranks& ranks) {
  if (std::string_view(ranks.transport()) != "MPI" || ranks.count() == 1) return;
  for (const auto& paths : {config.data.train.paths, config.data.validation})
    for (const std::string& path : paths)
      if (is_read_once(path))
        user_error(
            "data: {} can be read by one process, and these ranks are several; use --ranks, or "
            "make a token file first",
            input_name(path));
}

// What a run can hold is this machine's, whatever the description says.
Hardware with_rates_of(const Hardware& machine, Hardware described) {
  if (machine.device != described.device)
    user_error("--hardware: {} describes the device {}, and this run is on {}", described.name,
               described.device, machine.device);
  described.instruction_set = machine.instruction_set;
  described.multiplies_bf16 = machine.multiplies_bf16;
  described.cores = machine.cores;
  described.device_bytes = machine.device_bytes;
  described.context_bytes = machine.context_bytes;
  return described;
}

}  // namespace

FitContext run_context(const Config& config, const Ranks& ranks, const std::string& rates) {
  FitContext context{ranks.count(), ranks.scratch_bytes(config.run.device),
                     config.run.accumulate != "auto",
                     this_machine(ranks.cores(), config.run.device, ranks.ranks_here())};
  if (!rates.empty()) context.hardware = with_rates_of(context.hardware, hardware_named(rates));
  return context;
}

// Most of what the machine has, whatever is free of it now: all processes must find the same.
TierLimits run_limits(const Config& config, const Ranks& ranks, const FitContext& context) {
  constexpr double kShare = 0.75;
  const auto host =
      static_cast<int64_t>(kShare * static_cast<double>(total_memory_bytes())) / ranks.ranks_here();
  const bool card = context.hardware.device != "cpu";
  TierLimits limits{.device = card ? context.hardware.available_bytes() : host};
  if (config.run.memory_bytes > 0) limits.device = config.run.memory_bytes;
  limits.host = card ? host : std::max<int64_t>(0, host - limits.device);
  if (!config.offload.folder.empty()) limits.disk = Ledger::kNoLimit;
  return limits;
}

RunPlan plan_run(const Config& config, const Ranks& ranks, const std::string& rates) {
  require_readable(config, ranks);
  RunPlan plan;
  plan.data = open_data(config);
  plan.model = settled_model(config, plan.data);
  if (plan.model.lora.enabled()) plan.lora = lora_record(plan.model.lora, config.model_weights);
  const bool on_host = config.run.device == "cpu";
  FitContext context = run_context(config, ranks, rates);
  plan.cores = context.hardware.cores;
  plan.threads_by_environment = config.run.threads == 0 && threads_by_environment() > 0;
  if (plan.threads_by_environment) context.hardware.cores = threads_by_environment();
  const int64_t available =
      on_host ? available_memory_bytes() / ranks.ranks_here() : context.hardware.available_bytes();
  plan.options = settled_options(config, plan.model, context, available);
  // A card's memory cannot be exceeded: it is a limit if nothing else is.
  if (!on_host)
    plan.options.memory_limit_bytes = std::min(plan.options.memory_limit_bytes, available);
  plan.steps = config.total_steps(plan.data.train->sampler().count());
  plan.transport = config.run.device == "cuda" && ranks.count() > 1 ? "NCCL" : ranks.transport();
  require_fits(plan.model, plan.options, context);
  plan.rank = plan_rank(plan.model, plan.options, context.ranks, context.comm_scratch_bytes,
                        context.hardware, !rates.empty());
  return plan;
}

std::string model_text(const Config& config, const ModelSpec& model) {
  std::string text =
      fmt::format("model    {}: {}, {}, hidden {}, vocabulary {}", config.model_source,
                  counted(model.parameter_count(), "parameter"), counted(model.num_layers, "layer"),
                  model.hidden_size, model.vocab_size);
  if (model.experts.enabled())
    text += fmt::format("; {} and {} for a token, computed with {}",
                        counted(model.experts.count, "expert"), model.experts.per_token,
                        counted(model.active_parameter_count(), "parameter"));
  return text;
}

std::string weights_text(const Config& config, const std::string& resumes) {
  if (!resumes.empty()) return "weights of " + resumes;
  if (!config.model_weights.empty()) return "weights of " + config.model_weights;
  std::string text = fmt::format("random weights (run.seed {})", config.run.seed);
  if (config.model_source.ends_with(".json"))
    text += fmt::format(": {} is a configuration alone", config.model_source);
  return text;
}

std::string lora_text(const ModelSpec& model) {
  if (!model.lora.enabled()) return "";
  const int64_t trained = lora_parameter_count(model);
  return fmt::format(
      "lora     rank {}, alpha {:g}{} on {}: {} of adapters are trained, {:.2g} % of the model's\n",
      model.lora.rank, model.lora.alpha,
      model.lora.dropout > 0 ? fmt::format(", dropout {}", model.lora.dropout) : "",
      join(model.lora.targets, ", "), counted(trained, "parameter"),
      100.0 * static_cast<double>(trained) / static_cast<double>(model.parameter_count()));
}

std::string mesh_text(const Config& config) {
  const MeshConfig& mesh = config.mesh;
  if (mesh.others() == 1) return "";
  std::string text = fmt::format("mesh     data {}", mesh.data);
  std::vector<std::string> meaning;
  if (mesh.tensor > 1) {
    text += fmt::format(" x tensor {}", mesh.tensor);
    meaning.push_back(fmt::format("each unit{} is divided among {} neighbouring ranks",
                                  mesh.sequence_parallel ? ", and what passes between units," : "",
                                  mesh.tensor));
    if (mesh.overlap_chunks > 1)
      meaning.back() += fmt::format(
          ", whose sums travel in up to {} runs of tokens beside products", mesh.overlap_chunks);
  }
  if (mesh.context > 1) {
    text += fmt::format(" x context {}", mesh.context);
    meaning.push_back(fmt::format("each sequence is divided among {} ranks, {} tokens each ({})",
                                  mesh.context, config.data.sequence_length / mesh.context,
                                  config.context_method));
  }
  if (mesh.pipeline > 1) {
    text += fmt::format(" x pipeline {}", mesh.pipeline);
    meaning.push_back(fmt::format("units are divided into {} stages, schedule {}", mesh.pipeline,
                                  schedule_name(config.pipeline.schedule)));
  }
  if (mesh.expert > 1) {
    text += fmt::format(" x expert {}", mesh.expert);
    meaning.push_back(
        fmt::format("each has its own sequences and 1/{} of each mixture's experts", mesh.expert));
  }
  return text + ": " + join(meaning, "; ") + "\n";
}

namespace {

// Of a pipeline: the place that holds the most, and the spread.
std::string holder_text(const RankPlan& plan) {
  if (plan.ranks == 1) return "";
  if (!plan.staged()) return " on each rank";
  const int64_t least = *std::min_element(plan.place_peaks.begin(), plan.place_peaks.end());
  return fmt::format(" on each rank at place {}, the most of {} places (the least: {})", plan.place,
                     plan.place_peaks.size(), format_bytes(least));
}

}  // namespace

std::string batch_text(const Config& config, const EngineOptions& options) {
  const BatchConfig& batch = config.batch;
  std::string text = fmt::format(
      "batch    {} of {} tokens = {} micro x {} accumulated x {}",
      counted(batch.global, "sequence"), config.data.sequence_length, batch.micro,
      batch.accumulation,
      counted(batch.world_size, config.mesh.others() > config.mesh.expert ? "group" : "rank"));
  if (batch.accumulation > 1 && batch.world_size > 1 && config.mesh.pipeline == 1)
    text += options.order == Order::unit_first
                ? "; unit by unit: gathers and reductions once a step"
                : "; micro-batch by micro-batch: gradients are reduced once a step";
  return text + "\n";
}

std::string zero_text(const ModelSpec& model, const EngineOptions& options, int all_ranks) {
  const int ranks = summing_ranks(options, all_ranks);
  if (ranks == 1) return options.zero.stage == 0 ? "" : "ZeRO     one rank: nothing to shard\n";
  const auto share = [&](bool sharded) {
    return sharded ? fmt::format("1/{}", ranks) : std::string("whole");
  };
  Homes homes = homes_of(options, INT64_MAX, ranks);
  const std::vector<UnitTraits> units = unit_traits(model_of(model, options), options, all_ranks);
  size_t whole = 0;
  for (const UnitTraits& unit : units)
    whole += homes.parameters.sharded && !unit.homes.parameters.sharded;
  if (whole == units.size()) homes.parameters.sharded = false;
  std::string text =
      fmt::format("ZeRO     stage {}: on each rank parameters {}, gradients {}, optimizer {}",
                  options.zero.stage, share(homes.parameters.sharded),
                  share(homes.gradients.sharded), share(homes.optimizer.sharded));
  if (whole > 0)
    text += fmt::format("; {} too small to shard", counted(static_cast<int64_t>(whole), "unit"));
  if (options.zero.node_ranks > 1)
    text += fmt::format("; nodes of {} ranks keep what was gathered", options.zero.node_ranks);
  return text + "\n";
}

std::string recompute_line(const EngineOptions& options, const ModelSpec& model) {
  const std::string text = recompute_text(options.recompute, model);
  return text.empty() ? "" : fmt::format("again    backward recomputes {}\n", text);
}

std::string types_text(const EngineOptions& options) {
  const Precision& precision = options.precision;
  if (precision == Precision{}) return "";
  std::string text = fmt::format("types    parameters and activations {}, gradients {}, ",
                                 dtype_name(precision.compute), dtype_name(precision.gradients));
  if (precision.has_master())
    text += "master weights f32, ";
  else if (precision.compute != DType::f32)
    text += "no master weights (stochastic rounding), ";
  text += precision.moments == DType::u8
              ? fmt::format("moments 8 bits with a scale for each {}", kBlock8)
              : fmt::format("moments {}", dtype_name(precision.moments));
  if (precision.compute == DType::f16)
    text += options.loss_scale.dynamic()
                ? fmt::format("; the loss scale follows the gradients from 2^{} on",
                              options.loss_scale.initial_power)
                : fmt::format("; the loss scale is {:g}", options.loss_scale.fixed);
  return text + "\n";
}

std::string groups_text(const Config& config, const ModelSpec& model) {
  std::string text;
  const OptimizerSpec& optimizer = config.optimizer;
  for (const ParamGroup& group : optimizer.groups) {
    int64_t tensors = 0, elems = 0;
    for (const auto& unit : Model(model).units)
      for (const ParamSpec& param : unit->params())
        if (optimizer.group_of(param.name) == &group) {
          ++tensors;
          elems += param.elems();
        }
    text += fmt::format("group    {}: {} of {}, ", join(group.match, ", "),
                        counted(tensors, "tensor"), counted(elems, "parameter"));
    if (group.frozen) {
      text += "frozen\n";
      continue;
    }
    text += fmt::format("lr {:g}", group.rate * config.learning_rate);
    if (group.weight_decay) text += fmt::format(", weight decay {:g}", *group.weight_decay);
    text += "\n";
  }
  return text;
}

std::string clipping_text(const EngineOptions& options) {
  const ClipRule& rule = options.clip_rule;
  std::vector<std::string> parts;
  if (rule.value > 0) parts.push_back(fmt::format("elements to {:g}", rule.value));
  if (rule.adaptive)
    parts.push_back(fmt::format("each gradient's norm to {:g} of its weights' (at least {:g})",
                                options.clipping, rule.least));
  else if (rule.of != ClipRule::Of::all)
    parts.push_back(fmt::format("the norm of each {}'s gradient to {:g}",
                                rule.of == ClipRule::Of::unit ? "unit" : "tensor",
                                options.clipping));
  if (rule.percentile > 0)
    parts.push_back(
        fmt::format("the norm to percentile {:g} of the last {}", rule.percentile, rule.window));
  return parts.empty() ? "" : fmt::format("clips    {}\n", join(parts, "; "));
}

std::string compression_text(const EngineOptions& options) {
  const CompressionOptions& compression = options.compression;
  std::string text;
  if (!compression.gradients.none()) {
    const std::string hosts = compression.host_ranks > 1
                                  ? fmt::format(" between hosts, summed whole by {} ranks on each",
                                                compression.host_ranks)
                                  : "";
    text +=
        fmt::format("packs    gradients travel as {}{}, {}", describe(compression.gradients), hosts,
                    compression.feedback ? "what is not sent is kept and sent later"
                                         : "what is not sent is lost");
    if (compression.corrects_momentum)
      text += fmt::format(", with momentum {:g} before the sum", compression.correction.momentum);
    if (compression.whole_steps > 0)
      text += fmt::format("; whole in the first {}", counted(compression.whole_steps, "step"));
    if (compression.adaptive) text += ", of each unit by its gradients' norms";
    if (options.optimizer.variance_scaler > 0)
      text += "; whole where the second moment takes them in";
    if (compression.density_steps > 0)
      text += fmt::format("; more of them in {}", counted(compression.density_steps, "step"));
    text += ": this changes results\n";
  }
  const auto after = [](int64_t steps) {
    return steps > 0 ? fmt::format(" after {}", counted(steps, "step")) : "";
  };
  if (options.optimizer.delayed)
    text += fmt::format(
        "delays   each step applies the gradients of the one before{}{}: this changes results\n",
        after(options.optimizer.delayed_after),
        options.optimizer.looks_ahead()
            ? fmt::format(", of weights that are {:g} steps further", options.optimizer.lookahead)
            : "");
  if (options.stale.on())
    text += fmt::format(
        "delays   ranks compute with weights of up to {} ago{}{}: this changes results\n",
        counted(options.stale.bound, "step"), after(options.stale.whole_steps),
        options.stale.compensation > 0
            ? fmt::format(", compensated by {:g}", options.stale.compensation)
            : "");
  if (options.local.sums_moves)
    text += fmt::format(
        "delays   ranks step by themselves{}, and sum what they have moved{}: after every "
        "step, then at intervals that double every {}, up to {}: this changes results\n",
        after(options.local.whole_steps),
        compression.gradients.none() ? "" : " as " + describe(compression.gradients),
        counted(options.local.scaler, "step"), counted(options.local.steps, "step"));
  else if (options.local.on())
    text += fmt::format(
        "delays   ranks step by themselves and average their weights every {} steps{} (rate "
        "{:g}, momentum {:g}{}): this changes results\n",
        options.local.steps, after(options.local.whole_steps), options.local.rate,
        options.local.momentum, options.local.nesterov ? ", Nesterov's" : "");
  if (!compression.weights.none())
    text += fmt::format("packs    weights are gathered as {}: this changes results\n",
                        describe(compression.weights));
  return text;
}

std::string offload_text(const EngineOptions& options, const RankPlan& plan) {
  if (!options.offload.any()) return "";
  const auto where = [&](Tier tier) {
    return tier == Tier::disk   ? "in " + options.offload.folder
           : tier == Tier::host ? std::string("in the host's memory")
                                : std::string("on the device");
  };
  std::string text =
      fmt::format("offload  parameters {}, gradients and optimizer {}{}",
                  where(options.offload.parameters), where(options.offload.optimizer),
                  options.offload.optimizer_ratio < 1
                      ? fmt::format(" ({:g} % of them)", 100 * options.offload.optimizer_ratio)
                      : "");
  if (options.offload.activations != Tier::device)
    text += ", kept activations " + where(options.offload.activations);
  std::vector<std::string> there;
  if (plan.host_bytes > 0) there.push_back(format_bytes(plan.host_bytes) + " in the host's memory");
  if (plan.disk_bytes > 0) there.push_back(format_bytes(plan.disk_bytes) + " on the disk");
  return text + fmt::format("\n         {}{}; a step brings {} and takes {} back\n",
                            join(there, ", "), plan.ranks > 1 ? " for each rank" : "",
                            format_bytes(plan.fetched_bytes), format_bytes(plan.spilled_bytes));
}

std::string time_text(const RankPlan& plan) {
  return plan.predicted ? prediction_text(*plan.predicted) : "";
}

std::string memory_text(const RankPlan& plan) {
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < kKinds; ++kind)
    if (plan.bytes_at_peak[kind] > 0)
      parts.push_back(fmt::format("{} {}", kind_name(static_cast<Kind>(kind)),
                                  format_bytes(plan.bytes_at_peak[kind])));
  return fmt::format("memory   {} planned{}: {}\n", format_bytes(plan.peak_bytes),
                     holder_text(plan), join(parts, ", "));
}

namespace {

std::string way_text(const PlannedTraffic& traffic) {
  if (traffic.lane == Lane::send) return " between stages";
  if (traffic.lane != Lane::exchange) return "";
  return fmt::format(" along the {} axis", axis_name(traffic.axis));
}

}  // namespace

std::string traffic_text(const RankPlan& plan) {
  if (plan.ranks == 1) return "";
  std::vector<std::string> parts;
  for (const PlannedTraffic& traffic : plan.traffic)
    if (traffic.lane != Lane::compute && traffic.collective != Collective::receive)
      parts.push_back(fmt::format("{} in {} {}{}", format_bytes(traffic.bytes_sent), traffic.calls,
                                  collective_name(traffic.collective), way_text(traffic)));
  return fmt::format(
      "sends    on each rank{} and step: {}\n",
      plan.staged() ? fmt::format(" at place {}", plan.place) : "",
      parts.empty() ? "a few numbers, and more where ranks meet" : join(parts, ", "));
}

std::string notes_text(const Config& config) {
  std::string text;
  if (!config.notes.filled.empty())
    text += fmt::format("auto     {}\n", join(config.notes.filled, ", "));
  for (const std::string& remark : config.notes.remarks)
    text += fmt::format("note     {}\n", remark);
  if (!config.notes.idle.empty())
    text += fmt::format("of no consequence here: {}\n", join(config.notes.idle, ", "));
  return text;
}

std::string plan_text(const Config& config, const RunPlan& plan) {
  std::string text = model_text(config, plan.model);
  if (plan.model.vocab_size > plan.data.vocab_size)
    text += fmt::format(" (the data has {})", plan.data.vocab_size);
  text += "; " + weights_text(config, plan.resumes);
  return text + "\n" + lora_text(plan.model) + data_text(plan) + mesh_text(config) +
         batch_text(config, plan.options) + run_text(config, plan) +
         groups_text(config, plan.model) + clipping_text(plan.options) + types_text(plan.options) +
         recompute_line(plan.options, plan.model) +
         zero_text(plan.model, plan.options, plan.rank.ranks) + compression_text(plan.options) +
         offload_text(plan.options, plan.rank) + time_text(plan.rank) + memory_text(plan.rank) +
         traffic_text(plan.rank) + notes_text(config);
}

Json rank_json(const RankPlan& plan) {
  Json memory = Json::object(), traffic = Json::array();
  for (size_t kind = 0; kind < kKinds; ++kind)
    memory[kind_name(static_cast<Kind>(kind))] = plan.bytes_at_peak[kind];
  for (const PlannedTraffic& t : plan.traffic) {
    traffic.push_back({{"lane", lane_name(t.lane)},
                       {"collective", collective_name(t.collective)},
                       {"calls", t.calls},
                       {"bytes_sent", t.bytes_sent}});
    if (t.lane == Lane::exchange) traffic.back()["axis"] = axis_name(t.axis);
  }
  Json json = {{"ranks", plan.ranks},
               {"planned_peak_bytes", plan.peak_bytes},
               {"planned_peak_at", plan.peak_moment},
               {"context_bytes", plan.context_bytes},
               {"planned_bytes", memory},
               {"planned_host_bytes", plan.host_bytes},
               {"planned_disk_bytes", plan.disk_bytes},
               {"planned_fetched_bytes_per_step", plan.fetched_bytes},
               {"planned_spilled_bytes_per_step", plan.spilled_bytes},
               {"planned_traffic_per_step", traffic}};
  if (plan.staged()) {
    json["planned_place"] = plan.place;
    json["planned_place_peak_bytes"] = plan.place_peaks;
  }
  if (plan.predicted) json.update(prediction_json(*plan.predicted));
  return json;
}

Json plan_json(const Config& config, const RunPlan& plan) {
  Json json = {{"configuration", config.effective()},
               {"parameters", plan.model.parameter_count()},
               {"vocab_size", plan.model.vocab_size},
               {"train_tokens", plan.data.train_tokens},
               {"validation_tokens", plan.data.validation_tokens},
               {"validation_sequences", plan.data.validation ? plan.data.validation->rows() : 0},
               {"documents", plan.data.documents},
               {"end_of_text", plan.data.end_of_text},
               {"targets", plan.data.targets},
               {"skipped_lines", plan.data.skipped.skipped},
               {"steps", plan.steps},
               {"tokens", plan.steps * step_tokens(config)},
               {"epochs", plan.data.train->epochs(plan.steps)},
               {"threads", plan.options.threads},
               {"accumulate", order_name(plan.options.order)},
               {"auto", config.notes.filled},
               {"notes", config.notes.remarks},
               {"of_no_consequence", config.notes.idle}};
  json.update(rank_json(plan.rank));
  return json;
}

}  // namespace onefold

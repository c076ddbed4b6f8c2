#include "run/plan.h"

#include "base/process.h"
#include "base/text.h"
#include "plan/fit.h"

namespace onefold {
namespace {

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

int64_t step_tokens(const Config& config) {
  return config.batch.global * config.data.sequence_length;
}

std::string data_text(const RunPlan& plan) {
  return fmt::format(
      "data     {}, {} held out, {}; {} of tokens in memory\n",
      counted(plan.data.train_tokens, "training token"), format_count(plan.data.validation_tokens),
      counted(plan.data.documents, "document"), format_bytes(plan.data.memory_bytes));
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
  return fmt::format("run      {} step{} = {}, {:.2f} epochs, on {}{}{}{}\n", plan.steps,
                     plan.steps == 1 ? "" : "s", counted(plan.steps * step_tokens(config), "token"),
                     plan.data.train->epochs(plan.steps), ranks,
                     counted(plan.options.threads, "thread"), plan.rank.ranks == 1 ? "" : " each",
                     reason);
}

}  // namespace

RankPlan plan_rank(const ModelSpec& model, const EngineOptions& options, int ranks,
                   int64_t comm_scratch_bytes, const Hardware& hardware) {
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  const auto dry = Engine::plan(model, unlimited, ranks, comm_scratch_bytes, hardware);
  RankPlan plan{.ranks = ranks,
                .peak_bytes = dry->ledger().peak_bytes(),
                .peak_moment = dry->ledger().peak_moment()};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    plan.bytes_at_peak[kind] = dry->ledger().bytes_at_peak(static_cast<Kind>(kind));
    plan.kind_peaks[kind] = dry->ledger().peak_bytes(static_cast<Kind>(kind));
  }
  for (const Lane lane : {Lane::gather, Lane::reduce, Lane::compute}) {
    const TrafficTable& table = dry->traffic(lane);
    for (size_t c = 0; c < table.size(); ++c)
      if (table[c].calls > 0)
        plan.traffic.push_back(
            {lane, static_cast<Collective>(c), table[c].calls, table[c].bytes_sent});
  }
  return plan;
}

EngineOptions settled_options(const Config& config, const ModelSpec& model,
                              const Hardware& hardware) {
  EngineOptions options = engine_options(config);
  if (options.threads == 0) options.threads = hardware.cores;
  if (config.run.accumulate == "auto")
    options.order =
        choose_order(model, options, static_cast<int>(config.batch.world_size), hardware);
  return options;
}

RunPlan plan_run(const Config& config, const Ranks& ranks) {
  RunPlan plan;
  plan.data = open_data(config);
  plan.model = settled_model(config, plan.data);
  Hardware hardware = this_machine(ranks.cores());
  plan.cores = hardware.cores;
  plan.threads_by_environment = config.run.threads == 0 && threads_by_environment() > 0;
  if (plan.threads_by_environment) hardware.cores = threads_by_environment();
  plan.options = settled_options(config, plan.model, hardware);
  plan.steps = config.total_steps(plan.data.train->sequences().count());
  plan.transport = ranks.transport();
  require_fits(plan.model, plan.options,
               {ranks.count(), ranks.scratch_bytes(), config.run.accumulate != "auto", hardware});
  plan.rank = plan_rank(plan.model, plan.options, ranks.count(), ranks.scratch_bytes(), hardware);
  return plan;
}

std::string model_text(const Config& config, const ModelSpec& model) {
  return fmt::format("model    {}: {}, {}, hidden {}, vocabulary {}", config.model_source,
                     counted(model.parameter_count(), "parameter"),
                     counted(model.num_layers, "layer"), model.hidden_size, model.vocab_size);
}

std::string weights_text(const Config& config, const std::string& resumes) {
  if (!resumes.empty()) return "weights of " + resumes;
  if (!config.model_weights.empty()) return "weights of " + config.model_weights;
  std::string text = fmt::format("random weights (run.seed {})", config.run.seed);
  if (config.model_source.ends_with(".json"))
    text += fmt::format(": {} is a configuration alone", config.model_source);
  return text;
}

std::string batch_text(const Config& config, const EngineOptions& options) {
  const BatchConfig& batch = config.batch;
  std::string text =
      fmt::format("batch    {} of {} tokens = {} micro x {} accumulated x {}",
                  counted(batch.global, "sequence"), config.data.sequence_length, batch.micro,
                  batch.accumulation, counted(batch.world_size, "rank"));
  if (batch.accumulation > 1 && batch.world_size > 1)
    text += options.order == Order::unit_first
                ? "; unit by unit: gathers and reductions once a step"
                : "; micro-batch by micro-batch: gradients are reduced once a step";
  return text + "\n";
}

std::string zero_text(const ModelSpec& model, const EngineOptions& options, int ranks) {
  if (ranks == 1) return options.zero.stage == 0 ? "" : "ZeRO     one rank: nothing to shard\n";
  const auto share = [&](bool sharded) {
    return sharded ? fmt::format("1/{}", ranks) : std::string("whole");
  };
  Homes homes = homes_of(options, INT64_MAX, ranks);
  const std::vector<UnitTraits> units = unit_traits(Model(model), options, ranks);
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
  return text + "\n";
}

std::string memory_text(const RankPlan& plan) {
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < kKinds; ++kind)
    if (plan.bytes_at_peak[kind] > 0)
      parts.push_back(fmt::format("{} {}", kind_name(static_cast<Kind>(kind)),
                                  format_bytes(plan.bytes_at_peak[kind])));
  return fmt::format("memory   {} planned{}: {}\n", format_bytes(plan.peak_bytes),
                     plan.ranks > 1 ? " on each rank" : "", join(parts, ", "));
}

std::string traffic_text(const RankPlan& plan) {
  if (plan.ranks == 1) return "";
  std::vector<std::string> parts;
  for (const PlannedTraffic& traffic : plan.traffic)
    if (traffic.lane != Lane::compute)
      parts.push_back(fmt::format("{} in {} {}", format_bytes(traffic.bytes_sent), traffic.calls,
                                  collective_name(traffic.collective)));
  return fmt::format("sends    on each rank and step: {}\n", join(parts, ", "));
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
  return text + "\n" + data_text(plan) + batch_text(config, plan.options) + run_text(config, plan) +
         zero_text(plan.model, plan.options, plan.rank.ranks) + memory_text(plan.rank) +
         traffic_text(plan.rank) + notes_text(config);
}

Json rank_json(const RankPlan& plan) {
  Json memory = Json::object(), traffic = Json::array();
  for (size_t kind = 0; kind < kKinds; ++kind)
    memory[kind_name(static_cast<Kind>(kind))] = plan.bytes_at_peak[kind];
  for (const PlannedTraffic& t : plan.traffic)
    traffic.push_back({{"lane", lane_name(t.lane)},
                       {"collective", collective_name(t.collective)},
                       {"calls", t.calls},
                       {"bytes_sent", t.bytes_sent}});
  return {{"ranks", plan.ranks},
          {"planned_peak_bytes", plan.peak_bytes},
          {"planned_peak_at", plan.peak_moment},
          {"planned_bytes", memory},
          {"planned_traffic_per_step", traffic}};
}

Json plan_json(const Config& config, const RunPlan& plan) {
  Json json = {{"configuration", config.effective()},
               {"parameters", plan.model.parameter_count()},
               {"vocab_size", plan.model.vocab_size},
               {"train_tokens", plan.data.train_tokens},
               {"validation_tokens", plan.data.validation_tokens},
               {"documents", plan.data.documents},
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

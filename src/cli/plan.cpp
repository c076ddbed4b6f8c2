// onefold plan: what each rank of a run would hold and send, from a dry run of the same programs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/plan_fit.h"
#include "config/config.h"
#include "engine/channels.h"
#include "engine/stages.h"
#include "plan/fit.h"
#include "run/pipeline_drawing.h"
#include "run/plan.h"

namespace onefold::cli {
namespace {

struct PlanArguments {
  std::string config, memory, hardware, trace, host_memory, disk, output;
  std::vector<std::string> overrides;
  std::string transport = "threads";
  int ranks = 1, threads = 0;
  std::string svg;
  bool json = false, program = false, fit = false, schedule = false;
};

// Model states alone at every stage: the table of the ZeRO paper for this model. Of a pipeline: of
// the rank that holds the most.
struct StageRow {
  int stage;
  StateBytes bytes;
};

std::vector<StageRow> stage_rows(const ModelSpec& spec, const EngineOptions& options, int ranks) {
  const Model model = model_of(spec, options);
  std::vector<StageRow> rows;
  for (int stage = 0; stage <= 3; ++stage) {
    EngineOptions staged = options;
    staged.zero.stage = stage;
    StageRow row{stage, {}};
    for (int place = 0; place < options.pipeline.ranks; ++place) {
      const Pipeline pipeline = pipeline_of(spec, staged, place);
      const StateBytes bytes =
          state_bytes(unit_traits(model, staged, ranks, pipeline), staged, ranks);
      if (bytes.total() > row.bytes.total()) row.bytes = bytes;
    }
    rows.push_back(row);
  }
  return rows;
}

std::string stage_table(const std::vector<StageRow>& rows, int stage) {
  std::string text = fmt::format("\n  {:<26}{:>14}{:>14}{:>14}{:>14}\n", "model states",
                                 "parameters", "gradients", "optimizer", "total");
  for (const StageRow& row : rows)
    text += fmt::format("  {:<26}{:>14}{:>14}{:>14}{:>14}\n",
                        fmt::format("stage {}{}", row.stage, row.stage == stage ? " (this)" : ""),
                        format_bytes(row.bytes.parameters), format_bytes(row.bytes.gradients),
                        format_bytes(row.bytes.optimizer), format_bytes(row.bytes.total()));
  return text;
}

std::string kind_table(const RankPlan& plan) {
  std::string text = fmt::format("\n  {:<26}{:>14}{:>14}\n",
                                 plan.staged() ? fmt::format("memory at place {}", plan.place)
                                               : std::string("memory of each rank"),
                                 "at the peak", "own peak");
  for (size_t kind = 0; kind < kKinds; ++kind)
    if (plan.kind_peaks[kind] > 0)
      text +=
          fmt::format("  {:<26}{:>14}{:>14}\n", kind_name(static_cast<Kind>(kind)),
                      format_bytes(plan.bytes_at_peak[kind]), format_bytes(plan.kind_peaks[kind]));
  text += fmt::format("  {:<26}{:>14}   at: {}\n", "total", format_bytes(plan.peak_bytes),
                      plan.peak_moment);
  if (plan.context_bytes > 0)
    text += fmt::format("  {:<26}{:>14}   of the driver and its libraries: {} in all\n", "context",
                        format_bytes(plan.context_bytes),
                        format_bytes(plan.peak_bytes + plan.context_bytes));
  constexpr size_t kMostPlaces = 16;
  const std::vector<int64_t>& peaks = plan.place_peaks;
  for (size_t place = 0; plan.staged() && place < peaks.size() && peaks.size() <= kMostPlaces;
       ++place)
    text += fmt::format("  {:<26}{:>14}\n", fmt::format("total at place {}", place),
                        format_bytes(peaks[place]));
  if (peaks.size() > kMostPlaces)
    text += fmt::format("  {:<26}{:>14}\n", fmt::format("least of {} places", peaks.size()),
                        format_bytes(*std::min_element(peaks.begin(), peaks.end())));
  return text;
}

std::string fit_text(const RankPlan& plan, int64_t limit, const std::vector<Remedy>& remedies,
                     const std::string& stopped) {
  if (plan.peak_bytes <= limit)
    return fmt::format("\nit fits: {} of {} on each rank\n", format_bytes(plan.peak_bytes),
                       format_bytes(limit));
  std::string text = fmt::format(
      "\nit does not fit: {} on each rank, {} allowed. What would fit, the fastest first:\n",
      format_bytes(plan.peak_bytes), format_bytes(limit));
  for (const Remedy& remedy : remedies)
    text += fmt::format("  {}  ({})\n", remedy.change, format_bytes(remedy.peak_bytes));
  if (remedies.empty())
    text +=
        "  nothing that keeps the result; take a smaller model or a shorter data.sequence_length\n";
  if (!stopped.empty()) text += fmt::format("  ({})\n", stopped);
  return text;
}

Json stages_json(const std::vector<StageRow>& rows) {
  Json list = Json::array();
  for (const StageRow& row : rows)
    list.push_back({{"stage", row.stage},
                    {"parameters", row.bytes.parameters},
                    {"gradients", row.bytes.gradients},
                    {"optimizer", row.bytes.optimizer},
                    {"total", row.bytes.total()}});
  return list;
}

// The program, a line for each action: its lane, what it does, and what on other lanes it waits
// for.
struct ProgramLine {
  std::string lane, action;
  std::vector<std::string> waits;
};

std::vector<ProgramLine> program_lines(const ModelSpec& spec, const EngineOptions& options,
                                       int ranks, int place) {
  const Model model = model_of(spec, options);
  const Pipeline pipeline = pipeline_of(spec, options, place);
  std::vector<ProgramLine> lines;
  std::map<int, std::string> tickets;
  for (const Action& action :
       training_program(options, unit_traits(model, options, ranks, pipeline), ranks, pipeline)
           .actions) {
    const std::string name =
        describe(action, model.units[static_cast<size_t>(action.unit)]->name()) +
        (action.verb == Verb::release && action.state == State::gradients ? " (gradients)" : "");
    ProgramLine line{lane_name(action.lane), name, {}};
    for (const int ticket : action.waits) line.waits.push_back(tickets[ticket]);
    if (action.ticket >= 0) tickets[action.ticket] = name;
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string program_text(const std::vector<ProgramLine>& lines, const std::string& whose) {
  std::string text = fmt::format("\nprogram of each rank{} (lane: action)\n", whose);
  for (const ProgramLine& line : lines)
    text += fmt::format("  {:<8} {}{}\n", line.lane, line.action,
                        line.waits.empty() ? "" : "   after " + join(line.waits, ", "));
  return text;
}

Json program_json(const std::vector<ProgramLine>& lines) {
  Json list = Json::array();
  for (const ProgramLine& line : lines)
    list.push_back({{"lane", line.lane}, {"action", line.action}, {"waits", line.waits}});
  return list;
}

// What each rank may use: what the command line, the configuration or the hardware says. A tier
// that the configuration itself uses is as large as it need be.
TierLimits limits_of(const PlanArguments& arguments, const Config& config,
                     const Hardware& hardware) {
  const auto limit = [](const std::string& flag, const char* name, int64_t described, bool used) {
    if (!flag.empty()) return parse_bytes(flag, name);
    return described > 0 ? described : used ? Ledger::kNoLimit : 0;
  };
  const int64_t device =
      config.run.memory_bytes > 0 ? config.run.memory_bytes : hardware.available_bytes();
  return {.device = device > 0 ? device : Ledger::kNoLimit,
          .host = limit(arguments.host_memory, "--host-memory", hardware.host_bytes,
                        config.offload.uses(Tier::host)),
          .disk = limit(arguments.disk, "--disk", hardware.disk_bytes,
                        config.offload.uses(Tier::disk))};
}

Hardware hardware_of(const PlanArguments& arguments, const Config& config, Hardware hardware) {
  if (hardware.device == "cpu" && config.run.device != "cpu")
    user_error(
        "run.device is \"{}\", and the hardware {} has none: name a card with --hardware, like "
        "h200",
        config.run.device, hardware.name);
  if (arguments.threads > 0) hardware.cores = arguments.threads;
  return hardware;
}

FitContext context_of(const PlanArguments& arguments, const Config& config,
                      const Hardware& hardware) {
  const std::string device = hardware.device == "cpu"     ? "cpu"
                             : config.run.device == "cpu" ? hardware.device
                                                          : config.run.device;
  return {arguments.ranks,
          lane_scratch_bytes(device, arguments.transport == "mpi", arguments.ranks),
          config.run.accumulate != "auto", hardware};
}

int run_plan(PlanArguments arguments) {
  if (!arguments.memory.empty()) arguments.overrides.push_back("run.memory=" + arguments.memory);
  for (const auto& [name, path] :
       {std::pair("--trace", arguments.trace), std::pair("--output", arguments.output),
        std::pair("--svg", arguments.svg)})
    if (!path.empty())
      require_output({name, "name another file"}, path, {arguments.config, arguments.hardware},
                     false);
  const int ranks = arguments.ranks;
  const Json root = read_config(arguments.config, arguments.overrides);
  const Hardware described =
      hardware_named(arguments.hardware.empty() ? "cpu" : arguments.hardware);
  Freedom freedom = arguments.fit ? left_open(root) : asked_for(root);
  if (ranks == 1) freedom.mesh = {};
  const OpenConfig open = open_config(root, arguments.config, ranks, freedom, described.host_ranks);
  Config config = open.config;
  const Hardware hardware = hardware_of(arguments, config, described);
  const FitContext context = context_of(arguments, config, hardware);
  const TierLimits limits = limits_of(arguments, config, hardware);
  if (arguments.fit)
    return run_fit({root, open, freedom, context, limits, arguments.output, arguments.json});
  config = settle_layout(open, root, context, limits);
  const ModelSpec spec = planned_model(config);
  const EngineOptions options = settled_options(config, spec, context, hardware.available_bytes());
  const RankPlan plan = plan_rank(spec, options, ranks, context.comm_scratch_bytes, hardware,
                                  !arguments.hardware.empty());
  if (!arguments.trace.empty()) write_trace(arguments.trace, plan.traces);
  if (arguments.schedule && !plan.staged())
    user_error("--schedule draws the schedule of a pipeline, and mesh.pipeline is 1");
  std::optional<PipelinePlan> together;
  if (arguments.schedule)
    together = plan_pipeline(spec, options, ranks, context.comm_scratch_bytes, hardware);
  if (!arguments.svg.empty()) write_file(arguments.svg, schedule_svg(*together));
  const int64_t limit =
      config.run.memory_bytes > 0 ? config.run.memory_bytes : hardware.available_bytes();
  const bool fits = limit == 0 || plan.peak_bytes <= limit;
  std::string stopped;
  const std::vector<Remedy> ways =
      fits ? std::vector<Remedy>{} : remedies(spec, options, context, limit, &stopped);
  const auto stages = stage_rows(spec, options, ranks);
  if (arguments.json) {
    Json json = {{"configuration", config.effective()},
                 {"parameters", spec.parameter_count()},
                 {"accumulate", order_name(options.order)}};
    json.update(rank_json(plan));
    json["hardware"] = hardware.to_json();
    json["stages"] = stages_json(stages);
    json["fits"] = fits;
    if (together) json["idle_share"] = together->idle_share();
    json["would_fit"] = Json::array();
    for (const Remedy& way : ways)
      json["would_fit"].push_back({{"change", way.change}, {"planned_peak_bytes", way.peak_bytes}});
    if (!stopped.empty()) json["would_fit_stopped"] = stopped;
    const int places = options.pipeline.ranks;
    for (int place = 0; arguments.program && place < places; ++place) {
      const Json program = program_json(program_lines(spec, options, ranks, place));
      if (places == 1)
        json["program"] = program;
      else
        json["programs"].push_back(program);
    }
    print_json(json);
    return fits ? kOk : kUserError;
  }
  const std::string summary =
      fmt::format("{}; {}\n", model_text(config, spec), weights_text(config)) + lora_text(spec) +
      mesh_text(config) + batch_text(config, options) + groups_text(config, spec) +
      clipping_text(options) + types_text(options) + recompute_line(options, spec) +
      zero_text(spec, options, ranks) + compression_text(options) + offload_text(options, plan) +
      time_text(plan) + traffic_text(plan) + notes_text(config);
  fmt::print("{}{}{}", with_headings(summary, Stream::out), kind_table(plan),
             stage_table(stages, options.zero.stage));
  for (int place = 0; arguments.program && place < options.pipeline.ranks; ++place)
    fmt::print("{}", program_text(program_lines(spec, options, ranks, place),
                                  plan.staged() ? fmt::format(" at place {}", place) : ""));
  if (together) fmt::print("{}", schedule_text(*together));
  if (limit > 0) fmt::print("{}", fit_text(plan, limit, ways, stopped));
  return fits ? kOk : kUserError;
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* plan = app.add_subcommand(
      "plan", "Say what each rank of a run would hold and send, without running it");
  plan->add_option("config", arguments->config, "The configuration; it needs no data")->required();
  plan->add_option("--ranks", arguments->ranks, "Ranks to plan for: any number")
      ->check(at_least(1));
  plan->add_option("--memory", arguments->memory,
                   "What each rank may use, like 80GiB: says whether it fits, and what would");
  plan->add_option(
          "--threads", arguments->threads,
          "Cores of each rank (scratch memory grows with them), instead of the hardware's; "
          "run.threads overrides both")
      ->check(at_least(1));
  plan->add_option("--transport", arguments->transport,
                   "threads, or mpi, which takes memory for messages")
      ->check(CLI::IsMember({"threads", "mpi"}));
  plan->add_option("--set", arguments->overrides, "Override a key, as for train")
      ->allow_extra_args(false);
  auto* hardware =
      plan->add_option("--hardware", arguments->hardware,
                       "What each rank runs on: a preset (" + join(hardware_presets(), ", ") +
                           ") or a JSON file (info --save); how long a step takes is then "
                           "predicted. Default: cpu, one core")
          ->type_name("NAME|FILE");
  plan->add_option("--trace", arguments->trace,
                   "Write the predicted timeline of a step's lanes, for ui.perfetto.dev")
      ->type_name("FILE")
      ->needs(hardware);
  auto* fit = plan->add_flag("--fit", arguments->fit,
                             "Find the fastest layout that fits: what the configuration leaves "
                             "open of the mesh, stages, homes, recomputation, micro-batches and "
                             "messages");
  plan->add_option("--host-memory", arguments->host_memory,
                   "With --fit: what each rank may use of the host's memory beside a device's")
      ->needs(fit);
  plan->add_option("--disk", arguments->disk, "With --fit: what each rank may use of the disk")
      ->needs(fit);
  plan->add_option("--output", arguments->output,
                   "With --fit: write the configuration with the best layout")
      ->type_name("FILE")
      ->needs(fit);
  plan->add_flag("--program", arguments->program, "Print the program of a step too");
  auto* schedule = plan->add_flag("--schedule", arguments->schedule,
                                  "Draw the schedule of a pipeline, in the hardware's time");
  plan->add_option("--svg", arguments->svg, "With --schedule: draw it into a file too")
      ->type_name("FILE")
      ->needs(schedule);
  plan->add_flag("--json", arguments->json, "A JSON plan on standard output");
  plan->footer(
      "Examples:\n"
      "  onefold plan config.json --ranks 8\n"
      "  onefold plan config.json --ranks 1024 --memory 80GiB --set zero_optimization.stage=2\n"
      "  onefold plan config.json --ranks 2 --set zero_optimization.stage=3 --program\n"
      "  onefold plan config.json --fit --memory 24GiB --host-memory 100GiB --hardware h200\n\n"
      "The plan runs the same units, passes and executor as train, on a device that owns no\n"
      "memory: its peak is the run's, to the byte. Exit code 1: it does not fit.");
  plan->callback([arguments, &run] { run = [arguments] { return run_plan(*arguments); }; });
}

}  // namespace onefold::cli

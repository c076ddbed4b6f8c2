#include "run/plan.h"

#include "base/text.h"
#include "engine/fit.h"

namespace onefold {
namespace {

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

int64_t step_tokens(const Config& config) {
  return config.batch.global * config.data.sequence_length;
}

std::string memory_text(const RunPlan& plan) {
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < plan.bytes_at_peak.size(); ++kind)
    if (plan.bytes_at_peak[kind] > 0)
      parts.push_back(fmt::format("{} {}", kind_name(static_cast<Kind>(kind)),
                                  format_bytes(plan.bytes_at_peak[kind])));
  return fmt::format("{} planned: {}", format_bytes(plan.peak_bytes), join(parts, ", "));
}

}  // namespace

RunPlan plan_run(const Config& config) {
  RunPlan plan;
  plan.data = open_data(config);
  plan.model = settled_model(config, plan.data);
  plan.options = engine_options(config);
  plan.steps = config.total_steps(plan.data.train->sequences().count());
  require_fits(plan.model, plan.options);
  const auto dry = Engine::plan(plan.model, plan.options);
  plan.threads = dry->threads();
  plan.peak_bytes = dry->ledger().peak_bytes();
  for (size_t kind = 0; kind < plan.bytes_at_peak.size(); ++kind)
    plan.bytes_at_peak[kind] = dry->ledger().bytes_at_peak(static_cast<Kind>(kind));
  return plan;
}

std::string plan_text(const Config& config, const RunPlan& plan) {
  const BatchConfig& batch = config.batch;
  const ModelSpec& model = plan.model;
  std::string text =
      fmt::format("model    {}: {}, {}, hidden {}, vocabulary {}{}\n", config.model_source,
                  counted(model.parameter_count(), "parameter"), counted(model.num_layers, "layer"),
                  model.hidden_size, model.vocab_size,
                  model.vocab_size > plan.data.vocab_size
                      ? fmt::format(" (the data has {})", plan.data.vocab_size)
                      : "");
  text += fmt::format(
      "data     {}, {} held out, {}; {} of tokens in memory\n",
      counted(plan.data.train_tokens, "training token"), format_count(plan.data.validation_tokens),
      counted(plan.data.documents, "document"), format_bytes(plan.data.memory_bytes));
  text +=
      fmt::format("batch    {} of {} = {} micro x {} accumulated x {}\n",
                  counted(batch.global, "sequence"), counted(config.data.sequence_length, "token"),
                  batch.micro, batch.accumulation, counted(batch.world_size, "rank"));
  text +=
      fmt::format("run      {} step{} = {}, {:.2f} epochs, on {}\n", plan.steps,
                  plan.steps == 1 ? "" : "s", counted(plan.steps * step_tokens(config), "token"),
                  plan.data.train->epochs(plan.steps), counted(plan.threads, "thread"));
  return text + fmt::format("memory   {}\n", memory_text(plan));
}

Json plan_json(const Config& config, const RunPlan& plan) {
  Json memory = Json::object();
  for (size_t kind = 0; kind < plan.bytes_at_peak.size(); ++kind)
    memory[kind_name(static_cast<Kind>(kind))] = plan.bytes_at_peak[kind];
  return {{"configuration", config.effective()},
          {"parameters", plan.model.parameter_count()},
          {"vocab_size", plan.model.vocab_size},
          {"train_tokens", plan.data.train_tokens},
          {"validation_tokens", plan.data.validation_tokens},
          {"documents", plan.data.documents},
          {"steps", plan.steps},
          {"tokens", plan.steps * step_tokens(config)},
          {"epochs", plan.data.train->epochs(plan.steps)},
          {"threads", plan.threads},
          {"planned_peak_bytes", plan.peak_bytes},
          {"planned_bytes", memory}};
}

}  // namespace onefold

#include "cli/plan_fit.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"
#include "cli/cli.h"

namespace onefold::cli {
namespace {

std::string limit_text(int64_t bytes) {
  return bytes == Ledger::kNoLimit ? "any" : bytes == 0 ? "none" : format_bytes(bytes);
}

Json limit_json(int64_t bytes) { return bytes == Ledger::kNoLimit ? Json() : Json(bytes); }

std::string table(const SearchResult& found, const ModelSpec& spec, int ranks) {
  std::string text = fmt::format("\n  {:>10}{:>10}{:>12}{:>12}{:>12}  {}\n", "tokens/s", "step",
                                 "device", "host", "disk", "layout");
  for (const Layout& layout : found.best)
    text += fmt::format("  {:>10}{:>10}{:>12}{:>12}{:>12}  {}\n",
                        format_count(static_cast<int64_t>(layout.tokens_per_second(ranks))),
                        step_time_text(layout.seconds), format_bytes(layout.device_bytes),
                        format_bytes(layout.host_bytes), format_bytes(layout.disk_bytes),
                        layout_text(layout.options, spec, ranks));
  return text;
}

// The document as the user wrote it, with the layout in it.
void write_configuration(const FitQuestion& question, const Layout& best, const Freedom& freedom) {
  Json document = question.root;
  write_layout(document, best.options, freedom);
  write_file(question.output, json_text(document) + "\n");
}

}  // namespace

int run_fit(const FitQuestion& question) {
  const Config& config = question.open.config;
  const ModelSpec spec = planned_model(config);
  const FitContext& context = question.context;
  const Freedom& freedom = question.freedom;
  const SearchResult found = search(question.open, context, freedom, question.limits);
  const bool fits = !found.best.empty();
  if (fits && !question.output.empty()) write_configuration(question, found.best[0], freedom);
  if (question.json) {
    Json json = {{"hardware", context.hardware.to_json()},
                 {"ranks", context.ranks},
                 {"device_memory", limit_json(question.limits.device)},
                 {"host_memory", limit_json(question.limits.host)},
                 {"disk", limit_json(question.limits.disk)}};
    json.update(search_json(found, context.ranks));
    print_json(json);
    return fits ? kOk : kUserError;
  }
  fmt::print(
      "{} tokens a step on {} rank{}; each may use {} of the device, {} of the host's memory, "
      "{} of the disk\n",
      config.batch.global * config.data.sequence_length, context.ranks,
      context.ranks == 1 ? "" : "s", limit_text(question.limits.device),
      limit_text(question.limits.host), limit_text(question.limits.disk));
  if (context.ranks > 1 && !freedom.mesh.any() && !question.root.contains("mesh"))
    fmt::print("the mesh stays: without train_batch_size the global batch would follow from it\n");
  const std::string stopped = stopped_text(found);
  if (!fits) {
    const Layout& least = found.least;
    const auto also = [](int64_t bytes, const char* where) {
      return bytes > 0 ? fmt::format(", {} of {}", format_bytes(bytes), where) : std::string();
    };
    fmt::print(
        "{}. The least of {} plans takes {} of the device{}{} ({}): allow more, use more "
        "ranks, or name --host-memory or --disk for what may live there\n",
        stopped.empty() ? "nothing fits" : "nothing that fits was found", found.plans,
        format_bytes(least.device_bytes), also(least.host_bytes, "the host's memory"),
        also(least.disk_bytes, "the disk"), layout_text(least.options, spec, context.ranks));
    if (!stopped.empty()) fmt::print("{}\n", stopped);
    return kUserError;
  }
  fmt::print("{}\n{}\n{} plans, by the rates of {}\n", table(found, spec, context.ranks),
             why_first(found), found.plans, context.hardware.name);
  if (!stopped.empty()) fmt::print("{}\n", stopped);
  if (!question.output.empty()) fmt::print("the first is in {}\n", question.output);
  return kOk;
}

}  // namespace onefold::cli

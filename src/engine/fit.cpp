#include "engine/fit.h"

#include "base/text.h"

namespace onefold {
namespace {

int64_t planned_peak(const ModelSpec& spec, EngineOptions options) {
  options.memory_limit_bytes = Ledger::kNoLimit;
  return Engine::plan(spec, options)->ledger().peak_bytes();
}

// Changes that keep the result of training, in the order of what they cost in speed.
std::vector<std::pair<std::string, EngineOptions>> remedies(const EngineOptions& options) {
  std::vector<std::pair<std::string, EngineOptions>> list;
  for (const bool recompute : {options.recompute, true}) {
    for (int64_t micro = options.micro_batch; micro >= 1; micro /= 2) {
      if (options.micro_batch % micro != 0) continue;
      EngineOptions changed = options;
      changed.micro_batch = micro;
      changed.micros = static_cast<int>(options.micros * (options.micro_batch / micro));
      changed.recompute = recompute;
      std::string name =
          fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {}", micro,
                      changed.micros);
      if (recompute) name += ", run.recompute true";
      list.emplace_back(name, changed);
    }
    if (options.recompute) break;
  }
  return list;
}

}  // namespace

void require_fits(const ModelSpec& spec, const EngineOptions& options) {
  if (options.memory_limit_bytes == Ledger::kNoLimit) return;
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  const auto plan = Engine::plan(spec, unlimited);
  if (plan->ledger().peak_bytes() <= options.memory_limit_bytes) return;
  std::string advice;
  int64_t smallest = INT64_MAX;
  for (const auto& [name, changed] : remedies(options)) {
    const int64_t peak = planned_peak(spec, changed);
    smallest = std::min(smallest, peak);
    if (peak <= options.memory_limit_bytes)
      advice += fmt::format("\n    {}  ({})", name, format_bytes(peak));
  }
  if (advice.empty())
    advice = fmt::format(
        "\n    nothing that keeps the result; the least is {}: raise run.memory, or take a smaller "
        "model or a shorter data.sequence_length",
        format_bytes(smallest));
  user_error("this run needs {} and run.memory allows {}:\n{}  what would fit:{}",
             format_bytes(plan->ledger().peak_bytes()), format_bytes(options.memory_limit_bytes),
             plan->ledger().table(), advice);
}

}  // namespace onefold

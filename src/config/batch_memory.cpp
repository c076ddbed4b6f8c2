// What a batch takes: the only part of reading a configuration that plans a step.
#include "config/sections.h"
#include "engine/engine.h"

namespace onefold {

// A vocabulary that only the tokenizer knows is guessed: it is checked
// against the limit again when it is known.
int64_t planned_bytes(const Config& config, int cores) {
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) spec.vocab_size = config.data.tokenizer == "bytes" ? 512 : 65536;
  spec.complete("model");
  EngineOptions options = engine_options(config);
  options.memory_limit_bytes = Ledger::kNoLimit;
  return Engine::plan_worst(spec, options, config.mesh.ranks(), 0, this_machine(cores))
      ->ledger()
      .peak_bytes();
}

}  // namespace onefold

#include "onefold/onefold.h"

#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/process.h"
#include "engine/generate.h"
#include "model/spec.h"
#include "model/spec_limits.h"
#include "plan/fit.h"
#include "run/weights.h"

namespace onefold {
namespace {

ModelSpec spec_of(const std::string& model) {
  const bool is_json = model.find('{') != std::string::npos;
  ModelSpec spec = is_json ? spec_from_json(parse_json(model, "model"), "model")
                           : spec_from_preset(model, "model");
  if (spec.vocab_size == 0)
    user_error("model.vocab_size is missing: the library has no tokenizer to ask");
  return spec;
}

EngineOptions engine_options_of(const TrainerOptions& o, const ModelSpec& spec) {
  const auto at_least_one = [](int64_t value, const char* name) {
    if (value < 1) user_error("TrainerOptions::{} is {}; it must be at least 1", name, value);
  };
  at_least_one(o.micro_batch, "micro_batch");
  at_least_one(o.accumulation, "accumulation");
  at_least_one(o.sequence_length, "sequence_length");
  if (o.sequence_length > spec.max_sequence_length)
    user_error("TrainerOptions::sequence_length is {}; the model has {}", o.sequence_length,
               spec.positions_text());
  check_step_sizes(
      spec, {.micro_batch = o.micro_batch, .micros = o.accumulation, .sequence = o.sequence_length},
      {.micro_batch = "TrainerOptions::micro_batch",
       .micros = "TrainerOptions::accumulation",
       .sequence = "TrainerOptions::sequence_length"});
  if (o.threads < 0 || o.threads > kMostThreads)
    user_error("TrainerOptions::threads is {}; it must be 0 (all cores), or at most {}", o.threads,
               kMostThreads);
  const auto require_in = [](double value, const char* name, bool in, const char* range) {
    if (!in) user_error("TrainerOptions::{} is {}; it must be {}", name, value, range);
  };
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  require_in(o.beta1, "beta1", is_beta(o.beta1), "at least 0 and less than 1");
  require_in(o.beta2, "beta2", is_beta(o.beta2), "at least 0 and less than 1");
  require_in(o.eps, "eps", o.eps > 0 && std::isfinite(o.eps), "a finite number above 0");
  require_in(o.weight_decay, "weight_decay", o.weight_decay >= 0 && std::isfinite(o.weight_decay),
             "a finite number of at least 0");
  require_in(o.gradient_clipping, "gradient_clipping",
             o.gradient_clipping >= 0 && std::isfinite(o.gradient_clipping),
             "a finite number of at least 0");
  return {.threads = o.threads,
          .seed = o.seed,
          .micro_batch = o.micro_batch,
          .sequence = o.sequence_length,
          .micros = static_cast<int>(o.accumulation),
          .recompute = o.recompute,
          .optimizer = {.beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .eps = o.eps,
                        .weight_decay = o.weight_decay},
          .clipping = o.gradient_clipping,
          .memory_limit_bytes = o.memory_bytes > 0 ? o.memory_bytes : Ledger::kNoLimit};
}

void check_tokens(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t count,
                  int64_t vocabulary) {
  if (static_cast<int64_t>(tokens.size()) != count || static_cast<int64_t>(targets.size()) != count)
    user_error("{} tokens and {} targets were given; this trainer takes {} of each", tokens.size(),
               targets.size(), count);
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocabulary)
      user_error("token {} is outside the vocabulary of {}", token, vocabulary);
  for (const int32_t target : targets)
    if (target >= vocabulary)
      user_error("target {} is outside the vocabulary of {}", target, vocabulary);
}

}  // namespace

struct Trainer::State {
  ModelSpec spec;
  int64_t planned_bytes;
  Engine engine;
  std::vector<int64_t> samples;  // ids of the step's sequences: what dropout is keyed by
  int64_t next_sample = 0;

  State(const ModelSpec& s, const EngineOptions& options, int64_t planned)
      : spec(s), planned_bytes(planned), engine(s, options) {
    samples.resize(static_cast<size_t>(options.micro_batch * options.micros));
  }

  // Micro-batch `micro` of the spans; units only read them.
  BatchView view(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t micro) {
    const EngineOptions& o = engine.options();
    const int64_t count = o.micro_batch * o.sequence;
    const auto part = [](auto all, int64_t first, int64_t size) {
      return all.subspan(static_cast<size_t>(first), static_cast<size_t>(size));
    };
    return {
        .tokens = part(tokens, micro * count, count),
        .targets = part(targets, micro * count, count),
        .samples = part(std::span<const int64_t>(samples), micro * o.micro_batch, o.micro_batch),
        .batch = o.micro_batch,
        .sequence = o.sequence};
  }
};

Trainer::Trainer(const TrainerOptions& options) {
  const ModelSpec spec = spec_of(options.model);
  EngineOptions engine = engine_options_of(options, spec);
  engine.positions = spec.max_sequence_length;  // of texts that are generated
  if (engine.threads == 0) engine.threads = threads_by_environment();
  const Hardware hardware = this_machine(available_cores());
  require_fits(spec, engine, {.hardware = hardware});
  const int64_t planned = Engine::plan(spec, engine, 1, 0, hardware)->ledger().peak_bytes();
  require_available(planned, 1, "TrainerOptions::memory_bytes");
  state_ = std::make_unique<State>(spec, engine, planned);
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

StepReport Trainer::step(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                         double learning_rate) {
  const EngineOptions& o = state_->engine.options();
  if (!(learning_rate >= 0 && learning_rate <= double{std::numeric_limits<float>::max()}))
    user_error("the learning rate is {}; it must be a finite number of at least 0", learning_rate);
  check_tokens(tokens, targets, o.micros * o.micro_batch * o.sequence, state_->spec.vocab_size);
  for (int64_t& sample : state_->samples) sample = state_->next_sample++;
  std::vector<BatchView> views;
  for (int micro = 0; micro < o.micros; ++micro)
    views.push_back(state_->view(tokens, targets, micro));
  const StepResult result = state_->engine.train_step(views, learning_rate);
  return {state_->engine.steps_done(), result.loss, result.gradient_norm};
}

double Trainer::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  const EngineOptions& o = state_->engine.options();
  check_tokens(tokens, targets, o.micro_batch * o.sequence, state_->spec.vocab_size);
  const auto [sum, count] = state_->engine.evaluate(state_->view(tokens, targets, 0));
  if (count == 0) user_error("every target is negative: there is nothing to evaluate");
  return sum / static_cast<double>(count);
}

std::vector<int32_t> Trainer::generate(std::span<const int32_t> prompt,
                                       const GenerationOptions& o) {
  GenerateOptions options{.sampling = {.temperature = o.temperature,
                                       .top_k = o.top_k,
                                       .top_p = o.top_p,
                                       .repetition_penalty = o.repetition_penalty,
                                       .seed = o.seed},
                          .max_tokens = o.max_tokens,
                          .beams = o.beams,
                          .length_penalty = o.length_penalty,
                          .end_tokens = {}};
  if (o.end_token >= 0) options.end_tokens.push_back(o.end_token);
  return onefold::generate(state_->engine, prompt, options);
}

void Trainer::save(const std::string& path, bool overwrite) const {
  if (!overwrite && is_plain_file(path))
    user_error("{} already exists; pass overwrite to save() to replace it", path);
  save_weights(state_->engine, path);
}
void Trainer::load(const std::string& path) { load_weights(state_->engine, path); }
int64_t Trainer::parameter_count() const { return state_->spec.parameter_count(); }
int64_t Trainer::vocab_size() const { return state_->spec.vocab_size; }
MemoryReport Trainer::memory() const {
  return {state_->planned_bytes, state_->engine.ledger().peak_bytes()};
}

std::vector<std::string> model_presets() { return preset_names(); }
const char* version() { return ONEFOLD_VERSION; }

}  // namespace onefold

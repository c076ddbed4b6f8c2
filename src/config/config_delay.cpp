// "delay": gradients that are applied a step late, ranks that step by themselves, and ranks that go
// on with old weights.
#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

void read_one_step(JsonObject& in, Config& config) {
  config.delay.one_step = in.get<bool>("one_step", false);
  if (config.delay.one_step && !config.optimizer.elementwise())
    in.refuse(Group::missing, "one_step",
              fmt::format("is true: gradients of AdamW, Adam, SGD and Lion can wait, those of {} "
                          "cannot",
                          optimizer_json(config)["type"].get<std::string>()));
  if (config.delay.one_step &&
      (config.compression.corrects_momentum || config.optimizer.variance_scaler > 0))
    in.refuse(Group::missing, "one_step",
              "is true, which does not go with momentum or gradients that travel in turns "
              "(compression.momentum_correction, var_update_scaler)");
  if (!config.delay.one_step) return in.no_effect("lookahead", "it is for one_step");
  config.delay.lookahead = in.non_negative("lookahead", 0);
  if (config.delay.lookahead > 0 && config.precision.compute != DType::f32 &&
      !config.precision.has_master())
    in.refuse(Group::missing, "lookahead",
              "needs master weights: weights of 16 bits do not return from where they are taken");
}

struct Obstacles {
  std::vector<std::string> reasons;
  void refuse_if(bool wrong, const char* reason) {
    if (wrong) reasons.emplace_back(reason);
  }
};

// Whether there is an evaluation after a step after which ranks have weights of their own.
bool evaluates_apart(const Config& config) {
  const LocalOptions& local = config.delay.local;
  const int64_t last = config.run.steps > 0 ? local.interval(config.run.steps) : local.steps;
  for (int64_t interval = local.sums_moves ? 1 : last; interval < last; interval *= 2)
    if (config.run.eval_every % interval != 0) return true;
  return config.run.eval_every % last != 0;
}

// What ranks have moved by one rule, and sum in packets beside the program. One rank sends nothing,
// and has nothing of this in the end.
void refuse_other_moves(const Config& config, Obstacles& obstacles) {
  const OptimizerSpec& optimizer = config.optimizer;
  const CompressionOptions& compression = config.compression;
  obstacles.refuse_if(
      optimizer.type != OptimizerSpec::Type::adamw || optimizer.l2 || optimizer.bias_correction,
      "the optimizer must be AdamW without bias_correction");
  obstacles.refuse_if(
      optimizer.freeze_step == 0 || optimizer.freeze_step != config.delay.whole_steps,
      "optimizer.params.freeze_step must be as many as delay.warmup_steps");
  obstacles.refuse_if(config.batch.world_size > 1 &&
                          (compression.gradients.none() || compression.gradients.sparse() ||
                           !compression.feedback || compression.corrects_momentum ||
                           compression.whole_steps > 0 || compression.host_ranks > 1),
                      "compression.gradients must be a dense format with error_feedback, and "
                      "without warmup_steps, momentum_correction and ranks_per_host");
  obstacles.refuse_if(config.precision.compute == DType::f16, "training must be in fp32 or bf16");
}

// All that would have to know of the other ranks in every step.
std::vector<std::string> obstacles_to_local_steps(const Config& config) {
  Obstacles obstacles;
  const bool moves = config.delay.local.sums_moves;
  obstacles.refuse_if(config.zero.stage > 0, "zero_optimization.stage must be 0");
  obstacles.refuse_if(config.offload.any(), "nothing may be offloaded");
  obstacles.refuse_if(config.compression.any() && !moves, "compression must be left out");
  if (moves) refuse_other_moves(config, obstacles);
  obstacles.refuse_if(config.mesh.tensor > 1, "mesh.tensor must be 1");
  obstacles.refuse_if(config.run.device != "cpu", "run.device must be cpu");
  obstacles.refuse_if(config.delay.one_step, "delay.one_step must be false");
  obstacles.refuse_if(!config.optimizer.elementwise(),
                      "the optimizer must be AdamW, Adam, SGD or Lion");
  obstacles.refuse_if(config.precision.moments != DType::f32, "moments must be fp32");
  obstacles.refuse_if(config.precision.compute != DType::f32 && !config.precision.has_master(),
                      "there must be master weights");
  obstacles.refuse_if(config.clip_rule.each() || config.clip_rule.counts_tensors() ||
                          config.clip_rule.percentile > 0,
                      "clipping is by gradient_clipping alone");
  obstacles.refuse_if(config.model.lora.enabled(), "lora must be left out");
  obstacles.refuse_if(evaluates_apart(config),
                      moves ? "run.eval_every must be a multiple of every interval, for between "
                              "two sums each rank has weights of its own"
                            : "run.eval_every must be a multiple of them, for between two averages "
                              "each rank has weights of its own");
  return obstacles.reasons;
}

void read_outer(JsonObject& in, LocalOptions& local) {
  if (!local.on() || local.sums_moves) {
    for (const char* key : {"outer_lr", "outer_momentum", "outer_nesterov"})
      in.no_effect(key,
                   local.sums_moves ? "it is for local_sum \"weights\"" : "it is for local_steps");
    return;
  }
  local.rate = static_cast<float>(in.positive("outer_lr", 0.7));
  local.momentum = static_cast<float>(in.fraction("outer_momentum", 0.9));
  local.nesterov = in.get<bool>("outer_nesterov", local.momentum > 0);
  if (local.nesterov && local.momentum == 0)
    in.refuse(Group::conflict, "outer_nesterov", "has no effect without outer_momentum");
}

// optimizer.type may have asked for moves, and for how they are summed.
void read_local_steps(JsonObject& in, Config& config) {
  LocalOptions& local = config.delay.local;
  const LocalOptions asked = local;
  local.steps = in.at_least("local_steps", 1, local.steps);
  local.sums_moves = in.choice("local_sum", {"weights", "moves"},
                               local.sums_moves ? "moves" : "weights") == "moves";
  if (local.sums_moves)
    local.scaler = in.at_least("local_step_scaler", 1, asked.sums_moves ? asked.scaler : 32678);
  else
    in.no_effect("local_step_scaler", "it is for local_sum \"moves\"");
  if (asked.sums_moves &&
      (!local.sums_moves || local.steps != asked.steps || local.scaler != asked.scaler ||
       config.delay.whole_steps != config.optimizer.freeze_step))
    in.refuse(Group::conflict, "local_steps",
              "and what belongs to it are set by optimizer.type, in another way: keep one");
  read_outer(in, local);
  if (!local.on()) return;
  local.whole_steps = config.delay.whole_steps;
  if (!local.sums_moves && local.whole_steps % local.steps != 0)
    in.refuse(Group::conflict, "warmup_steps",
              fmt::format("is {}: it must be a multiple of local_steps, {}", local.whole_steps,
                          local.steps));
  if (const std::vector<std::string> reasons = obstacles_to_local_steps(config); !reasons.empty())
    in.refuse(Group::missing, "local_steps",
              fmt::format("is {}, for which {}{}", local.steps, join(reasons, "; "),
                          asked.sums_moves ? ". At zero_optimization.stage 1, ranks of ZeroOneAdam "
                                             "exchange in every step"
                                           : ""));
}

// All that keeps weights elsewhere, or in other types, or states of each rank's own.
std::vector<std::string> obstacles_to_stale_weights(const Config& config) {
  Obstacles obstacles;
  obstacles.refuse_if(config.zero.stage > 2, "zero_optimization.stage must be at most 2");
  obstacles.refuse_if(config.offload.any(), "nothing may be offloaded");
  obstacles.refuse_if(config.compression.any(), "compression must be left out");
  obstacles.refuse_if(config.mesh.others() > 1, "the mesh must have its data axis alone");
  obstacles.refuse_if(config.run.device != "cpu", "run.device must be cpu");
  obstacles.refuse_if(config.delay.one_step, "delay.one_step must be false");
  obstacles.refuse_if(config.delay.local.on(), "delay.local_steps must be 1");
  obstacles.refuse_if(config.precision.compute != DType::f32, "training must be in fp32");
  obstacles.refuse_if(config.clip_rule.adaptive, "clipping may not be adaptive");
  obstacles.refuse_if(config.model.lora.enabled(), "lora must be left out");
  return obstacles.reasons;
}

void read_staleness(JsonObject& in, Config& config) {
  StaleOptions& stale = config.delay.stale;
  stale.bound = in.at_least("staleness", 0, 0);
  if (!stale.on()) return in.no_effect("compensation", "it is for staleness");
  stale.compensation = static_cast<float>(in.non_negative("compensation", 0));
  stale.whole_steps = config.delay.whole_steps;
  if (const std::vector<std::string> reasons = obstacles_to_stale_weights(config); !reasons.empty())
    in.refuse(Group::missing, "staleness",
              fmt::format("is {}, for which {}", stale.bound, join(reasons, "; ")));
}

}  // namespace

void read_delay(JsonObject& root, Config& config) {
  JsonObject in = root.object("delay");
  DelayConfig& delay = config.delay;
  delay.whole_steps = in.at_least("warmup_steps", 0, delay.whole_steps);
  read_one_step(in, config);
  read_local_steps(in, config);
  read_staleness(in, config);
  if (!delay.one_step && !delay.local.on() && !delay.stale.on())
    in.no_effect("warmup_steps", "nothing is delayed");
  in.finish();
  if ((delay.local.on() || delay.stale.on()) && config.batch.world_size == 1) {
    root.idle("delay");
    delay = {};
  }
}

Json delay_json(const DelayConfig& delay) {
  Json json;
  if (delay.one_step) json["one_step"] = true;
  if (delay.lookahead > 0) json["lookahead"] = delay.lookahead;
  if (delay.whole_steps > 0) json["warmup_steps"] = delay.whole_steps;
  if (delay.stale.on()) {
    json["staleness"] = delay.stale.bound;
    json["compensation"] = delay.stale.compensation;
  }
  if (!delay.local.on()) return json;
  json["local_steps"] = delay.local.steps;
  if (delay.local.sums_moves) {
    json["local_sum"] = "moves";
    json["local_step_scaler"] = delay.local.scaler;
    return json;
  }
  json["outer_lr"] = delay.local.rate;
  json["outer_momentum"] = delay.local.momentum;
  json["outer_nesterov"] = delay.local.nesterov;
  return json;
}

}  // namespace onefold

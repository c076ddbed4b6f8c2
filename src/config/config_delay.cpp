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

// All that would have to know of the other ranks in every step.
std::vector<std::string> obstacles_to_local_steps(const Config& config) {
  Obstacles obstacles;
  obstacles.refuse_if(config.zero.stage > 0, "zero_optimization.stage must be 0");
  obstacles.refuse_if(config.offload.any(), "nothing may be offloaded");
  obstacles.refuse_if(config.compression.any(), "compression must be left out");
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
  obstacles.refuse_if(
      config.run.eval_every % config.delay.local.steps != 0,
      "run.eval_every must be a multiple of them, for between two averages each rank has "
      "weights of its own");
  return obstacles.reasons;
}

void read_local_steps(JsonObject& in, Config& config) {
  LocalOptions& local = config.delay.local;
  local.steps = in.at_least("local_steps", 1, 1);
  if (!local.on()) {
    for (const char* key : {"outer_lr", "outer_momentum", "outer_nesterov"})
      in.no_effect(key, "it is for local_steps");
    return;
  }
  local.rate = static_cast<float>(in.positive("outer_lr", 0.7));
  local.momentum = static_cast<float>(in.fraction("outer_momentum", 0.9));
  local.nesterov = in.get<bool>("outer_nesterov", local.momentum > 0);
  if (local.nesterov && local.momentum == 0)
    in.refuse(Group::conflict, "outer_nesterov", "has no effect without outer_momentum");
  local.whole_steps = config.delay.whole_steps;
  if (local.whole_steps % local.steps != 0)
    in.refuse(Group::conflict, "warmup_steps",
              fmt::format("is {}: it must be a multiple of local_steps, {}", local.whole_steps,
                          local.steps));
  if (const std::vector<std::string> reasons = obstacles_to_local_steps(config); !reasons.empty())
    in.refuse(Group::missing, "local_steps",
              fmt::format("is {}, for which {}", local.steps, join(reasons, "; ")));
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
  delay.whole_steps = in.at_least("warmup_steps", 0, 0);
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
  json["outer_lr"] = delay.local.rate;
  json["outer_momentum"] = delay.local.momentum;
  json["outer_nesterov"] = delay.local.nesterov;
  return json;
}

}  // namespace onefold

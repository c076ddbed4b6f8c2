// "compression": what travels between ranks in a wire format; and the keys of ZeRO++ that ask for
// the same.
#include "base/error.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;
using Wired = WireFormat::Type;

bool has_blocks(Wired type) {
  return type == Wired::int8 || type == Wired::int4 || type == Wired::sign || type == Wired::blocks;
}

bool is_rounded(Wired type) {
  return type == Wired::bf16 || type == Wired::int8 || type == Wired::int4;
}

// What a format has beside its name; of gradients.
void read_wire_format(JsonObject& in, WireFormat& format) {
  if (has_blocks(format.type))
    format.block = in.at_least("block_size", 1, format.block);
  else
    in.no_effect("block_size", "it is for int8, int4, 1bit and blocks");
  if (is_rounded(format.type))
    format.stochastic = in.choice("rounding", {"nearest", "stochastic"}, "nearest") == "stochastic";
  else
    in.no_effect("rounding", "it is for bf16, int8 and int4");
  if (format.sparse()) {
    format.density = in.positive("density", format.density);
    if (format.density > 1) in.refuse(Group::conflict, "density", "must be at most 1: a share");
  } else {
    in.no_effect("density", "it is for sparse formats");
  }
  if (format.type != Wired::threshold)
    in.no_effect("threshold", "it is for the format threshold");
  else if (!in.has("threshold"))
    in.refuse(Group::conflict, "threshold", "is missing: the least magnitude that is sent");
  else
    format.least = in.positive("threshold", 0);
}

void read_compressed_gradients(JsonObject& in, CompressionOptions& compression) {
  read_wire_format(in, compression.gradients);
  if (compression.gradients.none()) {
    for (const char* key :
         {"error_feedback", "warmup_steps", "density_warmup_steps", "ranks_per_host", "adaptive"})
      in.no_effect(key, "gradients are not compressed");
    return;
  }
  compression.feedback = in.get<bool>("error_feedback", compression.feedback);
  compression.whole_steps = in.at_least("warmup_steps", 0, compression.whole_steps);
  compression.host_ranks = static_cast<int>(in.at_least("ranks_per_host", 1, 1));
  if (compression.gradients.sparse()) {
    compression.density_steps = in.at_least("density_warmup_steps", 0, 0);
    compression.adaptive = in.get<bool>("adaptive", false);
  } else {
    for (const char* key : {"density_warmup_steps", "adaptive"})
      in.no_effect(key, "it is for sparse formats");
  }
}

// What keeps a rank from taking the momentum itself; "" if nothing does.
std::string obstacle_to_own_momentum(const Config& config) {
  const CompressionOptions& compression = config.compression;
  const OptimizerSpec& optimizer = config.optimizer;
  const bool sgd = optimizer.type == OptimizerSpec::Type::sgd;
  const bool adam = (optimizer.type == OptimizerSpec::Type::adamw && !optimizer.l2) ||
                    optimizer.type == OptimizerSpec::Type::lamb;
  if (compression.gradients.none() || !compression.feedback)
    return "gradients must be compressed, with error_feedback";
  if (!adam && (!sgd || optimizer.momentum == 0 || optimizer.nesterov))
    return "the optimizer must be SGD with momentum (not Nesterov's), AdamW or LAMB";
  if (adam && (optimizer.freeze_step == 0 || optimizer.freeze_step > compression.whole_steps))
    return "AdamW and LAMB need optimizer.params.freeze_step, of at most warmup_steps steps: "
           "squares of what travels then do not count";
  if (optimizer.variance_scaler > 0) return "optimizer.params.var_update_scaler must be left out";
  if (adam && config.precision.moments != DType::f32)
    return "moments must be fp32, for they become the ranks' own";
  if (adam && config.offload.optimizer == Tier::disk)
    return "the moments of AdamW and LAMB, which become the ranks' own, cannot be on a disk";
  if (adam && config.run.device != "cpu" && config.offload.optimizer != Tier::device)
    return "with run.device cuda the moments of AdamW and LAMB, which become the ranks' own, must "
           "be on the card";
  if (config.schedule.cycles_momentum())
    return "the schedule may not change momentum (cycle_momentum)";
  return "";
}

// Momentum is the optimizer's: it is taken before the sum, not after.
void read_momentum_correction(JsonObject& in, Config& config) {
  CompressionOptions& compression = config.compression;
  compression.corrects_momentum =
      in.get<bool>("momentum_correction", compression.corrects_momentum);
  if (!compression.corrects_momentum) {
    for (const char* key : {"momentum_masking", "local_clipping"})
      in.no_effect(key, "it belongs to momentum_correction");
    return;
  }
  const OptimizerSpec& optimizer = config.optimizer;
  const bool sgd = optimizer.type == OptimizerSpec::Type::sgd;
  MomentumCorrection& correction = compression.correction;
  const bool sparse = compression.gradients.sparse();
  correction.masks = in.get<bool>("momentum_masking", sparse);
  if (correction.masks && !sparse)
    in.refuse(Group::conflict, "momentum_masking",
              "is of what was sent, and the format sends something of everything: set it to false");
  correction.limit = static_cast<float>(in.non_negative("local_clipping", 0));
  const double momentum = sgd ? optimizer.momentum : optimizer.beta1;
  correction.momentum = static_cast<float>(momentum);
  if (!sgd) correction.share = static_cast<float>(1 - momentum);
  if (const std::string why = obstacle_to_own_momentum(config); !why.empty())
    in.refuse(Group::conflict, "momentum_correction", "is true: " + why);
}

// Hosts are ranks that follow each other, and all of one size.
void check_hosts(JsonObject& in, const Config& config) {
  const CompressionOptions& compression = config.compression;
  if (compression.host_ranks == 1) return;
  const int64_t ranks = config.mesh.ranks();
  if (ranks > 1 && (ranks % compression.host_ranks != 0 || ranks == compression.host_ranks))
    in.refuse(Group::conflict, "ranks_per_host",
              fmt::format("is {}, and there are {} ranks: it must divide their number, and be less",
                          compression.host_ranks, ranks));
  if (compression.correction.limit > 0)
    in.refuse(Group::missing, "ranks_per_host",
              "does not go with local_clipping: no rank has all of its host's gradient");
}

void refuse_what_is_missing(JsonObject& root, const Config& config) {
  if (config.run.device != "cpu")
    for (const auto& [key, format] :
         {std::pair("compression.gradients", &config.compression.gradients),
          std::pair("compression.weights", &config.compression.weights)})
      if (const std::string why = obstacle_to_packing_on_cards(*format); !why.empty())
        root.refuse(Group::missing, key,
                    fmt::format("is {}, which {}, and run.device is {}", wire_name(format->type),
                                why, config.run.device));
}

}  // namespace

void read_quantized(JsonObject& zero, int stage, CompressionOptions& compression) {
  const auto read = [&](const char* key, Wired type, WireFormat& format) {
    const bool on = zero.get<bool>(key, false);
    if (!on) return zero.idle(key);
    if (stage != 3)
      return zero.refuse(Group::conflict, key,
                         "is true: ZeRO++ is of stage 3; compression.gradients is of every stage");
    format.type = type;
  };
  read("zero_quantized_weights", Wired::int8, compression.weights);
  read("zero_quantized_gradients", Wired::int4, compression.gradients);
  if (!compression.gradients.none()) compression.feedback = false;
}

void read_compression(JsonObject& root, Config& config) {
  CompressionOptions& compression = config.compression;
  JsonObject in = root.object("compression");
  const auto format_of = [&](const char* key, std::initializer_list<std::string_view> names,
                             const char* quantized, WireFormat& format) {
    const std::string name = in.choice(key, names, wire_name(format.type));
    if (!format.none() && name != wire_name(format.type))
      in.refuse(Group::conflict, key,
                fmt::format("is {}, and {} asks for {}: keep one", name,
                            format.type == Wired::sign ? "optimizer.type" : quantized,
                            wire_name(format.type)));
    format.type = wire_type(name);
  };
  format_of("gradients",
            {"none", "bf16", "int8", "int4", "1bit", "topk", "topk_sampled", "threshold", "randomk",
             "blocks", "rows", "importance"},
            "zero_optimization.zero_quantized_gradients", compression.gradients);
  format_of("weights", {"none", "bf16", "int8", "int4"}, "zero_optimization.zero_quantized_weights",
            compression.weights);
  read_compressed_gradients(in, compression);
  read_momentum_correction(in, config);
  if (!compression.weights.none()) {
    if (config.zero.stage != 3)
      in.refuse(Group::conflict, "weights",
                "has an effect at stage 3 alone, where weights are gathered for use");
    if (compression.weights.type == Wired::bf16 && config.precision.compute != DType::f32)
      in.refuse(Group::conflict, "weights", "is bf16, and parameters have 16 bits already");
  }
  if (compression.any()) refuse_what_is_missing(root, config);
  check_hosts(in, config);
  in.finish();
  if (compression.any() && config.batch.world_size * config.mesh.context == 1) {
    root.idle("compression");
    compression = {};
  }
}

OptimizerSpec engine_optimizer(const Config& config) {
  OptimizerSpec optimizer = config.optimizer;
  optimizer.delayed = config.delay.one_step;
  if (optimizer.delayed) optimizer.delayed_after = config.delay.whole_steps;
  if (optimizer.delayed) optimizer.lookahead = config.delay.lookahead;
  if (config.compression.corrects_momentum) optimizer.momentum = 0;
  return optimizer;
}

Json compression_json(const Config& config) {
  const CompressionOptions& compression = config.compression;
  const WireFormat& format = compression.gradients;
  Json json;
  if (!compression.weights.none()) json["weights"] = wire_name(compression.weights.type);
  if (format.none()) return json;
  json["gradients"] = wire_name(format.type);
  if (has_blocks(format.type)) json["block_size"] = format.block;
  if (is_rounded(format.type)) json["rounding"] = format.stochastic ? "stochastic" : "nearest";
  if (format.sparse()) json["density"] = format.density;
  if (format.type == Wired::threshold) json["threshold"] = format.least;
  json["error_feedback"] = compression.feedback;
  json["warmup_steps"] = compression.whole_steps;
  if (compression.host_ranks > 1) json["ranks_per_host"] = compression.host_ranks;
  if (format.sparse()) json["density_warmup_steps"] = compression.density_steps;
  if (compression.adaptive) json["adaptive"] = true;
  if (!compression.corrects_momentum) return json;
  json["momentum_correction"] = true;
  json["momentum_masking"] = compression.correction.masks;
  json["local_clipping"] = compression.correction.limit;
  return json;
}

}  // namespace onefold

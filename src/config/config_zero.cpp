// "zero_optimization": DeepSpeed's keys. Each has its effect, or is accepted only with the value
// that describes what happens here in any case, or is refused with the reason.
#include <array>

#include "base/error.h"
#include "config/sections.h"

namespace onefold {
namespace {

constexpr std::array kSettledKeys = {
    SettledKey{"contiguous_gradients", "true", "a unit's gradients are always one flat slab"},
    SettledKey{"reduce_scatter", "true",
               "stages 1 to 3 always reduce-scatter, stage 0 all-reduces"},
    SettledKey{"allgather_partitions", "true", "updated parameters are always all-gathered"},
    SettledKey{"round_robin_gradients", "false",
               "every rank owns an equal slice of every unit: there is nothing to take turns at"},
    SettledKey{"sub_group_size", "1000000000",
               "the optimizer steps one unit at a time, which bounds its memory"},
    SettledKey{"use_multi_rank_bucket_allreduce", "true",
               "a bucket is one collective over all ranks"},
    SettledKey{"load_from_fp32_weights", "true", "weights are stored in fp32"},
    SettledKey{"elastic_checkpoint", "false", "it is a detail of DeepSpeed's checkpoints"},
    SettledKey{"ignore_unused_parameters", "true", "every parameter of a model is used"},
    SettledKey{"legacy_stage1", "false", "there is one stage 1"},
    SettledKey{"stage3_gather_16bit_weights_on_model_save", "true",
               "weights are always saved whole, one unit at a time"},
    SettledKey{"gather_16bit_weights_on_model_save", "true",
               "weights are always saved whole, one unit at a time"},
    SettledKey{"stage3_gather_fp16_weights_on_model_save", "true",
               "weights are always saved whole, one unit at a time"},
    SettledKey{"stage3_module_granularity_threshold", "0",
               "what is gathered together is a unit: the embedding, a block, the head"},
    SettledKey{"module_granularity_threshold", "0",
               "what is gathered together is a unit: the embedding, a block, the head"},
    SettledKey{"leaf_module", "null",
               "what is gathered together is a unit: the embedding, a block, the head"},
    SettledKey{"stage3_use_all_reduce_for_fetch_params", "false",
               "parameters are gathered by an all-gather"},
    SettledKey{"use_all_reduce_for_fetch_params", "false",
               "parameters are gathered by an all-gather"},
    SettledKey{"stage3_allgather_sequential", "false", "a gather is one collective"},
    SettledKey{"allgather_sequential", "false", "a gather is one collective"},
    SettledKey{"stage3_partition_stream_chunk_size", "0",
               "a rank makes only its own slice of the initial weights"},
    SettledKey{"partition_stream_chunk_size", "0",
               "a rank makes only its own slice of the initial weights"},
    SettledKey{"stage3_model_persistence_threshold", "null",
               "use stage3_param_persistence_threshold, which counts the elements of a unit"},
    SettledKey{"model_persistence_threshold", "null",
               "use stage3_param_persistence_threshold, which counts the elements of a unit"},
    SettledKey{"zero_hpz_partition_size", "1", "ZeRO++ is not supported yet"},
    SettledKey{"zero_quantized_weights", "false", "ZeRO++ is not supported yet"},
    SettledKey{"zero_quantized_nontrainable_weights", "false", "ZeRO++ is not supported yet"},
    SettledKey{"zero_quantized_gradients", "false", "ZeRO++ is not supported yet"},
    SettledKey{"zeropp_loco_param", "null", "ZeRO++ is not supported yet"},
    SettledKey{"mics_shard_size", "-1", "MiCS is not supported yet"},
    SettledKey{"mics_hierarchical_params_gather", "false", "MiCS is not supported yet"},
    SettledKey{"memory_efficient_linear", "true", "there is one linear layer"},
    SettledKey{"pipeline_loading_checkpoint", "false", "it belongs to offloading"},
    SettledKey{"override_module_apply", "true", "it is a detail of PyTorch modules"},
    SettledKey{"log_trace_cache_warnings", "false", "the program is known: nothing is traced"},
    SettledKey{"enable_sanity_checks", "false", "use run.check_collectives"},
    SettledKey{"save_muon_momentum_buffer_in_memory", "false", "there is no Muon optimizer"},
    SettledKey{"cpu_offload", "false", "it arrives with offload"},
    SettledKey{"cpu_offload_param", "false", "it arrives with offload"},
    SettledKey{"cpu_offload_params", "false", "it arrives with offload"},
    SettledKey{"cpu_offload_use_pin_memory", "false", "it arrives with offload"},
    SettledKey{"zenflow", "null", "it arrives with offload"},
};

bool is_settled(const Json& value, const char* settled) {
  const Json expected = Json::parse(settled);
  if (value.is_number() && expected.is_number())
    return value.get<double>() == expected.get<double>();
  return value.is_null() || value == expected;
}

void read_settled(JsonObject& zero) {
  for (const SettledKey& key : kSettledKeys) {
    // Only keys that are present are read, so that the error for an unknown key suggests those that
    // have an effect. "auto" counts as absent.
    if (!zero.value().contains(key.name) || !zero.has(key.name)) continue;
    if (!is_settled(zero.require<Json>(key.name), key.settled))
      zero.fail(key.name, fmt::format("can only be {}: {}; leave it out", key.settled, key.reason));
  }
}

void read_offload(JsonObject& zero) {
  for (const std::string_view key : {"offload_optimizer", "offload_param"}) {
    if (!zero.has(key)) continue;
    const Json value = zero.require<Json>(key);
    if (value.is_null() || (value.is_object() && value.value("device", Json()) == "none")) continue;
    zero.fail(key,
              "can only be null or {\"device\": \"none\"}: other devices arrive with offload, and "
              "state lives in this device's memory so far; leave it out");
  }
}

// DeepSpeed takes the stage-3 keys with and without their prefix.
int64_t read_elems(JsonObject& zero, const std::string& name, int64_t fallback) {
  const std::string prefixed = "stage3_" + name;
  if (zero.has(prefixed) && zero.has(name))
    zero.fail(name, fmt::format("is {} under another name: keep one", zero.path(prefixed)));
  return zero.at_least(zero.has(name) ? name : prefixed, 0, fallback);
}

}  // namespace

std::span<const SettledKey> settled_zero_keys() { return kSettledKeys; }

void read_zero(JsonObject& root, Config& config) {
  JsonObject in = root.object("zero_optimization");
  in.allow_auto({"overlap_comm", "reduce_bucket_size", "allgather_bucket_size",
                 "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                 "stage3_max_live_parameters", "stage3_max_reuse_distance", "contiguous_gradients",
                 "sub_group_size"});
  ZeroOptions& zero = config.zero;
  const int64_t stage = in.at_least("stage", 0, 0);
  if (stage > 3) in.fail("stage", fmt::format("must be 0, 1, 2 or 3, not {}", stage));
  zero.stage = static_cast<int>(stage);
  zero.overlap = in.get<bool>("overlap_comm", true);
  zero.reduce_bucket_elems = in.at_least("reduce_bucket_size", 0, zero.reduce_bucket_elems);
  if (zero.stage == 0)
    in.no_effect("allgather_bucket_size", "stage 0 updates every parameter on every rank");
  zero.gather_bucket_elems = in.at_least("allgather_bucket_size", 0, zero.gather_bucket_elems);
  for (const std::string name : {"prefetch_bucket_size", "max_live_parameters",
                                 "max_reuse_distance", "param_persistence_threshold"})
    for (const std::string& key : {name, "stage3_" + name})
      if (zero.stage < 3)
        in.no_effect(key, fmt::format("it is for stage 3, and this is {}", zero.stage));
  if (!zero.overlap)
    for (const std::string_view key : {"prefetch_bucket_size", "stage3_prefetch_bucket_size"})
      in.no_effect(key, "overlap_comm is false: a gather would only wait longer for its use");
  zero.prefetch_elems = read_elems(in, "prefetch_bucket_size", zero.prefetch_elems);
  zero.max_live_elems = read_elems(in, "max_live_parameters", zero.max_live_elems);
  zero.max_reuse_distance = read_elems(in, "max_reuse_distance", zero.max_reuse_distance);
  zero.persistence_elems = read_elems(in, "param_persistence_threshold", zero.persistence_elems);
  read_offload(in);
  read_settled(in);
  in.finish();
}

Json zero_json(const ZeroOptions& zero) {
  Json json;
  json["stage"] = zero.stage;
  json["overlap_comm"] = zero.overlap;
  json["reduce_bucket_size"] = zero.reduce_bucket_elems;
  if (zero.stage > 0) json["allgather_bucket_size"] = zero.gather_bucket_elems;
  if (zero.stage < 3) return json;
  if (zero.overlap)
    json["stage3_prefetch_bucket_size"] =
        zero.prefetch_elems == ZeroOptions::kAuto ? Json("auto") : Json(zero.prefetch_elems);
  json["stage3_max_live_parameters"] = zero.max_live_elems;
  json["stage3_max_reuse_distance"] = zero.max_reuse_distance;
  json["stage3_param_persistence_threshold"] = zero.persistence_elems;
  return json;
}

}  // namespace onefold

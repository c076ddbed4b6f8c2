// The keys of DeepSpeed's zero_optimization that have no effect here: the one value that describes
// what happens in any case is accepted, and every other is refused with the reason.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "base/file.h"
#include "base/text.h"
#include "config/sections.h"
#include "error_text.h"

namespace onefold {
namespace {

struct Case {
  const char* key;
  const char* passes;  // as JSON
  const char* reason;  // words of it
};

// Written out again, apart from the parser's table, so that neither can change alone.
constexpr Case kCases[] = {
    {"contiguous_gradients", "true", "always one flat slab"},
    {"reduce_scatter", "true", "always reduce-scatter"},
    {"allgather_partitions", "true", "always all-gathered"},
    {"use_multi_rank_bucket_allreduce", "true", "one collective over all ranks"},
    {"round_robin_gradients", "false", "equal slice of every unit"},
    {"sub_group_size", "1e9", "steps one unit at a time"},
    {"load_from_fp32_weights", "true", "stored in fp32"},
    {"elastic_checkpoint", "false", "DeepSpeed's checkpoints"},
    {"ignore_unused_parameters", "true", "every parameter of a model is used"},
    {"legacy_stage1", "false", "there is one stage 1"},
    {"stage3_gather_16bit_weights_on_model_save", "true", "always saved whole"},
    {"gather_16bit_weights_on_model_save", "true", "always saved whole"},
    {"stage3_gather_fp16_weights_on_model_save", "true", "always saved whole"},
    {"stage3_module_granularity_threshold", "0", "gathered together is a unit"},
    {"module_granularity_threshold", "0", "gathered together is a unit"},
    {"leaf_module", "null", "gathered together is a unit"},
    {"stage3_use_all_reduce_for_fetch_params", "false", "gathered by an all-gather"},
    {"use_all_reduce_for_fetch_params", "false", "gathered by an all-gather"},
    {"stage3_allgather_sequential", "false", "one collective"},
    {"allgather_sequential", "false", "one collective"},
    {"stage3_partition_stream_chunk_size", "0", "only its own slice"},
    {"partition_stream_chunk_size", "0", "only its own slice"},
    {"stage3_model_persistence_threshold", "null", "use stage3_param_persistence_threshold"},
    {"model_persistence_threshold", "null", "use stage3_param_persistence_threshold"},
    {"zero_hpz_partition_size", "1", "ZeRO++"},
    {"zero_quantized_weights", "false", "ZeRO++"},
    {"zero_quantized_nontrainable_weights", "false", "ZeRO++"},
    {"zero_quantized_gradients", "false", "ZeRO++"},
    {"zeropp_loco_param", "null", "ZeRO++"},
    {"mics_shard_size", "-1", "MiCS"},
    {"mics_hierarchical_params_gather", "false", "MiCS"},
    {"memory_efficient_linear", "true", "one linear layer"},
    {"pipeline_loading_checkpoint", "false", "belongs to offloading"},
    {"override_module_apply", "true", "PyTorch modules"},
    {"log_trace_cache_warnings", "false", "nothing is traced"},
    {"enable_sanity_checks", "false", "use run.check_collectives"},
    {"save_muon_momentum_buffer_in_memory", "false", "no Muon"},
    {"cpu_offload", "false", "arrives with offload"},
    {"cpu_offload_param", "false", "arrives with offload"},
    {"cpu_offload_params", "false", "arrives with offload"},
    {"cpu_offload_use_pin_memory", "false", "arrives with offload"},
    {"zenflow", "null", "arrives with offload"},
};

// The message with which this value is refused at this stage; "" if it passes.
std::string refusal(const std::string& key, const Json& value, int stage = 3) {
  return error_text([&] {
    Config::from_json({{"model", "gpt2-tiny"},
                       {"train_batch_size", 8},
                       {"zero_optimization", {{"stage", stage}, {key, value}}}});
  });
}

TEST(ZeroKeys, WhatIsSettledPassesWithOneValueAtEveryStage) {
  for (const Case& c : kCases)
    for (int stage = 0; stage <= 3; ++stage) {
      EXPECT_EQ(refusal(c.key, Json::parse(c.passes), stage), "") << c.key;
      EXPECT_EQ(refusal(c.key, Json(), stage), "") << c.key << ": null asks for nothing";
    }
}

TEST(ZeroKeys, AnyOtherValueOfASettledKeyIsRefusedWithTheReason) {
  // Some of each kind, and what one key or another passes with.
  const Json values = Json::parse(
      R"([true, false, 0, 1, -1, 2, 0.5, 1e9, 999999999, "", "auto", "true", [], [true], {},
          {"enabled": false}])");
  for (const Case& c : kCases)
    for (const Json& value : values) {
      const Json passes = Json::parse(c.passes);
      const bool filled_in =
          value == "auto" && (std::string_view(c.key) == "contiguous_gradients" ||
                              std::string_view(c.key) == "sub_group_size");
      const std::string said = refusal(c.key, value);
      if (value == passes || filled_in) {
        EXPECT_EQ(said, "");
        continue;
      }
      const std::string must_be =
          passes.is_number() ? fmt::format("{:.0f}", passes.get<double>()) : passes.dump();
      EXPECT_TRUE(
          said.starts_with(fmt::format("zero_optimization.{} can only be {}: ", c.key, must_be)))
          << c.key << " = " << value << ": " << said;
      EXPECT_TRUE(contains(said, c.reason)) << said;
      EXPECT_TRUE(said.ends_with("; leave it out")) << said;
    }
}

TEST(ZeroKeys, OffloadIsRefusedUnlessItNamesNoDevice) {
  for (const char* key : {"offload_optimizer", "offload_param"}) {
    for (const char* passes :
         {"null", R"({"device": "none"})", R"({"device": "none", "pin_memory": true})"})
      EXPECT_EQ(refusal(key, Json::parse(passes)), "") << key << passes;
    // Without a device DeepSpeed does not offload either; but then the rest has no effect.
    for (const char* other : {R"({"device": "cpu"})", R"({"device": "nvme", "nvme_path": "/"})",
                              R"({"device": null})", R"({"device": 3})", R"({"pin_memory": true})",
                              R"({"devcie": "cpu"})", "{}", "[]", "true", "\"cpu\"", "0"}) {
      const std::string said = refusal(key, Json::parse(other));
      EXPECT_TRUE(said.starts_with(fmt::format("zero_optimization.{} can only be null or", key)))
          << other << ": " << said;
      EXPECT_TRUE(contains(said, "arrive with offload")) << said;
    }
  }
}

TEST(ZeroKeys, AStageThatIsNoneIsRefusedHoweverLargeItIs) {
  for (const char* stage : {"4", "4294967296", "4294967299", "1e15"})
    EXPECT_ERROR(Config::from_json({{"model", "gpt2-tiny"},
                                    {"train_batch_size", 8},
                                    {"zero_optimization", {{"stage", Json::parse(stage)}}}}),
                 "zero_optimization.stage must be 0, 1, 2 or 3");
}

// Key and value of each row of the table of settled keys in docs/config.md.
std::map<std::string, Json> documented() {
  std::map<std::string, Json> table;
  const std::string docs = read_file(std::string(ONEFOLD_SOURCE_DIR) + "/docs/config.md");
  std::istringstream rows(docs.substr(docs.find("\n| key | passes as | reason |\n") + 1));
  std::string row;
  for (int head = 0; head < 2; ++head) std::getline(rows, row);
  while (std::getline(rows, row) && row.starts_with('|')) {
    const std::vector<std::string> cells = split(row, '|');
    const std::vector<std::string> keys = split(cells.at(1), '`'), value = split(cells.at(2), '`');
    for (size_t i = 1; i < keys.size(); i += 2)
      table[keys[i]] = value.size() > 1 ? Json::parse(value[1]) : Json();
  }
  return table;
}

TEST(ZeroKeys, TheParserTheDocumentationAndTheseTestsKnowTheSameKeys) {
  std::map<std::string, Json> tested, parsed;
  for (const Case& c : kCases) tested[c.key] = Json::parse(c.passes);
  for (const SettledKey& key : settled_zero_keys())
    parsed[std::string(key.name)] = Json::parse(key.settled);
  EXPECT_EQ(parsed, tested);
  EXPECT_EQ(documented(), tested);
}

}  // namespace
}  // namespace onefold

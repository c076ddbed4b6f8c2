// DeepSpeed's keys that change nothing here or ask for what is not there: every row of the tables,
// by what it lets pass and what it says. docs/config.md shows the same tables.
#include "config/deepspeed_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/file.h"
#include "base/text.h"
#include "error_text.h"

namespace onefold {
namespace {

Config read_keys(const Json& keys) {
  Json root = {{"model", "gpt2-tiny"}, {"train_batch_size", 8}};
  root.update(keys);
  return Config::from_json(root);
}

std::string refusal(const Json& keys) {
  return error_text([&] { read_keys(keys); });
}

// One key, at the top or in zero_optimization.
Json one_key(std::string_view section, std::string_view key, const Json& value, int stage = 2) {
  if (section.empty()) return {{std::string(key), value}};
  return {{std::string(section), {{"stage", stage}, {std::string(key), value}}}};
}

Json staged(const Json& stage) { return {{"zero_optimization", {{"stage", stage}}}}; }

bool is_noted(const Config& config, const std::string& path) {
  const std::vector<std::string>& idle = config.notes.idle;
  return std::find(idle.begin(), idle.end(), path) != idle.end();
}

std::vector<Json> passing_values(const std::string& passes) {
  if (passes == "boolean") return {true, false};
  if (passes == "integer") return {0, 1e9, 7};
  if (passes == "number") return {0.5, 8};
  return Json::parse(passes).get<std::vector<Json>>();
}

void expect_row(std::string_view section, const PlainKey& row) {
  const std::string path =
      section.empty() ? std::string(row.name) : fmt::format("{}.{}", section, row.name);
  const std::vector<Json> passing = passing_values(row.passes);
  for (const Json& value : passing)
    for (const int stage : {0, 1, 2, 3}) {
      const Json keys = one_key(section, row.name, value, stage);
      EXPECT_EQ(refusal(keys), "") << path;
      EXPECT_TRUE(is_noted(read_keys(keys), path)) << path;
    }
  EXPECT_EQ(refusal(one_key(section, row.name, nullptr)), "") << path << ": null is absent";
  for (const char* text : {"true", "false", "3", "0.25", R"("zzz")", "[true]", "{}"}) {
    const Json value = Json::parse(text);
    const std::string_view passes = row.passes;
    const bool right = std::find(passing.begin(), passing.end(), value) != passing.end() ||
                       (passes == "integer" && value == 3) ||
                       (passes == "number" && value.is_number());
    if (right) continue;
    EXPECT_EQ(refusal(one_key(section, row.name, value)),
              fmt::format("{} is {}: {}", path, value.dump(), row.reason));
  }
}

TEST(PlainKeys, PassWithTheirValuesAndAreNoted) {
  for (const PlainKey& row : plain_root_keys()) expect_row("", row);
  for (const PlainKey& row : plain_zero_keys()) expect_row("zero_optimization", row);
}

// The rows of the tables in docs/config.md whose second column says what passes.
std::map<std::string, std::string> documented(const std::string& heading) {
  std::map<std::string, std::string> table;
  const std::string docs = read_file(std::string(ONEFOLD_SOURCE_DIR) + "/docs/config.md");
  const size_t at = docs.find("\n" + heading + "\n");
  EXPECT_NE(at, std::string::npos) << heading;
  std::istringstream rows(docs.substr(at + 1));
  std::string row;
  for (int head = 0; head < 2; ++head) std::getline(rows, row);
  while (std::getline(rows, row) && row.starts_with('|')) {
    const std::vector<std::string> cells = split(row, '|'), keys = split(cells.at(1), '`');
    for (size_t i = 1; i < keys.size(); i += 2) table[keys[i]] = cells.at(2);
  }
  return table;
}

void expect_documented(const std::string& heading, std::span<const PlainKey> rows) {
  const std::map<std::string, std::string> table = documented(heading);
  EXPECT_EQ(table.size(), rows.size());
  for (const PlainKey& row : rows) {
    ASSERT_TRUE(table.contains(std::string(row.name))) << row.name;
    const std::string& cell = table.at(std::string(row.name));
    std::vector<std::string> shown;
    const std::string passes = row.passes;
    if (passes.starts_with('['))
      for (const Json& value : passing_values(passes)) shown.push_back("`" + value.dump() + "`");
    else
      shown.push_back("any " + passes);
    EXPECT_EQ(cell, shown.empty() ? " " : " " + join(shown, ", ") + " ") << row.name;
  }
}

TEST(PlainKeys, TheDocumentationHasTheSameTables) {
  expect_documented("| key at the top | passes with | why, or why not |", plain_root_keys());
  expect_documented("| key of `zero_optimization` | passes with | why, or why not |",
                    plain_zero_keys());
}

TEST(SectionKeys, TheDocumentationNamesThemAll) {
  const auto table = documented("| section | refused if | reason, or what to use |");
  EXPECT_EQ(table.size(), root_sections().size() + 1);
  EXPECT_TRUE(table.contains("compression_training"));
  for (const SectionKey& row : root_sections())
    EXPECT_TRUE(table.contains(std::string(row.name))) << row.name;
}

Json off_value(const SectionKey& row) { return Json::parse(row.off)[0]; }

TEST(SectionKeys, SwitchedOffTheyPassAndAreNoted) {
  for (const SectionKey& row : root_sections()) {
    const std::string name(row.name);
    Json section = Json::object();
    for (const std::string& key : split(row.asks, ' '))
      if (!key.empty()) section[key] = off_value(row);
    EXPECT_EQ(refusal({{name, section}}), "") << name;
    EXPECT_TRUE(is_noted(read_keys({{name, section}}), name)) << name;
    EXPECT_EQ(refusal({{name, Json::object()}}), "") << name;
    EXPECT_EQ(refusal({{name, nullptr}}), "") << name;
  }
}

TEST(SectionKeys, WhatTheyAskForIsRefusedWithTheReason) {
  for (const SectionKey& row : root_sections())
    for (const std::string& key : split(row.asks, ' ')) {
      if (key.empty()) continue;
      const Json on = off_value(row) == false ? Json(true) : Json(77);
      EXPECT_EQ(refusal({{std::string(row.name), {{key, on}}}}),
                fmt::format("{}.{} is {}: {}", row.name, key, on.dump(), row.reason));
    }
  EXPECT_TRUE(contains(refusal({{"weight_quantization", {{"num_bits", 4}}}}),
                       "weight_quantization.enabled is on"));
}

TEST(SectionKeys, NothingInsideASectionIsIgnored) {
  for (const SectionKey& row : root_sections())
    EXPECT_TRUE(contains(refusal({{std::string(row.name), {{"bogus", 3}, {"enabled", nullptr}}}}),
                         fmt::format("{}.bogus is not a known key", row.name)));
  for (const char* key : {"fp16", "bf16", "tensorboard", "csv_monitor"})
    EXPECT_TRUE(contains(refusal({{key, {{"enabled", false}, {"bogus", 3}}}}),
                         fmt::format("{}.bogus is not a known key", key)));
  for (const char* key : {"offload_optimizer", "offload_param", "leaf_module"})
    EXPECT_TRUE(contains(refusal(one_key("zero_optimization", key, {{"bogus", 3}})),
                         fmt::format("zero_optimization.{}.bogus is not a known key", key)));
  EXPECT_TRUE(contains(refusal({{"fp16", {{"enabld", false}}}}), "did you mean \"enabled\"?"));
  EXPECT_EQ(refusal({{"checkpoint", {{"tag_validation", "Maybe"}}}}),
            "checkpoint.tag_validation must be Ignore, Warn or Fail, not \"Maybe\"");
}

// To divide kept activations among the ranks of a tensor group asks for nothing where there is
// none.
TEST(SectionKeys, PartitionedActivationsAreOfTensorGroups) {
  const Json section = {{"partition_activations", true}, {"contiguous_memory_optimization", true}};
  EXPECT_TRUE(
      is_noted(read_keys({{"activation_checkpointing", section}}), "activation_checkpointing"));
  const auto on_two = [&](bool sequence_parallel) {
    return error_text([&] {
      Config::from_json({{"model", "gpt2"},
                         {"train_batch_size", 8},
                         {"mesh", {{"tensor", 2}, {"sequence_parallel", sequence_parallel}}},
                         {"activation_checkpointing", section}},
                        2);
    });
  };
  EXPECT_EQ(on_two(false),
            "activation_checkpointing.partition_activations is true: with "
            "mesh.tensor, mesh.sequence_parallel divides activations");
  EXPECT_EQ(on_two(true), "");
}

TEST(MisplacedKeys, AreToldWhereTheyStand) {
  EXPECT_EQ(refusal({{"stage3_gather_16bit_weights_on_model_save", true}}),
            "stage3_gather_16bit_weights_on_model_save is not a known key at the top: write "
            "zero_optimization.stage3_gather_16bit_weights_on_model_save");
  for (const auto& [key, ours] : std::map<std::string, std::string>{
           {"max_grad_norm", "gradient_clipping"},
           {"gradient_checkpointing", "run.recompute"},
           {"pipe-parallel-size", "mesh.pipeline"},
           {"steps", "run.steps"},
           {"learning_rate", "optimizer.params.lr"},
           {"contiguous_gradients", "zero_optimization.contiguous_gradients"}})
    EXPECT_EQ(refusal({{key, 1}}),
              fmt::format("{} is not a known key at the top: write {}", key, ours));
}

TEST(SectionKeys, CompressionIsSearchedToItsGround) {
  const Json off = Json::parse(
      R"({"weight_quantization": {"shared_parameters": {"enabled": false, "rounding": "nearest"}}})");
  EXPECT_EQ(refusal({{"compression_training", off}}), "");
  Json on = off;
  on["weight_quantization"]["shared_parameters"]["enabled"] = true;
  EXPECT_EQ(refusal({{"compression_training", on}}),
            "compression_training is on: there is no pruning and no quantization");
}

TEST(Offload, WithoutADeviceChangesNothing) {
  for (const std::string key : {"offload_optimizer", "offload_param"}) {
    for (const char* passes : {"{}", R"({"device": "none"})", R"({"pin_memory": true})"}) {
      const Json keys = one_key("zero_optimization", key, Json::parse(passes));
      EXPECT_EQ(refusal(keys), "") << passes;
      EXPECT_TRUE(is_noted(read_keys(keys), "zero_optimization." + key));
    }
    EXPECT_TRUE(contains(refusal(one_key("zero_optimization", key, {{"device", "gpu"}})),
                         "device must be one of none, cpu, nvme"));
    EXPECT_TRUE(contains(refusal(one_key("zero_optimization", key, "cpu")), "must be an object"));
  }
}

TEST(Offload, DevicesAreTiers) {
  const auto read = [](const char* text) {
    return read_keys({{"zero_optimization", Json::parse(text)}}).offload;
  };
  const OffloadOptions none = read("{}");
  EXPECT_FALSE(none.any());
  const OffloadOptions host = read(R"({"offload_optimizer": {"device": "cpu", "ratio": 0.3}})");
  EXPECT_EQ(host.optimizer, Tier::host);
  EXPECT_EQ(host.optimizer_ratio, 0.3);
  EXPECT_EQ(host.parameters, Tier::device);
  const OffloadOptions disk = read(R"({"offload_optimizer": {"device": "nvme", "nvme_path": "/d"},
      "offload_param": {"device": "nvme", "nvme_path": "/d", "max_in_cpu": 5}})");
  EXPECT_EQ(disk.optimizer, Tier::disk);
  EXPECT_EQ(disk.parameters, Tier::disk);
  EXPECT_EQ(disk.folder, "/d");
  EXPECT_EQ(disk.host_parameter_elems, 5);
  const OffloadOptions kept =
      read(R"({"offload_activations": {"device": "nvme", "nvme_path": "/d"}})");
  EXPECT_EQ(kept.activations, Tier::disk);
  EXPECT_EQ(kept.folder, "/d");
  EXPECT_EQ(kept.host_parameter_elems, 0);
  EXPECT_EQ(
      read_keys({{"activation_checkpointing", {{"cpu_checkpointing", true}}}}).offload.activations,
      Tier::host);
  EXPECT_ERROR(read_keys({{"activation_checkpointing", {{"cpu_checkpointing", true}}},
                          {"zero_optimization",
                           {{"offload_activations", {{"device", "nvme"}, {"nvme_path", "/d"}}}}}}),
               "offload_activations says nvme", "cpu_checkpointing the host: keep one");
  EXPECT_EQ(read(R"({"cpu_offload": true})").optimizer, Tier::host);
  EXPECT_EQ(read(R"({"cpu_offload_params": true})").parameters, Tier::host);
}

TEST(Offload, WhatCannotBeIsRefused) {
  const auto said = [](const char* text) {
    return refusal({{"zero_optimization", Json::parse(text)}});
  };
  EXPECT_TRUE(contains(said(R"({"offload_param": {"device": "nvme"}})"),
                       "zero_optimization.offload_param.nvme_path is missing"));
  EXPECT_TRUE(contains(said(R"({"offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
                                "offload_param": {"device": "nvme", "nvme_path": "/b"}})"),
                       "one folder serves all"));
  EXPECT_TRUE(contains(said(R"({"offload_activations": {"device": "nvme"}})"),
                       "zero_optimization.offload_activations.nvme_path is missing"));
  EXPECT_TRUE(contains(said(R"({"offload_optimizer": {"device": "cpu", "ratio": 1.5}})"),
                       "ratio must be from 0 to 1"));
  EXPECT_TRUE(contains(said(R"({"offload_optimizer": {"device": "cpu", "super_offload": true}})"),
                       "super_offload is true"));
  EXPECT_TRUE(contains(said(R"({"cpu_offload": true,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}})"),
                       "keep one"));
}

TEST(Offload, TheOtherKeysAreNoted) {
  for (const char* key : {"buffer_count", "pin_memory", "pipeline_read", "fast_init"}) {
    const Json section = {{"device", "cpu"}, {key, 1}};
    EXPECT_TRUE(is_noted(read_keys(one_key("zero_optimization", "offload_optimizer", section)),
                         fmt::format("zero_optimization.offload_optimizer.{}", key)));
  }
}

// A run that has a disk, with this section.
Json with_disk(const Json& aio) {
  return {{"aio", aio},
          {"zero_optimization", {{"offload_param", {{"device", "nvme"}, {"nvme_path", "/d"}}}}}};
}

TEST(Aio, SaysHowTheDisksCallsAreCut) {
  const Config config = read_keys(with_disk(
      {{"block_size", 262144}, {"queue_depth", 32}, {"thread_count", 2}, {"use_gds", false}}));
  EXPECT_EQ(config.offload.requests.bytes, 262144);
  EXPECT_EQ(config.offload.requests.depth, 32);
  EXPECT_EQ(config.effective().at("aio"), Json({{"block_size", 262144}, {"queue_depth", 32}}));
  EXPECT_FALSE(is_noted(config, "aio"));
  EXPECT_FALSE(is_noted(config, "aio.block_size"));
  EXPECT_TRUE(is_noted(config, "aio.thread_count"));
  EXPECT_TRUE(is_noted(config, "aio.use_gds"));
  EXPECT_EQ(read_keys(with_disk({{"block_size", "auto"}})).offload.requests.bytes, 1 << 20);

  const Config without = read_keys({{"aio", {{"block_size", 262144}}}});
  EXPECT_TRUE(is_noted(without, "aio"));
  EXPECT_FALSE(without.effective().contains("aio"));
}

TEST(Aio, WhatCannotBeIsRefused) {
  const auto said = [](const Json& aio) { return refusal(with_disk(aio)); };
  EXPECT_TRUE(contains(said({{"block_size", 1000}}), "aio.block_size must be at least 4096"));
  EXPECT_TRUE(contains(said({{"block_size", 5000}}),
                       "aio.block_size is 5000: it must be a multiple of 4096, up to 1.00 GiB"));
  EXPECT_TRUE(contains(said({{"queue_depth", 0}}), "aio.queue_depth must be at least 1"));
  EXPECT_TRUE(contains(said({{"queue_depth", 5000}}),
                       "aio.queue_depth is 5000: at most 4096 requests are under way"));
  EXPECT_TRUE(contains(said({{"use_gds", true}}), "bytes pass through the host's memory"));
  EXPECT_TRUE(contains(said({{"blocks", 1}}), "aio.blocks"));
}

TEST(Comments, AreKeysThatBeginAsSuch) {
  for (const char* key : {"_read_this", "comment", "// why"}) {
    EXPECT_TRUE(is_noted(read_keys({{key, "words"}}), key));
    EXPECT_TRUE(contains(refusal({{key, 3}}), "is not a known key")) << key;
  }
  EXPECT_TRUE(contains(refusal(one_key("zero_optimization", "_note", "words")), "not a known key"));
}

TEST(ComputeGradNorm, MayBeLeftOutWhereNothingNeedsIt) {
  const auto said = [](int stage, double clipping) {
    Json keys = one_key("zero_optimization", "compute_grad_norm", false, stage);
    keys["gradient_clipping"] = clipping;
    return refusal(keys);
  };
  EXPECT_EQ(said(2, 0), "");
  EXPECT_TRUE(contains(said(3, 0), "compute_grad_norm can be false at stages 1 and 2 only"));
  EXPECT_TRUE(contains(said(1, 1), "gradient_clipping is 1 and needs the norm"));
}

TEST(ZeroKeys, OfAnotherStageAreNotedAndChangeNothing) {
  const Json plain = read_keys(staged(2)).effective();
  for (const std::string name : {"prefetch_bucket_size", "max_live_parameters",
                                 "max_reuse_distance", "param_persistence_threshold"})
    for (const std::string& key : {name, "stage3_" + name}) {
      const Config c = read_keys(one_key("zero_optimization", key, 7));
      EXPECT_EQ(c.effective(), plain) << key;
      EXPECT_TRUE(is_noted(c, "zero_optimization." + key)) << key;
      EXPECT_TRUE(contains(refusal(one_key("zero_optimization", key, "x")), key)) << key;
    }
  EXPECT_TRUE(is_noted(read_keys(one_key("zero_optimization", "allgather_bucket_size", 7, 0)),
                       "zero_optimization.allgather_bucket_size"));
  const Config serial = read_keys(Json::parse(R"({"zero_optimization": {"stage": 3,
      "overlap_comm": false, "stage3_prefetch_bucket_size": 1}})"));
  EXPECT_TRUE(is_noted(serial, "zero_optimization.stage3_prefetch_bucket_size"));
}

TEST(ZeroKeys, TheStageIsANumberOrOfOldABoolean) {
  for (const char* stage : {"4", "4294967296", "4294967299", "1e15"})
    EXPECT_TRUE(contains(refusal(staged(Json::parse(stage))),
                         "zero_optimization.stage must be 0, 1, 2 or 3"));
  EXPECT_TRUE(contains(refusal(staged(Json::parse("[1, 2]"))),
                       "zero_optimization.stage must be an integer"));
  EXPECT_EQ(read_keys({{"zero_optimization", true}, {"allgather_size", 5}}).zero.stage, 1);
  EXPECT_EQ(read_keys({{"zero_optimization", false}}).zero.stage, 0);
}

}  // namespace
}  // namespace onefold

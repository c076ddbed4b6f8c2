// "compression" and ZeRO++'s keys, each by its effect.
#include <gtest/gtest.h>

#include "base/file.h"
#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

using Type = WireFormat::Type;

Config compressed(const Json& section, const Json& rest = Json::object(), int64_t ranks = 4) {
  Json root = {{"model", {{"preset", "gpt2-tiny"}, {"vocab_size", 101}}},
               {"train_micro_batch_size_per_gpu", 2},
               {"compression", section}};
  root.update(rest);
  const Config config = Config::from_json(root, ranks);
  // What is in force reads back to itself.
  EXPECT_EQ(Config::from_json(config.effective(), ranks).effective(), config.effective());
  return config;
}

TEST(CompressionKeys, WithoutThemNothingIsCompressed) {
  const Config config = compressed(Json::object());
  EXPECT_FALSE(config.compression.any());
  EXPECT_FALSE(config.effective().contains("compression"));
  EXPECT_FALSE(compressed({{"gradients", "none"}, {"weights", "none"}}).compression.any());
}

TEST(CompressionKeys, EveryFormatHasItsName) {
  for (const std::string& name : wire_names()) {
    Json section = {{"gradients", name}};
    if (name == "threshold") section["threshold"] = 0.5;
    EXPECT_EQ(compressed(section).compression.gradients.type, wire_type(name)) << name;
  }
  EXPECT_ERROR(compressed({{"gradients", "int7"}}), "compression.gradients must be one of");
}

TEST(CompressionKeys, HostsAreRanksThatDivideAll) {
  const Json hosts = {{"gradients", "int8"}, {"ranks_per_host", 2}};
  EXPECT_EQ(engine_options(compressed(hosts)).compression.host_ranks, 2);
  EXPECT_EQ(compressed({{"gradients", "int8"}}).compression.host_ranks, 1);
  EXPECT_ERROR(compressed(hosts, Json::object(), 3), "compression.ranks_per_host is 2",
               "there are 3 ranks: it must divide their number");
  EXPECT_ERROR(compressed(hosts, Json::object(), 2), "there are 2 ranks", "and be less");
  EXPECT_ERROR(compressed({{"weights", "int8"}, {"ranks_per_host", 2}},
                          {{"zero_optimization", {{"stage", 3}}}}),
               "compression.ranks_per_host has no effect");
  EXPECT_ERROR(compressed(hosts, {{"mesh", {{"pipeline", 2}}}}), "compression.ranks_per_host is 2",
               "of the 2 ranks of each stage");
  EXPECT_EQ(compressed(hosts, {{"mesh", {{"pipeline", 2}}}}, 8).compression.host_ranks, 2);
  EXPECT_ERROR(compressed({{"gradients", "topk"},
                           {"momentum_correction", true},
                           {"local_clipping", 1},
                           {"ranks_per_host", 2}},
                          {{"optimizer", {{"type", "SGD"}, {"params", {{"momentum", 0.9}}}}}}),
               "compression.ranks_per_host does not go with local_clipping");
}

TEST(CompressionKeys, HaveTheirEffects) {
  const Config config = compressed({{"gradients", "int8"},
                                    {"block_size", 64},
                                    {"rounding", "stochastic"},
                                    {"error_feedback", false},
                                    {"warmup_steps", 9}});
  const CompressionOptions options = engine_options(config).compression;
  EXPECT_EQ(options.gradients, (WireFormat{.type = Type::int8, .block = 64, .stochastic = true}));
  EXPECT_FALSE(options.feedback);
  EXPECT_EQ(options.whole_steps, 9);
  const CompressionOptions sparse = compressed({{"gradients", "threshold"},
                                                {"density", 0.25},
                                                {"threshold", 0.125},
                                                {"density_warmup_steps", 40},
                                                {"adaptive", true}})
                                        .compression;
  EXPECT_EQ(sparse.gradients.density, 0.25);
  EXPECT_EQ(sparse.gradients.least, 0.125);
  EXPECT_EQ(sparse.density_steps, 40);
  EXPECT_TRUE(sparse.adaptive);
  EXPECT_FALSE(compressed({{"gradients", "rows"}}).compression.adaptive);
  EXPECT_EQ(compressed({{"gradients", "rows"}}).compression.gradients.type, Type::rows);
  EXPECT_EQ(compressed({{"gradients", "importance"}}).compression.gradients.type, Type::importance);
  EXPECT_TRUE(sparse.feedback);
}

TEST(CompressionKeys, RefuseWhatHasNoEffect) {
  EXPECT_ERROR(compressed({{"gradients", "int8"}, {"density", 0.1}}),
               "compression.density has no effect");
  EXPECT_ERROR(compressed({{"gradients", "topk"}, {"block_size", 8}}),
               "compression.block_size has no effect");
  EXPECT_ERROR(compressed({{"gradients", "1bit"}, {"rounding", "nearest"}}),
               "compression.rounding has no effect");
  EXPECT_ERROR(compressed({{"error_feedback", true}}), "gradients are not compressed");
  EXPECT_ERROR(compressed({{"gradients", "topk"}, {"threshold", 1}}),
               "compression.threshold has no effect");
  EXPECT_ERROR(compressed({{"gradients", "threshold"}}), "compression.threshold is missing");
  EXPECT_ERROR(compressed({{"gradients", "topk"}, {"density", 2}}), "must be at most 1");
  EXPECT_ERROR(compressed({{"gradients", "topk"}, {"local_clipping", 1}}),
               "belongs to momentum_correction");
  EXPECT_ERROR(compressed({{"gradients", "int8"}, {"density_warmup_steps", 1}}),
               "it is for sparse formats");
  EXPECT_ERROR(compressed({{"gradients", "int8"}, {"adaptive", true}}), "it is for sparse formats");
  EXPECT_ERROR(compressed({{"gradients", "rows"}, {"block_size", 8}}),
               "compression.block_size has no effect");
  EXPECT_ERROR(compressed({{"gradient", "int8"}}), "gradient", "did you mean \"gradients\"");
}

TEST(CompressionKeys, MomentumIsTakenBeforeTheSum) {
  const Json sgd = {{"optimizer", {{"type", "SGD"}, {"params", {{"momentum", 0.9}}}}}};
  const Json section = {{"gradients", "topk"},
                        {"momentum_correction", true},
                        {"momentum_masking", false},
                        {"local_clipping", 0.5}};
  const EngineOptions options = engine_options(compressed(section, sgd));
  EXPECT_EQ(options.optimizer.momentum, 0);
  EXPECT_FLOAT_EQ(options.compression.correction.momentum, 0.9f);
  EXPECT_FLOAT_EQ(options.compression.correction.limit, 0.5f);
  EXPECT_FALSE(options.compression.correction.masks);
  EXPECT_ERROR(compressed(section), "AdamW and LAMB need optimizer.params.freeze_step");
  EXPECT_ERROR(compressed(section, {{"optimizer", {{"type", "Lion"}}}}),
               "the optimizer must be SGD with momentum");
  EXPECT_ERROR(compressed({{"momentum_correction", true}}, sgd), "gradients must be compressed");
  EXPECT_ERROR(
      compressed({{"gradients", "int8"}, {"momentum_correction", true}, {"momentum_masking", true}},
                 sgd),
      "compression.momentum_masking is of what was sent");
}

TEST(CompressionKeys, WeightsAreOfStageThree) {
  const Json third = {{"zero_optimization", {{"stage", 3}}}};
  EXPECT_EQ(compressed({{"weights", "int4"}}, third).compression.weights.type, Type::int4);
  EXPECT_ERROR(compressed({{"weights", "int8"}}), "compression.weights has an effect at stage 3");
  EXPECT_ERROR(compressed({{"weights", "topk"}}, third), "compression.weights must be one of");
  Json half = third;
  half["bf16"] = {{"enabled", true}};
  EXPECT_ERROR(compressed({{"weights", "bf16"}}, half), "parameters have 16 bits already");
}

TEST(CompressionKeys, ZeroPlusPlusMeansTheSame) {
  const auto zero = [](const Json& keys, int stage = 3) {
    Json section = {{"stage", stage}};
    section.update(keys);
    return Json{{"zero_optimization", section}};
  };
  const Config config = compressed(
      Json::object(), zero({{"zero_quantized_weights", true}, {"zero_quantized_gradients", true}}));
  EXPECT_EQ(config.compression.weights.type, Type::int8);
  EXPECT_EQ(config.compression.gradients.type, Type::int4);
  EXPECT_FALSE(config.compression.feedback);
  EXPECT_FALSE(
      compressed(Json::object(), zero({{"zero_quantized_weights", false}}, 1)).compression.any());
  EXPECT_ERROR(compressed(Json::object(), zero({{"zero_quantized_gradients", true}}, 2)),
               "zero_optimization.zero_quantized_gradients is true: ZeRO++ is of stage 3");
  EXPECT_ERROR(compressed({{"weights", "int4"}}, zero({{"zero_quantized_weights", true}})),
               "asks for int8: keep one");
}

TEST(CompressionKeys, RefuseWhatDoesNotCombine) {
  const Json card = {{"run", {{"device", "cuda"}}}};
  for (const char* name : {"rows", "importance"})
    EXPECT_ERROR(compressed({{"gradients", name}}, card),
                 fmt::format("compression.gradients is {}, which is made by the processor alone, "
                             "and run.device is cuda",
                             name));
  EXPECT_ERROR(compressed({{"gradients", "int8"}, {"block_size", 12}}, card),
               "compression.gradients is int8, which needs a block_size that is a multiple of 8");
  for (const char* name : {"bf16", "int8", "int4", "1bit", "topk", "randomk", "blocks"})
    EXPECT_EQ(error_text([&] { compressed({{"gradients", name}}, card); }), "") << name;
  Json divided = card;
  divided["mesh"] = {{"tensor", 3}};
  EXPECT_ERROR(compressed({{"gradients", "int8"}}, divided, 6), "what several ranks hold alike",
               "and run.device is cuda");
  EXPECT_ERROR(
      compressed({{"gradients", "topk"}, {"momentum_correction", true}, {"local_clipping", 1}},
                 {{"mesh", {{"tensor", 3}}},
                  {"optimizer", {{"type", "SGD"}, {"params", {{"momentum", 0.9}}}}}},
                 6),
      "compression does not go with this mesh", "local_clipping");
}

TEST(CompressionKeys, GoWithEveryAxisAlongWhichGradientsAreNotSummed) {
  for (const Json& mesh : {Json{{"tensor", 3}}, Json{{"pipeline", 2}}, Json{{"context", 3}}})
    EXPECT_TRUE(compressed({{"gradients", "int8"}},
                           {{"mesh", mesh}, {"data", {{"sequence_length", 12}}}}, 6)
                    .compression.any());
  // Nothing is summed where ranks divide all of a model, and all is where they divide sequences.
  EXPECT_FALSE(
      compressed({{"gradients", "int8"}}, {{"mesh", {{"tensor", 3}}}}, 3).compression.any());
  EXPECT_TRUE(compressed({{"gradients", "int8"}},
                         {{"mesh", {{"context", 3}}}, {"data", {{"sequence_length", 12}}}}, 3)
                  .compression.any());
}

// What is kept follows the loss scale: test CompressionLossScale.
TEST(CompressionKeys, GoWithTheLossScaleOfFp16) {
  const Config config = compressed({{"gradients", "int8"}}, {{"fp16", {{"enabled", true}}}});
  EXPECT_TRUE(config.compression.feedback);
  EXPECT_TRUE(config.loss_scale.dynamic());
}

TEST(CompressionKeys, ChangeNothingOnOneRank) {
  const Config config = compressed({{"gradients", "int8"}}, Json::object(), 1);
  EXPECT_FALSE(config.compression.any());
  EXPECT_NE(std::find(config.notes.idle.begin(), config.notes.idle.end(), "compression"),
            config.notes.idle.end());
}

TEST(CompressionKeys, AreDocumented) {
  const std::string docs = read_file(std::string(ONEFOLD_SOURCE_DIR) + "/docs/config.md");
  const Json sgd = {{"optimizer", {{"type", "SGD"}, {"params", {{"momentum", 0.9}}}}},
                    {"zero_optimization", {{"stage", 3}}}};
  for (const Json& section : {Json{{"gradients", "threshold"},
                                   {"threshold", 1},
                                   {"momentum_correction", true},
                                   {"adaptive", true}},
                              Json{{"gradients", "int8"}, {"weights", "int8"}}}) {
    const Json all = compressed(section, sgd).effective();
    for (const auto& [key, value] : all["compression"].items())
      EXPECT_NE(docs.find("`compression." + key + "`"), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace onefold

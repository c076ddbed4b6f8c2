// Which keys the search may choose, and how its choice is written.
#include "config/layout_keys.h"

#include <gtest/gtest.h>

#include "error_text.h"

namespace onefold {
namespace {

Json document(const char* more) {
  Json root = Json::parse(R"({"model": {"preset": "gpt2-tiny", "vocab_size": 101},
                              "train_batch_size": 8, "data": {"sequence_length": 16}})");
  root.update(Json::parse(more));
  return root;
}

TEST(LayoutKeys, WhatIsMissingOrAutoIsOpen) {
  EXPECT_EQ(left_open(document("{}")), Freedom::all());
  const Freedom some = left_open(document(R"({"zero_optimization": {
      "stage": 2, "overlap_comm": "auto", "offload_optimizer": {"device": "cpu"},
      "offload_param": {"pin_memory": true}},
      "gradient_accumulation_steps": 2, "run": {"recompute": false, "accumulate": "auto"}})"));
  Freedom expected = Freedom::all();
  expected.stage = expected.optimizer_home = expected.batch = expected.recompute = false;
  EXPECT_EQ(some, expected);
  EXPECT_FALSE(
      left_open(document(R"({"zero_optimization": {"cpu_offload": true}})")).optimizer_home);
  EXPECT_FALSE(left_open(document(R"({"zero_optimization": true})")).stage);
}

TEST(LayoutKeys, OnlyAutoAsksForTheSearch) {
  EXPECT_EQ(asked_for(document("{}")), Freedom{});
  // These have meanings of their own.
  EXPECT_EQ(asked_for(document(R"({"run": {"recompute": "auto"},
      "zero_optimization": {"stage3_prefetch_bucket_size": "auto", "reduce_bucket_size": "auto"},
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})")),
            Freedom{});
  const Freedom asked = asked_for(document(R"({"zero_optimization": {"stage": "auto",
      "offload_optimizer": {"device": "auto", "ratio": 0.5}}, "run": {"recompute": "auto"}})"));
  EXPECT_EQ(asked,
            (Freedom{.stage = true, .optimizer_home = true, .recompute = true, .host_step = true}));
  EXPECT_TRUE(asked_for(document(R"({"train_micro_batch_size_per_gpu": "auto",
                                     "gradient_accumulation_steps": "auto"})"))
                  .batch);
}

TEST(LayoutKeys, AxesThatAreAutoAreFreeAndTheRestStays) {
  EXPECT_EQ(left_open(document("{}")).mesh, FreeAxes::all());
  EXPECT_EQ(left_open(document(R"({"mesh": {"tensor": 2}})")).mesh, FreeAxes{});
  EXPECT_EQ(left_open(document(R"({"mesh": {"tensor": 2, "pipeline": "auto"}})")).mesh,
            (FreeAxes{.pipeline = true}));
  EXPECT_EQ(left_open(document(R"({"tensor_parallel": {"autotp_size": 2}})")).mesh,
            (FreeAxes{.pipeline = true, .context = true, .expert = true}));
  // What must stay is not said.
  EXPECT_EQ(left_open(document(R"({"train_batch_size": "auto"})")).mesh, FreeAxes{});
  EXPECT_EQ(asked_for(document("{}")).mesh, FreeAxes{});
  const Freedom asked = asked_for(document(R"({"mesh": "auto", "pipeline": {"schedule": "gpipe"},
                                               "gradient_accumulation_steps": 2})"));
  EXPECT_EQ(asked.mesh, FreeAxes::all());
  EXPECT_FALSE(asked.schedule);
  EXPECT_TRUE(asked.interleave);
  EXPECT_FALSE(asked.batch);
  EXPECT_TRUE(asked_for(document(R"({"mesh": {"tensor": "auto"}})")).batch);
}

TEST(LayoutKeys, AMeshIsReadAsItWasWritten) {
  const auto divisible = [](const char* more) {
    Json root = document(more);
    root["model"].update({{"num_heads", 4}, {"hidden_size", 32}});
    return root;
  };
  EngineOptions layout = engine_options(Config::from_json(divisible("{}"), 8));
  layout.tensor = 2;
  layout.sequence_parallel = true;
  layout.pipeline = {.ranks = 2, .schedule = PipelineSchedule::gpipe};
  layout.micro_batch = 2;
  layout.micros = 2;
  layout.recompute = false;
  for (const char* mesh : {R"({"mesh": "auto"})", R"({})",
                           R"({"mesh": {"data": "auto", "tensor": "auto", "pipeline": "auto"}})"}) {
    Json root = divisible(mesh);
    write_layout(root, layout, left_open(root));
    const Config read = Config::from_json(root, 8);
    EXPECT_EQ(layout_changes(layout, engine_options(read)), std::vector<std::string>{}) << mesh;
    EXPECT_EQ(read.mesh.data, 2);
  }
  // Data alone.
  layout.tensor = layout.pipeline.ranks = 1;
  Json root = divisible(R"({"mesh": "auto"})");
  write_layout(root, layout, left_open(root));
  EXPECT_EQ(Config::from_json(root, 2).mesh.data, 2);
}

TEST(LayoutKeys, AMeshIsNotFoundWithoutTheBatchThatMustStay) {
  for (const char* key : {"mesh", "mesh.tensor"})
    EXPECT_ERROR(Config::from_json(document(std::string_view(key) == "mesh"
                                                ? R"({"mesh": "auto", "train_batch_size": null})"
                                                : R"({"mesh": {"tensor": "auto"},
                                                      "train_batch_size": null})"),
                                   2),
                 key, "the global batch would follow from it; set train_batch_size");
}

TEST(LayoutKeys, ALayoutIsReadAsItWasWritten) {
  EngineOptions layout = engine_options(Config::from_json(document("{}"), 2));
  layout.zero.stage = 3;
  layout.zero.overlap = true;
  layout.zero.prefetch_elems = 12345;
  layout.zero.reduce_bucket_elems = 4'000'000;
  layout.offload.optimizer = Tier::disk;
  layout.offload.optimizer_ratio = 0.75;
  layout.offload.parameters = Tier::host;
  layout.recompute = Recompute(0, 1);
  layout.micro_batch = 1;
  layout.micros = 4;
  layout.order = Order::unit_first;
  Json root = document(R"({"zero_optimization": {"stage": "auto", "offload_optimizer":
                           {"device": "auto", "nvme_path": "state"}}})");
  write_layout(root, layout, Freedom::all());
  const EngineOptions read = engine_options(Config::from_json(root, 2));
  EXPECT_EQ(layout_changes(layout, read), std::vector<std::string>{});
  layout.offload.optimizer = Tier::host;
  layout.offload.host_step_ratio = 0.6;
  write_layout(root, layout, Freedom::all());
  EXPECT_EQ(layout_changes(layout, engine_options(Config::from_json(root, 2))),
            std::vector<std::string>{});
  EXPECT_EQ(read.offload.folder, "state");
  EXPECT_EQ(read.micros, 4);
  EXPECT_EQ(read.order, Order::unit_first);
  // And back to the device, where nothing else is free.
  layout.offload = {};
  write_layout(root, layout, {.optimizer_home = true, .parameter_home = true});
  EXPECT_FALSE(Config::from_json(root, 2).offload.any());
}

}  // namespace
}  // namespace onefold

// "mesh" and DeepSpeed's tensor_parallel.autotp_size and expert_parallel.autoep_size.
#include <gtest/gtest.h>

#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

Json base() {
  return {{"model", {{"preset", "qwen3-tiny"}, {"vocab_size", 101}}},
          {"train_micro_batch_size_per_gpu", 2}};
}

Config config_with(const Json& change, int64_t ranks) {
  Json root = base();
  root.update(change);
  return Config::from_json(root, ranks);
}

TEST(MeshKey, WithoutItAllRanksAreTheDataAxis) {
  const Config config = config_with(Json::object(), 6);
  EXPECT_EQ(config.mesh.data, 6);
  EXPECT_EQ(config.mesh.tensor, 1);
  EXPECT_EQ(config.batch.global, 12);
  EXPECT_FALSE(config.effective().contains("mesh"));
}

TEST(MeshKey, EitherAxisIsInferred) {
  for (const Json& mesh : {Json{{"tensor", 2}}, Json{{"data", 3}}, Json{{"data", 3}, {"tensor", 2}},
                           Json{{"tensor", 2}, {"pipeline", 1}, {"context", 1}, {"expert", 1}}}) {
    const Config config = config_with({{"mesh", mesh}}, 6);
    EXPECT_EQ(config.mesh.data, 3) << mesh;
    EXPECT_EQ(config.mesh.tensor, 2) << mesh;
    EXPECT_EQ(config.batch.global, 6) << "of ranks along the data axis";
    EXPECT_EQ(engine_options(config).tensor, 2);
    EXPECT_EQ(Config::from_json(config.effective(), 6).effective(), config.effective());
  }
}

TEST(MeshKey, DeepSpeedsNameIsTheTensorAxis) {
  const Config config =
      config_with({{"tensor_parallel", {{"autotp_size", 2}, {"tp_overlap_comm", true}}}}, 4);
  EXPECT_EQ(config.mesh.tensor, 2);
  EXPECT_EQ(config.mesh.data, 2);
  for (const int64_t none : {0, 1})
    EXPECT_EQ(config_with({{"tensor_parallel", {{"autotp_size", none}}}}, 4).mesh.tensor, 1);
  EXPECT_ERROR(
      config_with({{"tensor_parallel", {{"autotp_size", 2}}}, {"mesh", {{"tensor", 4}}}}, 4),
      "tensor_parallel.autotp_size", "is 2, and mesh.tensor is 4");
  EXPECT_ERROR(config_with({{"tensor_parallel", {{"autotp_sise", 2}}}}, 4), "autotp_sise");
}

TEST(ContextKey, DividesSequencesAndLeavesTheBatch) {
  for (const Json& change :
       {Json{{"mesh", {{"context", 2}}}}, Json{{"sequence_parallel_size", 2}},
        Json{{"mesh", {{"data", 2}, {"context", 2}}}},
        Json{{"mesh", {{"context", 2}}}, {"sequence_parallel_size", 2}},
        Json{{"mesh", {{"context", 2}}}, {"context", {{"method", "auto"}}}},
        Json{{"mesh", {{"context", 2}}}, {"context", {{"method", "ulysses"}}}}}) {
    Json with_data = change;
    with_data["data"] = {{"sequence_length", 64}};
    const Config config = config_with(with_data, 4);
    EXPECT_EQ(config.mesh.context, 2) << change;
    EXPECT_EQ(config.mesh.data, 2) << change;
    EXPECT_EQ(config.batch.global, 4) << "of ranks along the data axis";
    EXPECT_EQ(engine_options(config).context, 2);
    EXPECT_EQ(config.effective()["context"], (Json{{"method", "ulysses"}}));
    EXPECT_EQ(Config::from_json(config.effective(), 4).effective(), config.effective());
  }
  const Config all = config_with({{"mesh", {{"data", 1}, {"tensor", 1}, {"pipeline", 1}}},
                                  {"data", {{"sequence_length", 64}}}},
                                 4);
  EXPECT_EQ(all.mesh.context, 4);
  EXPECT_EQ(config_with({{"sequence_parallel_size", 1}}, 4).mesh.context, 1);
}

// Heads are exchanged where they can be divided, and else keys go around.
TEST(ContextKey, AutoIsARingWhereHeadsDoNotDivide) {
  const Json data = {{"sequence_length", 48}};
  const Config ring = config_with({{"mesh", {{"context", 3}}}, {"data", data}}, 3);
  EXPECT_EQ(ring.context_method, "ring");
  EXPECT_EQ(engine_options(ring).context_method, ContextMethod::ring);
  EXPECT_EQ(ring.effective()["context"], (Json{{"method", "ring"}}));
  EXPECT_EQ(Config::from_json(ring.effective(), 3).effective(), ring.effective());
  const Config told = config_with(
      {{"mesh", {{"context", 2}}}, {"context", {{"method", "ring"}}}, {"data", data}}, 2);
  EXPECT_EQ(engine_options(told).context_method, ContextMethod::ring);
}

TEST(ContextKey, WhatCannotBeIsRefused) {
  EXPECT_ERROR(config_with({{"mesh", {{"context", 2}}}, {"context", {{"method", "star"}}}}, 2),
               "context.method", "star", "ulysses", "ring");
  EXPECT_ERROR(config_with({{"context", {{"methods", "ulysses"}}}}, 2), "methods", "method");
  EXPECT_ERROR(config_with({{"mesh", {{"context", 4}}}, {"sequence_parallel_size", 2}}, 4),
               "sequence_parallel_size is 2, and mesh.context is 4");
  EXPECT_ERROR(config_with({{"mesh", {{"context", 3}}}, {"context", {{"method", "ulysses"}}}}, 3),
               "mesh.context is 3, and sequences cannot be divided so",
               "heads cannot be divided by 3", "(data.sequence_length) cannot be divided by 3");
  EXPECT_ERROR(config_with({{"mesh", {{"context", 3}}}, {"context", {{"method", "ring"}}}}, 3),
               "cannot be divided by 6, two runs for each rank (context.method ring)");
  EXPECT_EQ(config_with({{"mesh", {{"context", 2}}},
                         {"data", {{"sequence_length", 64}}},
                         {"run", {{"device", "cuda"}}}},
                        2)
                .mesh.context,
            2);
  EXPECT_ERROR(config_with({{"mesh", {{"context", 3}}}}, 4),
               "mesh.context is 3, and 4 rank(s) cannot be divided by it");
}

TEST(ContextKey, WithoutTheAxisItIsOfNoConsequence) {
  const Config config = config_with({{"context", {{"method", "ulysses"}}}}, 2);
  EXPECT_EQ(config.notes.idle, std::vector<std::string>{"context"});
  EXPECT_FALSE(config.effective().contains("context"));
}

Config experts_with(const Json& change, int64_t ranks) {
  Json root = change;
  root["model"] = {
      {"preset", "mixtral-tiny"}, {"vocab_size", 101}, {"experts", {{"num_experts", 4}}}};
  return config_with(root, ranks);
}

TEST(MeshKey, RanksThatDivideExpertsHaveSequencesOfTheirOwn) {
  for (const Json& change :
       {Json{{"mesh", {{"expert", 2}}}},
        Json{{"mesh", {{"data", 3}, {"tensor", 1}, {"pipeline", 1}, {"context", 1}}}},
        Json{{"expert_parallel",
              {{"enabled", true}, {"autoep_size", 2}, {"use_grouped_mm", true}}}}}) {
    const Config config = experts_with(change, 6);
    EXPECT_EQ(config.mesh.data, 3) << change;
    EXPECT_EQ(config.mesh.expert, 2) << change;
    EXPECT_EQ(config.batch.global, 12) << "of ranks along both axes";
    EXPECT_EQ(engine_options(config).expert, 2);
    EXPECT_EQ(Config::from_json(config.effective(), 6).effective(), config.effective());
  }
  EXPECT_EQ(mesh_ranks({{"mesh", {{"data", 2}, {"expert", 3}}}}), 6);
}

TEST(MeshKey, DeepSpeedsSectionOfExpertsIsUnderstood) {
  for (const Json& off :
       {Json{{"enabled", false}, {"autoep_size", 2}, {"top_k", 3}}, Json(false), Json::object()})
    EXPECT_EQ(experts_with({{"expert_parallel", off}}, 4).mesh.expert, 1) << off;
  EXPECT_ERROR(experts_with({{"expert_parallel", {{"enabled", true}, {"autoep_size", 2}}},
                             {"mesh", {{"expert", 4}}}},
                            4),
               "expert_parallel.autoep_size is 2, and mesh.expert is 4");
  EXPECT_ERROR(
      experts_with({{"expert_parallel",
                     {{"enabled", true},
                      {"autoep_size", 2},
                      {"top_k", 3},
                      {"expert_tensor_parallel_size", 2}}}},
                   4),
      "expert_parallel.top_k is 3: model.experts says how a router chooses",
      "expert_parallel.expert_tensor_parallel_size is 2: experts are divided by mesh.tensor");
  EXPECT_ERROR(experts_with({{"expert_parallel", {{"autoep_sise", 2}}}}, 4), "autoep_sise");
}

TEST(MeshKey, WhatPassesBetweenUnitsMayBeDividedToo) {
  const Config config = config_with({{"mesh", {{"tensor", 2}, {"sequence_parallel", true}}}}, 4);
  EXPECT_TRUE(engine_options(config).sequence_parallel);
  EXPECT_EQ(config.effective()["mesh"]["sequence_parallel"], true);
  EXPECT_FALSE(engine_options(config_with({{"mesh", {{"tensor", 2}}}}, 4)).sequence_parallel);
  EXPECT_ERROR(config_with({{"mesh", {{"sequence_parallel", true}}}}, 4),
               "mesh.sequence_parallel has no effect without mesh.tensor");
}

TEST(MeshKey, SumsMayTravelBesideComputation) {
  const Config config = config_with({{"mesh", {{"tensor", 2}, {"overlap_chunks", 4}}}}, 4);
  EXPECT_EQ(engine_options(config).overlap_chunks, 4);
  EXPECT_EQ(config.effective()["mesh"]["overlap_chunks"], 4);
  const Config plain = config_with({{"mesh", {{"tensor", 2}, {"overlap_chunks", 1}}}}, 4);
  EXPECT_EQ(engine_options(plain).overlap_chunks, 1);
  EXPECT_FALSE(plain.effective()["mesh"].contains("overlap_chunks"));
  EXPECT_ERROR(config_with({{"mesh", {{"overlap_chunks", 2}}}}, 4),
               "mesh.overlap_chunks has no effect without mesh.tensor");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 2}, {"overlap_chunks", 65}}}}, 4),
               "mesh.overlap_chunks is 65; the most is 64");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 2}, {"overlap_chunks", 0}}}}, 4),
               "mesh.overlap_chunks");
  EXPECT_ERROR(
      config_with({{"mesh", {{"tensor", 2}, {"overlap_chunks", 2}, {"sequence_parallel", true}}}},
                  4),
      "mesh.sequence_parallel sums where units end");
}

TEST(MeshKey, NodesMayKeepWhatWasGathered) {
  const auto with = [](int stage, const Json& size) {
    return config_with(
        {{"zero_optimization", {{"stage", stage}, {"zero_hpz_partition_size", size}}}}, 4);
  };
  EXPECT_EQ(engine_options(with(3, 2)).zero.node_ranks, 2);
  EXPECT_EQ(with(3, 2).effective()["zero_optimization"]["zero_hpz_partition_size"], 2);
  for (const int none : {0, 1}) EXPECT_EQ(engine_options(with(3, none)).zero.node_ranks, 1);
  EXPECT_EQ(engine_options(with(2, 2)).zero.node_ranks, 1) << "parameters are whole";
  EXPECT_ERROR(with(3, -1), "zero_optimization.zero_hpz_partition_size");
}

TEST(MeshKey, RowsOfExpertsMayBeBounded) {
  const Config config = experts_with({{"mesh", {{"expert", 2}, {"expert_bound", 1.5}}}}, 4);
  EXPECT_EQ(engine_options(config).expert_bound, 1.5);
  EXPECT_EQ(config.effective()["mesh"]["expert_bound"], 1.5);
  EXPECT_EQ(engine_options(experts_with({{"mesh", {{"expert", 2}}}}, 4)).expert_bound, 0);
  EXPECT_ERROR(experts_with({{"mesh", {{"expert", 2}, {"expert_bound", 0.5}}}}, 4),
               "mesh.expert_bound", "must be 0 or from 1 to 1e6, not 0.5");
  EXPECT_ERROR(experts_with({{"mesh", {{"expert_bound", 2}}}}, 4),
               "mesh.expert_bound has no effect without mesh.expert");
}

TEST(MeshKey, ExpertsThatCannotBeDividedAreRefused) {
  EXPECT_ERROR(config_with({{"mesh", {{"expert", 2}}}}, 4),
               "mesh.expert is 2, and the experts of the model cannot be divided so",
               "it has none (model.experts)");
  EXPECT_ERROR(experts_with({{"mesh", {{"expert", 3}}}}, 3), "there are 4 experts in each");
  EXPECT_ERROR(experts_with({{"mesh", {{"expert", 4}}}}, 6),
               "mesh.expert is 4, and 6 rank(s) cannot be divided by it", "--ranks 4");
}

TEST(MeshKey, AnAxisThatIsLeftOutFollowsFromTheOthers) {
  for (const Json& mesh :
       {Json{{"tensor", 2}, {"pipeline", 3}}, Json{{"data", 2}, {"pipeline", 3}},
        Json{{"data", 2}, {"tensor", 2}}, Json{{"data", 2}, {"tensor", 2}, {"pipeline", 3}}}) {
    const Config config = config_with({{"mesh", mesh}}, 12);
    EXPECT_EQ(config.mesh.data, 2) << mesh;
    EXPECT_EQ(config.mesh.tensor, 2) << mesh;
    EXPECT_EQ(config.mesh.pipeline, 3) << mesh;
    EXPECT_EQ(config.batch.global, 4) << "of ranks along the data axis";
    EXPECT_EQ(engine_options(config).pipeline.ranks, 3);
    EXPECT_EQ(Config::from_json(config.effective(), 12).effective(), config.effective());
  }
  EXPECT_EQ(mesh_ranks({{"mesh", {{"tensor", 2}, {"pipeline", 3}}}}), 6);
}

TEST(PipelineKey, SaysScheduleAndPartition) {
  Config config = config_with({{"mesh", {{"pipeline", 2}}}}, 4);
  EXPECT_EQ(config.mesh.data, 2);
  EXPECT_EQ(config.pipeline.schedule, PipelineSchedule::one_f_one_b);
  EXPECT_EQ(config.pipeline.by, PipelineOptions::By::flops);
  EXPECT_EQ(config.effective()["pipeline"],
            (Json{{"schedule", "1f1b"}, {"interleave", 1}, {"partition", "flops"}}));
  config = config_with({{"mesh", {{"pipeline", 2}}},
                        {"pipeline", {{"schedule", "gpipe"}, {"partition", "parameters"}}}},
                       2);
  EXPECT_EQ(config.pipeline.schedule, PipelineSchedule::gpipe);
  EXPECT_EQ(config.pipeline.by, PipelineOptions::By::parameters);
  EXPECT_EQ(
      config_with({{"pipeline", {{"stages", 2}, {"schedule", "zb-h1"}}}}, 2).pipeline.schedule,
      PipelineSchedule::zero_bubble);
  const int64_t units = 2 * config.model.num_layers + 2;
  config =
      config_with({{"mesh", {{"pipeline", 2}}}, {"pipeline", {{"partition", {1, units - 1}}}}}, 2);
  EXPECT_EQ(config.pipeline.units, (std::vector<int>{1, static_cast<int>(units) - 1}));
  config = config_with({{"mesh", {{"pipeline", 2}}},
                        {"pipeline", {{"interleave", 2}}},
                        {"gradient_accumulation_steps", 4}},
                       2);
  EXPECT_EQ(engine_options(config).pipeline.interleave, 2);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
}

TEST(PipelineKey, DeepSpeedsSectionIsUnderstood) {
  const Config config = config_with({{"pipeline",
                                      {{"stages", 2},
                                       {"partition", "best"},
                                       {"seed_layers", false},
                                       {"activation_checkpoint_interval", 0},
                                       {"pipe_partitioned", true},
                                       {"grad_partitioned", true}}}},
                                    4);
  EXPECT_EQ(config.mesh.pipeline, 2);
  EXPECT_EQ(config.mesh.data, 2);
  EXPECT_EQ(config_with({{"pipeline", {{"stages", "auto"}}}}, 4).mesh.pipeline, 1);
  EXPECT_ERROR(config_with({{"pipeline", {{"stages", 2}}}, {"mesh", {{"pipeline", 4}}}}, 4),
               "pipeline.stages is 2, and mesh.pipeline is 4");
  EXPECT_ERROR(config_with({{"pipeline", {{"activation_checkpoint_interval", 1}}}}, 2),
               "pipeline.activation_checkpoint_interval is not 0", "run.recompute");
}

TEST(PipelineKey, WhatCannotBeIsRefused) {
  EXPECT_ERROR(config_with({{"pipeline", {{"schedule", "zb-v"}}}}, 2), "pipeline.schedule", "1f1b");
  EXPECT_ERROR(config_with({{"pipeline", {{"partition", "type:mlp"}}}}, 2), "pipeline.partition is",
               "how many units each stage has");
  EXPECT_ERROR(config_with({{"pipeline", {{"partition", {3, 0}}}}}, 2), "pipeline.partition is");
  EXPECT_ERROR(config_with({{"mesh", {{"pipeline", 2}}}, {"pipeline", {{"partition", {3, 2}}}}}, 2),
               "mesh.pipeline is 2, and the run cannot be divided so",
               "pipeline.partition has 2 numbers that add up to 5");
  EXPECT_ERROR(config_with({{"mesh", {{"pipeline", 2}}}, {"pipeline", {{"interleave", 2}}}}, 2),
               "groups of 2", "gradient_accumulation_steps is 1");
  EXPECT_ERROR(config_with({{"mesh", {{"pipeline", 4}}}}, 6),
               "mesh.pipeline is 4, and 6 rank(s) cannot be divided by it", "--ranks 4");
  EXPECT_ERROR(config_with({{"mesh", {{"pipeline", 2}, {"tensor", 2}}}}, 6),
               "mesh has tensor x pipeline = 4, and 6 rank(s) cannot be divided by it");
  EXPECT_ERROR(config_with({{"mesh", {{"data", 2}, {"tensor", 1}, {"pipeline", 2}}}}, 6),
               "data 2 x tensor 1 x pipeline 2 = 4 ranks, and there are 6");
  EXPECT_EQ(
      config_with({{"mesh", {{"pipeline", 2}}}, {"run", {{"device", "cuda"}}}}, 2).mesh.pipeline,
      2);
  EXPECT_ERROR(
      config_with({{"mesh", {{"pipeline", 2}}}, {"run", {{"accumulate", "unit_first"}}}}, 2),
      "run.accumulate is unit_first");
}

TEST(MeshKey, MustMultiplyToTheRanks) {
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 4}}}}, 6),
               "mesh.tensor is 4, and 6 rank(s) cannot be divided by it", "--ranks 4");
  EXPECT_ERROR(config_with({{"mesh", {{"data", 2}, {"tensor", 2}}}}, 6),
               "data 2 x tensor 2 = 4 ranks, and there are 6", "--ranks 4");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 0}}}}, 2), "mesh.tensor");
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", kHuge}, {"data", kHuge}}}}, 2),
               "mesh.tensor is 4611686018427387904; the largest is 1024");
  EXPECT_ERROR(config_with({{"tensor_parallel", {{"autotp_size", kHuge}}}}, 2),
               "tensor_parallel.autotp_size is 4611686018427387904; the largest is 1024");
  EXPECT_ERROR(config_with({{"mesh", {{"tenser", 2}}}}, 2), "tenser", "tensor");
}

TEST(MeshKey, ModelsThatCannotBeDividedAreRefused) {
  const Json change = {{"mesh", {{"tensor", 3}}}};
  EXPECT_ERROR(config_with(change, 3), "mesh.tensor is 3, and the model cannot be divided so",
               "heads cannot be divided by 3");
  EXPECT_EQ(config_with({{"mesh", {{"tensor", 2}}}, {"run", {{"device", "cuda"}}}}, 2).mesh.tensor,
            2);
}

}  // namespace
}  // namespace onefold

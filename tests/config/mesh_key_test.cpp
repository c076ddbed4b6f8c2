// "mesh" and DeepSpeed's tensor_parallel.autotp_size.
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

TEST(MeshKey, AxesThatAreNotThereYetAreRefused) {
  for (const std::string axis : {"pipeline", "context", "expert"})
    EXPECT_ERROR(config_with({{"mesh", {{axis, 2}}}}, 4),
                 "mesh." + axis + " is 2: there is no " + axis + " parallelism yet");
}

TEST(MeshKey, MustMultiplyToTheRanks) {
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 4}}}}, 6),
               "mesh.tensor is 4, and 6 rank(s) cannot be divided by it", "--ranks 4");
  EXPECT_ERROR(config_with({{"mesh", {{"data", 2}, {"tensor", 2}}}}, 6),
               "data 2 x tensor 2 = 4 ranks, and there are 6", "--ranks 4");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 0}}}}, 2), "mesh.tensor");
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", kHuge}, {"data", kHuge}}}}, 2),
               "mesh.tensor is 4611686018427387904; the largest is 1048576");
  EXPECT_ERROR(config_with({{"tensor_parallel", {{"autotp_size", kHuge}}}}, 2),
               "tensor_parallel.autotp_size is 4611686018427387904; the largest is 1048576");
  EXPECT_ERROR(config_with({{"mesh", {{"tenser", 2}}}}, 2), "tenser", "tensor");
}

TEST(MeshKey, ModelsThatCannotBeDividedAreRefused) {
  const Json change = {{"mesh", {{"tensor", 3}}}};
  EXPECT_ERROR(config_with(change, 3), "mesh.tensor is 3, and the model cannot be divided so",
               "heads cannot be divided by 3");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 2}}}, {"lora", {{"rank", 2}}}}, 2),
               "adapters (lora) cannot be divided yet");
  EXPECT_ERROR(config_with({{"mesh", {{"tensor", 2}}}, {"run", {{"device", "cuda"}}}}, 2),
               "device cpu alone yet");
}

}  // namespace
}  // namespace onefold

// The ranks of a pipeline together: how long a step of all of them takes, and drawings of it.
#include "run/pipeline_drawing.h"

#include <gtest/gtest.h>

#include "run/plan.h"

namespace onefold {
namespace {

// Layers alone count: products take time, and the head's are few.
ModelSpec equal_layers(int64_t layers) {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.num_layers = layers;
  spec.vocab_size = 2;
  spec.hidden_size = spec.num_heads * spec.head_dim;
  spec.tie_embeddings = false;
  return spec;
}

Hardware products_alone() {
  Hardware hardware;
  hardware.product_gflops = 1;
  hardware.product_share = hardware.attention_share = 1;
  hardware.memory_gb_per_s = hardware.link_gb_per_s = hardware.host_gb_per_s = 1e9;
  hardware.kernel_latency_us = hardware.link_latency_us = 0;
  return hardware;
}

EngineOptions options_with(int ranks, int micros, int interleave,
                           PipelineSchedule schedule = PipelineSchedule::one_f_one_b) {
  EngineOptions options{.threads = 1, .micro_batch = 4, .sequence = 64};
  options.micros = micros;
  options.pipeline.ranks = ranks;
  options.pipeline.interleave = interleave;
  options.pipeline.schedule = schedule;
  const int stages = ranks * interleave;
  options.pipeline.units.assign(static_cast<size_t>(stages), 2);
  ++options.pipeline.units.front();
  ++options.pipeline.units.back();
  return options;
}

TEST(PipelinePlanTest, StagesOfEqualLayersStandStillForTheBubbleOfTheFormula) {
  for (const auto& [ranks, micros, interleave] :
       {std::array{2, 4, 1}, {4, 8, 1}, {4, 8, 2}, {3, 6, 2}})
    for (const PipelineSchedule schedule :
         {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
      if (interleave > 1 && schedule == PipelineSchedule::gpipe) continue;
      const PipelinePlan plan = plan_pipeline(equal_layers(ranks * interleave),
                                              options_with(ranks, micros, interleave, schedule),
                                              ranks, 0, products_alone());
      EXPECT_EQ(plan.ideal_idle_share(), (ranks - 1.0) / (interleave * micros + ranks - 1));
      // The embedding, the head, clipping and the optimizer take a little.
      EXPECT_NEAR(plan.idle_share(), plan.ideal_idle_share(), 0.02);
    }
}

TEST(PipelinePlanTest, AStepTakesAsLongAsAllStagesTogether) {
  const ModelSpec spec = equal_layers(4);
  const EngineOptions options = options_with(4, 8, 1);
  const Hardware hardware = products_alone();
  const PipelinePlan together = plan_pipeline(spec, options, 8, 0, hardware);
  const RankPlan plan = plan_rank(spec, options, 8, 0, hardware, true);
  ASSERT_TRUE(plan.predicted);
  EXPECT_DOUBLE_EQ(plan.predicted->seconds, together.times.seconds);
  EXPECT_DOUBLE_EQ(plan.predicted->tokens_per_second,
                   2 * 8 * 4 * 64 / together.times.seconds);  // two ranks along the data axis
  ASSERT_EQ(plan.traces.size(), 4u);
  EXPECT_EQ(plan.traces[3].rank, 6);
  EXPECT_EQ(plan.place_peaks.size(), 4u);
  EXPECT_EQ(plan.peak_bytes, plan.place_peaks[static_cast<size_t>(plan.place)]);
  EXPECT_EQ(plan.peak_bytes, *std::max_element(plan.place_peaks.begin(), plan.place_peaks.end()));
}

TEST(PipelinePlanTest, IsDrawn) {
  const PipelinePlan plan =
      plan_pipeline(equal_layers(2), options_with(2, 3, 1), 2, 0, products_alone());
  const std::string text = schedule_text(plan);
  EXPECT_NE(text.find("  rank 0   |F0-F1-"), std::string::npos) << text;
  EXPECT_NE(text.find("  rank 1   |...F0-B0"), std::string::npos) << text;
  EXPECT_NE(text.find("it would be 25.0 %"), std::string::npos) << text;
  const std::string svg = schedule_svg(plan);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  size_t turns = 0;
  for (size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at) ++turns;
  EXPECT_EQ(turns, 2u * 3 * 2);
}

}  // namespace
}  // namespace onefold

// "delay", by its effect.
#include <gtest/gtest.h>

#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

Config delayed_config(const Json& change) {
  Json root = {{"model", {{"preset", "gpt2-tiny"}, {"vocab_size", 101}}},
               {"train_micro_batch_size_per_gpu", 2}};
  root.update(change);
  return Config::from_json(root, 2);
}

TEST(DelayKey, LetsGradientsWaitAStep) {
  EXPECT_FALSE(engine_options(delayed_config(Json::object())).optimizer.delayed);
  const Config config = delayed_config({{"delay", {{"one_step", true}}}});
  EXPECT_TRUE(engine_options(config).optimizer.delayed);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
  EXPECT_TRUE(config.effective().contains("delay"));
  EXPECT_FALSE(delayed_config({{"delay", {{"one_step", false}}}}).effective().contains("delay"));
}

TEST(DelayKey, GradientsMayBeOfWeightsFurtherOn) {
  const Config config = delayed_config({{"delay", {{"one_step", true}, {"lookahead", 1.5}}}});
  EXPECT_EQ(engine_options(config).optimizer.lookahead, 1.5);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
  EXPECT_ERROR(delayed_config({{"delay", {{"lookahead", 1}}}}), "delay.lookahead has no effect");
  EXPECT_ERROR(
      delayed_config({{"delay", {{"one_step", true}, {"lookahead", 1}}},
                      {"bf16", {{"enabled", true}, {"bf16_master_weights_and_grads", true}}}}),
      "delay.lookahead", "needs master weights");
}

TEST(DelayKey, RefusesOptimizersThatKnowWholeTensors) {
  for (const char* type : {"Lamb", "LARS", "Adafactor", "Muon"})
    EXPECT_ERROR(delayed_config({{"delay", {{"one_step", true}}}, {"optimizer", {{"type", type}}}}),
                 "delay.one_step is true");
  EXPECT_ERROR(delayed_config({{"delay", {{"one_stop", true}}}}), "did you mean \"one_step\"");
}

TEST(DelayKey, RanksMayStepByThemselves) {
  const Config config = delayed_config({{"delay",
                                         {{"local_steps", 50},
                                          {"outer_lr", 0.5},
                                          {"outer_momentum", 0.25},
                                          {"outer_nesterov", false}}}});
  const LocalOptions local = engine_options(config).local;
  EXPECT_EQ(local.steps, 50);
  EXPECT_EQ(local.rate, 0.5f);
  EXPECT_EQ(local.momentum, 0.25f);
  EXPECT_FALSE(local.nesterov);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
  EXPECT_FALSE(engine_options(delayed_config({{"delay", {{"local_steps", 1}}}})).local.on());
}

TEST(DelayKey, LocalStepsRefuseWhatDoesNotCombine) {
  const auto refused = [](const Json& change, const char* reason) {
    Json all = {{"delay", {{"local_steps", 4}}}};
    all.update(change);
    EXPECT_ERROR(delayed_config(all), "delay.local_steps is 4", reason);
  };
  refused({{"zero_optimization", {{"stage", 1}}}}, "stage must be 0");
  refused({{"compression", {{"gradients", "int8"}}}}, "compression must be left out");
  refused({{"optimizer", {{"type", "Lamb"}}}}, "the optimizer must be");
  refused({{"clipping", {{"value", 1}}}}, "clipping is by gradient_clipping alone");
  refused({{"data_types", {{"moments", "8bit"}}}}, "moments must be fp32");
  refused({{"delay", {{"local_steps", 4}, {"one_step", true}}}}, "one_step must be false");
  EXPECT_ERROR(delayed_config({{"delay", {{"outer_lr", 1}}}}), "delay.outer_lr has no effect");
  EXPECT_ERROR(
      delayed_config(
          {{"delay", {{"local_steps", 4}, {"outer_momentum", 0}, {"outer_nesterov", true}}}}),
      "has no effect without outer_momentum");
}

TEST(DelayKey, RanksMaySumWhatTheyHaveMoved) {
  const Json adam = {{"type", "AdamW"},
                     {"params", {{"bias_correction", false}, {"freeze_step", 6}}}};
  const auto moving = [&](const Json& delay, const Json& change = Json::object()) {
    Json all = {{"delay", {{"local_sum", "moves"}, {"local_steps", 8}, {"warmup_steps", 6}}},
                {"optimizer", adam},
                {"compression", {{"gradients", "1bit"}}}};
    if (!delay.empty()) all["delay"].update(delay);
    if (!change.empty()) all.update(change);
    return delayed_config(all);
  };
  const Config config = moving({{"local_step_scaler", 3}});
  const LocalOptions local = engine_options(config).local;
  EXPECT_TRUE(local.sums_moves);
  EXPECT_EQ(local.steps, 8);
  EXPECT_EQ(local.scaler, 3);
  EXPECT_EQ(local.whole_steps, 6);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
  EXPECT_EQ(moving(Json::object()).delay.local.scaler, 32678);
  const auto refused = [&](const Json& delay, const Json& change, const char* reason) {
    EXPECT_ERROR(moving(delay, change), "delay.local_steps is", reason);
  };
  refused({{"warmup_steps", 5}}, Json::object(), "as many as delay.warmup_steps");
  refused({}, {{"optimizer", {{"type", "AdamW"}, {"params", {{"freeze_step", 6}}}}}},
          "AdamW without bias_correction");
  refused({}, {{"compression", {{"gradients", "topk"}}}}, "must be a dense format");
  refused({}, {{"compression", {{"gradients", "1bit"}, {"error_feedback", false}}}},
          "with error_feedback");
  refused({}, {{"fp16", {{"enabled", true}}}}, "training must be in fp32 or bf16");
  refused({}, {{"zero_optimization", {{"stage", 1}}}}, "stage must be 0");
  refused({}, {{"run", {{"eval_every", 12}}}, {"data", {{"validation", "text.txt"}}}},
          "a multiple of every interval");
  EXPECT_ERROR(moving({{"outer_lr", 1}}), "delay.outer_lr has no effect: it is for local_sum");
  EXPECT_ERROR(delayed_config({{"delay", {{"local_steps", 4}, {"local_step_scaler", 2}}}}),
               "delay.local_step_scaler has no effect: it is for local_sum");
}

TEST(DelayKey, RanksMayGoOnWithOldWeights) {
  const Config config =
      delayed_config({{"delay", {{"staleness", 3}, {"compensation", 0.5}, {"warmup_steps", 40}}}});
  const StaleOptions stale = engine_options(config).stale;
  EXPECT_EQ(stale.bound, 3);
  EXPECT_EQ(stale.compensation, 0.5f);
  EXPECT_EQ(stale.whole_steps, 40);
  EXPECT_EQ(Config::from_json(config.effective(), 2).effective(), config.effective());
  EXPECT_ERROR(delayed_config({{"delay", {{"compensation", 1}}}}),
               "delay.compensation has no effect");
  const auto refused = [](const Json& change, const char* reason) {
    Json all = {{"delay", {{"staleness", 2}}}};
    all.update(change);
    EXPECT_ERROR(delayed_config(all), "delay.staleness is 2", reason);
  };
  refused({{"zero_optimization", {{"stage", 3}}}}, "stage must be at most 2");
  refused({{"compression", {{"gradients", "int8"}}}}, "compression must be left out");
  refused({{"bf16", {{"enabled", true}}}}, "training must be in fp32");
  refused({{"delay", {{"staleness", 2}, {"one_step", true}}}}, "one_step must be false");
  refused({{"delay", {{"staleness", 2}, {"local_steps", 4}}}}, "local_steps must be 1");
  refused({{"clipping", {{"adaptive", 0.01}}}}, "clipping may not be adaptive");
}

TEST(DelayKey, MayBeginLater) {
  const Config late = delayed_config({{"delay", {{"one_step", true}, {"warmup_steps", 40}}}});
  EXPECT_EQ(engine_options(late).optimizer.delayed_after, 40);
  EXPECT_EQ(Config::from_json(late.effective(), 2).effective(), late.effective());
  EXPECT_EQ(engine_options(delayed_config({{"delay", {{"local_steps", 4}, {"warmup_steps", 8}}}}))
                .local.whole_steps,
            8);
  EXPECT_ERROR(delayed_config({{"delay", {{"local_steps", 4}, {"warmup_steps", 6}}}}),
               "delay.warmup_steps is 6: it must be a multiple of local_steps, 4");
  EXPECT_ERROR(delayed_config({{"delay", {{"warmup_steps", 6}}}}),
               "delay.warmup_steps has no effect");
}

}  // namespace
}  // namespace onefold

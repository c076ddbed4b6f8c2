// Whole files in the spirit of those that people have: what becomes of "auto", of sizes left open,
// of a dialect, and of many mistakes at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/process.h"
#include "config/config.h"
#include "config/dialect.h"
#include "error_text.h"

namespace onefold {
namespace {

Json file_with(const char* text) {
  Json root = {{"model", "gpt2-tiny"},
               {"data", {{"train", "a.txt"}, {"sequence_length", 32}}},
               {"run", {{"steps", 20}}}};
  root.update(parse_json(without_dialect(text), "test"));
  return root;
}

bool has_note(const std::vector<std::string>& notes, const std::string& note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

// A file for a trainer that fills everything in.
constexpr const char* kTrainers = R"({
  "fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW",
                "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                           "warmup_num_steps": "auto", "total_num_steps": "auto"}},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
                        "sub_group_size": 1e9, "reduce_bucket_size": "auto",
                        "stage3_prefetch_bucket_size": "auto",
                        "stage3_param_persistence_threshold": "auto",
                        "stage3_gather_16bit_weights_on_model_save": true},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "steps_per_print": 2000, "wall_clock_breakdown": false
})";

TEST(DeepSpeedFile, WhatIsAutoIsFilledInAndSaid) {
  const Config c = Config::from_json(file_with(kTrainers));
  const int64_t width = c.model.hidden_size;
  EXPECT_EQ(c.zero.reduce_bucket_elems, width * width);
  EXPECT_EQ(c.zero.persistence_elems, 10 * width);
  EXPECT_EQ(c.zero.prefetch_elems, ZeroOptions::kAuto);
  EXPECT_EQ(c.learning_rate, 1e-3);
  EXPECT_EQ(c.gradient_clipping, 1);
  EXPECT_EQ(c.schedule.warmup_steps, 1);
  EXPECT_EQ(c.batch.micro, 8);
  const std::vector<std::string>& filled = c.notes.filled;
  for (const std::string note :
       {"optimizer.params.lr 0.001", "optimizer.params.betas [0.9,0.999]",
        "optimizer.params.weight_decay 0.0", "scheduler.params.warmup_num_steps 1",
        "scheduler.params.total_num_steps the run's", "gradient_clipping 1.0",
        "zero_optimization.stage3_prefetch_bucket_size one unit", "train_batch_size 8",
        "train_micro_batch_size_per_gpu 8", "gradient_accumulation_steps 1"})
    EXPECT_TRUE(has_note(filled, note)) << note << " is not in: " << Json(filled);
  EXPECT_TRUE(
      has_note(filled, fmt::format("zero_optimization.reduce_bucket_size {}", width * width)));
  EXPECT_TRUE(has_note(c.notes.remarks,
                       "bf16 and fp16 left to \"auto\": fp32; bf16.enabled true takes half the "
                       "memory"));
  EXPECT_TRUE(has_note(c.notes.idle, "zero_optimization.sub_group_size"));
  EXPECT_TRUE(has_note(c.notes.idle, "fp16.hysteresis"));
  EXPECT_EQ(Config::from_json(c.effective()).effective(), c.effective());
}

TEST(DeepSpeedFile, AutoAtAnotherStageIsOfNoConsequence) {
  const Config c = Config::from_json(
      file_with(R"({"zero_optimization": {"stage": 1, "stage3_prefetch_bucket_size": "auto"}})"));
  EXPECT_TRUE(has_note(c.notes.idle, "zero_optimization.stage3_prefetch_bucket_size"));
  EXPECT_TRUE(c.notes.filled.empty());
}

TEST(DeepSpeedFile, AutoIsRefusedWhereNoTrainerFillsItIn) {
  EXPECT_ERROR(Config::from_json(file_with(R"({"steps_per_print": "auto"})")),
               "steps_per_print must be an integer", "write the value");
  EXPECT_ERROR(Config::from_json(file_with(R"({"optimizer": {"params": {"decay": "auto"}}})")),
               "optimizer.params.decay must be one of");
}

TEST(DeepSpeedFile, AnAutomaticRateIsGentleWithWeightsThatAreThere) {
  const std::string folder = testing::TempDir() + "onefold_auto_rate";
  make_folders(folder);
  write_file(folder + "/config.json", R"({"model_type": "gpt2", "vocab_size": 99, "n_embd": 8,
      "n_layer": 1, "n_head": 2, "n_positions": 64})");
  write_file(folder + "/model.safetensors", "");
  Json root = file_with(R"({"optimizer": {"params": {"lr": "auto"}}, "train_batch_size": 1})");
  root["model"] = folder;
  EXPECT_EQ(Config::from_json(root).learning_rate, 5e-5);
  std::filesystem::remove_all(folder);
}

TEST(DeepSpeedFile, ABatchLeftOpenFollowsMemory) {
  const auto batch = [](const char* text, int64_t ranks = 1) {
    return Config::from_json(file_with(text), ranks);
  };
  EXPECT_EQ(batch("{}").batch.global, 8);
  EXPECT_EQ(batch("{}", 3).batch.global, 24);
  EXPECT_EQ(batch(R"({"gradient_accumulation_steps": 4})").batch.global, 32);
  EXPECT_TRUE(
      has_note(batch("{}").notes.remarks, "the file leaves the batch open: micro-batches of 8"));
  // Memory for what 2 sequences take, and not for 4.
  int64_t last = 8;
  for (const int64_t kib : {2000, 1000, 500, 250}) {
    Json root = file_with("{}");
    root["run"]["memory"] = kib * 1024;
    const Config c = Config::from_json(root);
    EXPECT_LE(c.batch.micro, last);
    last = c.batch.micro;
    if (last < 8) {
      EXPECT_TRUE(contains(Json(c.notes.remarks).dump(), "by memory"));
    }
  }
  EXPECT_EQ(last, 1) << "the least there is: the limit itself is checked when the run is planned";
}

TEST(DeepSpeedFile, AllThatIsWrongComesInOneMessageByGroup) {
  const std::string said = error_text([] {
    Config::from_json(file_with(R"({
      "trian_batch_size": 8, "amp": {"enabled": true}, "optimizer": {"type": "Adagrad"},
      "zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 1}, "stge": 1},
      "gradient_clipping": -1, "train_batch_size": 6, "train_micro_batch_size_per_gpu": 4,
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -5, "bogus": 1}},
      "run": {"stps": 3}
    })"));
  });
  const size_t unknown = said.find("\n  unknown:"), missing = said.find("\n  not there yet:"),
               conflict = said.find("\n  in conflict or out of range:");
  ASSERT_TRUE(unknown < missing && missing < conflict && conflict != std::string::npos) << said;
  EXPECT_TRUE(said.starts_with("10 problems")) << said;
  const auto expect_between = [&](size_t begin, size_t end, const std::string& words) {
    const size_t at = said.find(words);
    EXPECT_TRUE(at > begin && at < end) << words << " is not where it belongs:\n" << said;
  };
  const size_t end = said.size();
  expect_between(unknown, missing, "trian_batch_size is not a known key, did you mean");
  expect_between(unknown, missing,
                 "zero_optimization.stge is not a known key, did you mean \"stage\"");
  expect_between(unknown, missing, "scheduler.params.bogus is not a known key");
  expect_between(unknown, missing, "run.stps is not a known key");
  expect_between(missing, conflict, "amp.enabled is true");
  expect_between(missing, conflict, "optimizer.type is \"Adagrad\"");
  expect_between(missing, conflict, "zero_optimization.zenflow");
  expect_between(conflict, end, "gradient_clipping must not be negative");
  expect_between(conflict, end, "scheduler.params.warmup_num_steps must be at least 1");
  expect_between(conflict, end, "train_batch_size is 6, not a multiple of");
}

TEST(DeepSpeedFile, TheSchedulesRateReplacesTheOptimizersWithAWord) {
  const Config c = Config::from_json(file_with(R"({"train_batch_size": 8,
      "optimizer": {"type": "Adam", "params": {"lr": 0.5}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.25}}})"));
  EXPECT_EQ(c.learning_rate, 0.25);
  EXPECT_TRUE(
      has_note(c.notes.remarks,
               "optimizer.params.lr 0.5 is replaced by the schedule's 0.25, as with DeepSpeed"));
}

TEST(DeepSpeedFile, MonitorsHaveTheirFolders) {
  const Config c = Config::from_json(file_with(R"({"train_batch_size": 8,
      "tensorboard": {"enabled": true, "output_path": "logs/tb", "job_name": "first"},
      "csv_monitor": {"enabled": true}})"));
  EXPECT_EQ(c.run.tensorboard_folder, "logs/tb/first");
  EXPECT_EQ(c.run.csv_folder, "DeepSpeedJobName");
  const Config off =
      Config::from_json(file_with(R"({"train_batch_size": 8, "tensorboard": {"job_name": "x"}})"));
  EXPECT_EQ(off.run.tensorboard_folder, "");
  EXPECT_TRUE(has_note(off.notes.idle, "tensorboard"));
}

TEST(DeepSpeedFile, LinesWithoutEndAreNone) {
  for (const char* text : {R"({"steps_per_print": "inf"})", R"({"steps_per_print": 1e300})"})
    EXPECT_EQ(Config::from_json(file_with(text)).steps_per_print, INT64_MAX) << text;
}

TEST(Dialect, CommentsAndTrailingCommasPass) {
  const char* text = R"({ # one
    "gradient_clipping": 0.5, // "two",
    /* three, } */ "optimizer": {"params": {"betas": [0.9, 0.95 , /* four */ ], },},
    "run": {"steps": 3, "output": "a, ] # b\", }", },
  })";
  const Config c = Config::from_json(file_with(text));
  EXPECT_EQ(c.gradient_clipping, 0.5);
  EXPECT_EQ(c.optimizer.beta2, 0.95);
  EXPECT_EQ(c.run.output, "a, ] # b\", }");
}

TEST(Dialect, PositionsInErrorsHold) {
  const auto said = [](const char* text) {
    return error_text([&] { parse_json(without_dialect(text), "f"); });
  };
  EXPECT_TRUE(contains(said("{\"a\": 1, # x\n  \"b\": [1,],\n  oops}"), "f:3:3"));
  EXPECT_TRUE(contains(said("{\"a\": 1,,}"), "f:1:9")) << "one comma, not two";
  for (const char* text : {"[,]", "{,}", "[1,,]"}) EXPECT_NE(said(text), "") << text;
  EXPECT_NE(said("{\"a\": \"never ends"), "");
  EXPECT_NE(said("/* never ends"), "");
}

}  // namespace
}  // namespace onefold

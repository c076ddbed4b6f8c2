#include "config/key_hints.h"

#include <algorithm>
#include <array>
#include <utility>

#include "config/deepspeed_keys.h"
#include "config/sections.h"

namespace onefold {
namespace {

constexpr auto kNamesElsewhere = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"steps", "run.steps"},
    {"max_steps", "run.steps"},
    {"train_iters", "run.steps"},
    {"epochs", "run.epochs"},
    {"num_epochs", "run.epochs"},
    {"num_train_epochs", "run.epochs"},
    {"tokens", "run.tokens"},
    {"seed", "run.seed"},
    {"output", "run.output"},
    {"output_dir", "run.output"},
    {"save_every", "run.save_every"},
    {"save_steps", "run.save_every"},
    {"eval_every", "run.eval_every"},
    {"eval_steps", "run.eval_every"},
    {"recompute", "run.recompute"},
    {"gradient_checkpointing", "run.recompute"},
    {"threads", "run.threads"},
    {"timeout", "run.timeout"},
    {"data", "data.train"},
    {"train", "data.train"},
    {"validation", "data.validation"},
    {"tokenizer", "data.tokenizer"},
    {"sequence", "data.sequence_length"},
    {"sequence_length", "data.sequence_length"},
    {"seq_length", "data.sequence_length"},
    {"max_seq_length", "data.sequence_length"},
    {"block_size", "data.sequence_length"},
    {"model", "model"},
    {"preset", "model"},
    {"dropout", "model.dropout"},
    {"lr", "optimizer.params.lr"},
    {"learning_rate", "optimizer.params.lr"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"optimizer", "optimizer.type"},
    {"scheduler", "scheduler.type"},
    {"warmup_steps", "scheduler.params.warmup_steps"},
    {"batch", "train_batch_size"},
    {"batch_size", "train_batch_size"},
    {"train_batch_size", "train_batch_size"},
    {"micro_batch", "train_micro_batch_size_per_gpu"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"gradient_accumulation", "gradient_accumulation_steps"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clipping", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"max_grad_norm", "gradient_clipping"},
    {"logging_steps", "steps_per_print"},
    {"log_interval", "steps_per_print"},
    {"bf16", "bf16.enabled"},
    {"fp16", "fp16.enabled"},
    {"stage", "zero_optimization.stage"},
    {"zero", "zero_optimization.stage"},
    {"zero_stage", "zero_optimization.stage"},
    {"tensor", "mesh.tensor"},
    {"tensor_parallel_size", "mesh.tensor"},
    {"model_parallel_size", "mesh.tensor"},
    {"pipeline", "mesh.pipeline"},
    {"pipeline_parallel_size", "mesh.pipeline"},
    {"pipe_parallel_size", "mesh.pipeline"},
    {"context", "mesh.context"},
});

// Those of zero_optimization that are not in a table.
constexpr auto kMoreOfZero =
    std::to_array<std::string_view>({"allgather_bucket_size", "overlap_comm", "reduce_bucket_size",
                                     "offload_optimizer", "offload_param", "offload_activations"});

}  // namespace

std::string key_known_as(std::string_view name) {
  std::string word = lower(std::string(name));
  std::replace(word.begin(), word.end(), '-', '_');
  for (const auto& [known, key] : kNamesElsewhere)
    if (word == known) return std::string(key);
  const auto zero = plain_zero_keys();
  if (word.starts_with("stage3_") ||
      std::find(kMoreOfZero.begin(), kMoreOfZero.end(), word) != kMoreOfZero.end() ||
      std::any_of(zero.begin(), zero.end(), [&](const PlainKey& row) { return row.name == word; }))
    return "zero_optimization." + word;
  return "";
}

}  // namespace onefold

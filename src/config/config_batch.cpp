// The three batch sizes, by DeepSpeed's rules.
#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/thread_pool.h"
#include "config/sections.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

// Of each size by itself, which is more than the limits of a rank's step leave (spec_limits.h).
constexpr int64_t kLargestBatch = int64_t{1} << 40;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostRunTokens = int64_t{1} << 62;

int64_t read_size(JsonObject& root, std::string_view key) {
  const int64_t size = root.at_least(key, 1, 0);
  if (size <= kLargestBatch) return size;
  root.refuse(Group::conflict, key, fmt::format("is {}; the largest is {}", size, kLargestBatch));
  return kLargestBatch;
}

// The product of two sizes and the ranks.
int64_t sequences(int64_t micro, int64_t accumulation, int64_t world_size) {
  const int64_t product = saturating_product({micro, accumulation, world_size});
  if (product > kLargestBatch)
    user_error(
        "train_micro_batch_size_per_gpu {} * gradient_accumulation_steps {} * {} rank(s) make a "
        "train_batch_size of more than {} sequences, the largest there may be",
        micro, accumulation, world_size, kLargestBatch);
  return product;
}

// DeepSpeed divides and drops the remainder, then fails an assertion; this says which number does
// not fit.
int64_t divide(JsonObject& root, std::string_view whole_key, int64_t whole, int64_t part,
               const std::string& part_text) {
  if (whole % part != 0)
    root.fail(whole_key, fmt::format("is {}, not a multiple of {} = {}", whole, part_text, part));
  return whole / part;
}

// "; 8 ranks would do" if a number of ranks makes the sizes agree.
std::string agreeing_ranks(const BatchConfig& batch) {
  const int64_t of_rank = batch.micro * batch.accumulation;
  if (batch.global % of_rank != 0) return "";
  return fmt::format("; they do with --ranks {}", batch.global / of_rank);
}

}  // namespace

BatchConfig read_batch(JsonObject& root, int64_t world_size) {
  root.allow_auto(
      {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"});
  BatchConfig batch;
  batch.world_size = world_size;
  batch.global = read_size(root, "train_batch_size");
  batch.micro = read_size(root, "train_micro_batch_size_per_gpu");
  batch.accumulation = read_size(root, "gradient_accumulation_steps");
  if (world_size > kMostRanks)
    user_error("{} ranks were asked for; the largest number is {}", world_size, kMostRanks);

  if (batch.global == 0 && batch.micro == 0) return batch;
  if (batch.global == 0) {
    if (batch.accumulation == 0) batch.accumulation = 1;
    batch.global = sequences(batch.micro, batch.accumulation, world_size);
  } else if (batch.micro == 0) {
    if (batch.accumulation == 0) batch.accumulation = 1;
    batch.micro = divide(
        root, "train_batch_size", batch.global, sequences(1, batch.accumulation, world_size),
        fmt::format("gradient_accumulation_steps {} * {} rank(s)", batch.accumulation, world_size));
  } else if (batch.accumulation == 0) {
    batch.accumulation = divide(
        root, "train_batch_size", batch.global, sequences(batch.micro, 1, world_size),
        fmt::format("train_micro_batch_size_per_gpu {} * {} rank(s)", batch.micro, world_size));
  }
  const int64_t product = sequences(batch.micro, batch.accumulation, world_size);
  if (batch.global != product)
    user_error(
        "train_batch_size is {}, but train_micro_batch_size_per_gpu {} * "
        "gradient_accumulation_steps {} * {} rank(s) = {}; leave one out or make them agree{}",
        batch.global, batch.micro, batch.accumulation, world_size, product, agreeing_ranks(batch));
  return batch;
}

// Hugging Face's trainer has micro-batches of 8 unless told otherwise. Where that is too much, as
// many as fit run.memory, or most of this machine: of all its memory, because what happens to be
// free would give another batch from run to run.
void settle_batch(Config& config) {
  BatchConfig& batch = config.batch;
  if (batch.micro > 0) return;
  constexpr int64_t kMost = 8;
  constexpr double kShare = 0.75;
  if (batch.accumulation == 0) batch.accumulation = 1;
  batch.micro = 1;
  batch.global = sequences(1, batch.accumulation, batch.world_size);
  check_sizes(config);  // so that a plan has an end
  const int cores = available_cores();
  const auto here = std::min<int64_t>(batch.world_size, cores);
  const int64_t machine = total_memory_bytes();
  const int64_t limit =
      config.run.memory_bytes > 0
          ? config.run.memory_bytes
          : static_cast<int64_t>(kShare * static_cast<double>(machine) / static_cast<double>(here));
  for (batch.micro = kMost; batch.micro > 1; batch.micro /= 2)
    if (planned_bytes(config, static_cast<int>(cores / here)) <= limit) break;
  batch.global = sequences(batch.micro, batch.accumulation, batch.world_size);
  config.notes.remarks.push_back(
      fmt::format("the file leaves the batch open: micro-batches of {}{}", batch.micro,
                  batch.micro < kMost ? ", by memory" : ""));
}

// Of the whole: a rank's step, and the counts of tokens that follow from its length.
void check_sizes(const Config& config) {
  const BatchConfig& batch = config.batch;
  const int64_t length = config.data.sequence_length;
  check_step_sizes(config.model,
                   {.micro_batch = batch.micro, .micros = batch.accumulation, .sequence = length},
                   {.micro_batch = "train_micro_batch_size_per_gpu",
                    .micros = "gradient_accumulation_steps",
                    .sequence = "data.sequence_length"});
  // Of all ranks a step has at most 2^50 tokens now.
  const RunConfig& run = config.run;
  if (run.steps > config.most_steps())
    user_error("run.steps is {}; with {} tokens in a step the largest is {}", run.steps,
               batch.global * length, config.most_steps());
  if (run.tokens > kMostRunTokens)
    user_error("run.tokens is {}; the largest is {}", run.tokens, kMostRunTokens);
  if (run.eval_sequences > kMostRunTokens)
    user_error("run.eval_sequences is {}; the largest is {}", run.eval_sequences, kMostRunTokens);
}

int64_t Config::most_steps() const {
  return kMostRunTokens / (batch.global * data.sequence_length);
}

}  // namespace onefold

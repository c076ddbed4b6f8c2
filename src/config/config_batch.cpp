// The three batch sizes, by DeepSpeed's rules.
#include "base/error.h"
#include "config/sections.h"

namespace onefold {
namespace {

constexpr int64_t kLargestBatch = int64_t{1} << 30;  // so that products stay far inside int64

int64_t read_size(JsonObject& root, std::string_view key) {
  const int64_t size = root.at_least(key, 1, 0);
  if (size > kLargestBatch) root.fail(key, fmt::format("is too large ({})", size));
  return size;
}

// DeepSpeed divides and drops the remainder, then fails an assertion; this says which number does
// not fit.
int64_t divide(JsonObject& root, std::string_view whole_key, int64_t whole, int64_t part,
               const std::string& part_text) {
  if (whole % part != 0)
    root.fail(whole_key, fmt::format("is {}, not a multiple of {} = {}", whole, part_text, part));
  return whole / part;
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

  if (batch.global == 0 && batch.micro == 0) {
    root.finish();  // every other key has been read: a misspelt size is reported first
    user_error(
        "train_batch_size or train_micro_batch_size_per_gpu is missing: one of them must say how "
        "many sequences a step has");
  }
  if (batch.global == 0) {
    if (batch.accumulation == 0) batch.accumulation = 1;
    batch.global = batch.micro * batch.accumulation * world_size;
  } else if (batch.micro == 0) {
    if (batch.accumulation == 0) batch.accumulation = 1;
    batch.micro = divide(
        root, "train_batch_size", batch.global, batch.accumulation * world_size,
        fmt::format("gradient_accumulation_steps {} * {} rank(s)", batch.accumulation, world_size));
  } else if (batch.accumulation == 0) {
    batch.accumulation = divide(
        root, "train_batch_size", batch.global, batch.micro * world_size,
        fmt::format("train_micro_batch_size_per_gpu {} * {} rank(s)", batch.micro, world_size));
  }
  const int64_t product = batch.micro * batch.accumulation * world_size;
  if (batch.global != product)
    user_error(
        "train_batch_size is {}, but train_micro_batch_size_per_gpu {} * "
        "gradient_accumulation_steps {} * {} rank(s) = {}; leave one out or make them agree",
        batch.global, batch.micro, batch.accumulation, world_size, product);
  return batch;
}

}  // namespace onefold

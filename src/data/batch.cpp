#include "data/batch.h"

#include <algorithm>

#include "base/error.h"

namespace onefold {
namespace {

template <typename Sequences>
void fill_row(const Sequences& sequences, int64_t index, Batch& batch, int64_t row) {
  const size_t begin = static_cast<size_t>(row * batch.sequence),
               length = static_cast<size_t>(batch.sequence);
  sequences.get(index, std::span(batch.tokens).subspan(begin, length),
                std::span(batch.targets).subspan(begin, length));
  if (sequences.mode() == DocumentMode::kIsolated)
    sequences.get_starts(index, std::span(batch.starts).subspan(begin, length));
}

template <typename Sequences>
Batch empty_batch(const Sequences& sequences, int64_t rows) {
  Batch batch(rows, sequences.length());
  if (sequences.mode() == DocumentMode::kIsolated) batch.starts.resize(batch.tokens.size());
  return batch;
}

std::vector<Sampler::Group> groups_of(const SequenceMix& mix, const std::vector<double>& weights) {
  require(weights.empty() || weights.size() == mix.sets().size(), "{} weights of {} sets",
          weights.size(), mix.sets().size());
  std::vector<Sampler::Group> groups;
  for (size_t i = 0; i < mix.sets().size(); ++i)
    groups.push_back({mix.sets()[i].count(), weights.empty() ? 1 : weights[i]});
  return groups;
}

}  // namespace

Batch::Batch(int64_t batch, int64_t sequence)
    : batch(batch),
      sequence(sequence),
      tokens(static_cast<size_t>(batch * sequence), 0),
      targets(static_cast<size_t>(batch * sequence), kIgnoredTarget),
      samples(static_cast<size_t>(batch), -1) {}

int64_t Batch::valid_targets() const {
  return std::count_if(targets.begin(), targets.end(),
                       [](int32_t target) { return target != kIgnoredTarget; });
}

BatchLoader::BatchLoader(SequenceMix sequences, uint64_t seed, bool shuffle, BatchLayout layout,
                         std::vector<double> weights)
    : sequences_(std::move(sequences)),
      sampler_(groups_of(sequences_, weights), seed, shuffle),
      layout_(layout) {
  require(layout.micro_batch > 0 && layout.accumulation > 0 && layout.ranks > 0,
          "a batch of {} x {} x {}", layout.micro_batch, layout.accumulation, layout.ranks);
}

Batch BatchLoader::get(int64_t step, int64_t micro, int64_t rank) const {
  require(micro >= 0 && micro < layout_.accumulation && rank >= 0 && rank < layout_.ranks,
          "micro-batch {} of {}, rank {} of {}", micro, layout_.accumulation, rank, layout_.ranks);
  Batch batch = empty_batch(sequences_, layout_.micro_batch);
  const int64_t first = layout_.position(step, micro, rank);
  for (int64_t row = 0; row < batch.batch; ++row) {
    batch.samples[static_cast<size_t>(row)] = first + row;
    fill_row(sequences_, sampler_.sample(first + row).index, batch, row);
  }
  return batch;
}

double BatchLoader::epochs(int64_t step) const {
  return static_cast<double>(layout_.position(step)) / static_cast<double>(sampler_.count());
}

ValidationLoader::ValidationLoader(SequenceSet sequences, int64_t batch, int64_t limit)
    : sequences_(std::move(sequences)),
      batch_(batch),
      rows_(limit > 0 ? std::min(limit, sequences_.count()) : sequences_.count()) {
  require(batch > 0, "validation batches of {}", batch);
}

Batch ValidationLoader::padding() const { return empty_batch(sequences_, batch_); }

Batch ValidationLoader::get(int64_t index) const {
  require(index >= 0 && index < count(), "validation batch {} of {}", index, count());
  Batch batch = padding();
  for (int64_t row = 0; row < batch_ && index * batch_ + row < rows_; ++row) {
    batch.samples[static_cast<size_t>(row)] = index * batch_ + row;
    fill_row(sequences_, index * batch_ + row, batch, row);
  }
  return batch;
}

}  // namespace onefold

#include "data/sampler.h"

#include <set>

#include "data/batch.h"
#include "data/scratch.h"

namespace onefold {
namespace {

TEST(Sampler, VisitsEverySequenceOnceInEachEpoch) {
  for (int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 100, 1000, 4097}) {
    const Sampler sampler(count, 42, true);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) {
        const Sampler::Sample sample = sampler.sample(epoch * count + i);
        EXPECT_EQ(sample.epoch, epoch);
        ASSERT_GE(sample.index, 0);
        ASSERT_LT(sample.index, count);
        seen.insert(sample.index);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
    }
  }
}

TEST(Sampler, LeavesTheOrderAloneWithoutShuffling) {
  const Sampler sampler(5, 42, false);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(sampler.sample(i).index, i % 5);
}

TEST(Sampler, SeedsAndEpochsGiveDifferentOrders) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    const Sampler sampler(200, seed, true);
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < 200; ++i) indices.push_back(sampler.sample(epoch * 200 + i).index);
    return indices;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(uint64_t{1} << 32 | 1, 0));
}

// Over 12,000 epochs each of 12 sequences should come first 1000 times. The counts' standard
// deviation is sqrt(12000 / 12 * 11 / 12) = 30; five of those are allowed.
TEST(Sampler, EverySequenceIsAsLikelyToComeFirst) {
  const Sampler sampler(12, 7, true);
  std::vector<int> first(12);
  for (int64_t epoch = 0; epoch < 12000; ++epoch)
    ++first[static_cast<size_t>(sampler.sample(epoch * 12).index)];
  for (const int count : first) EXPECT_NEAR(count, 1000, 150);
}

TEST(Sampler, NeighboursAreScattered) {
  const int64_t count = int64_t{1} << 40;
  const Sampler sampler(count - 3, 7, true);
  int close = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    close += std::abs(sampler.sample(i).index - sampler.sample(i + 1).index) < count / 1000;
  }
  EXPECT_LT(close, 15);  // 2 expected
}

TEST(Sampler, WorksAtTheLargestSizes) {
  const int64_t count = int64_t{1} << 62;
  const Sampler sampler(count, 7, true);
  EXPECT_LT(sampler.sample(count - 1).index, count);
  EXPECT_NE(sampler.sample(0).index, sampler.sample(1).index);
}

SequenceSet numbers(int64_t count, int64_t length) {
  std::vector<std::vector<int32_t>> documents(1);
  for (int64_t i = 0; i < count * length + 1; ++i) documents[0].push_back(static_cast<int32_t>(i));
  const Dataset dataset = Dataset::from_documents(documents, 100000, -1);
  return SequenceSet(dataset, {0, dataset.tokens()}, length, DocumentMode::kPacked,
                     "training data");
}

// The rows of a step in the run's order of samples.
std::vector<int32_t> step_of(const BatchLoader& loader, int64_t step) {
  std::vector<int32_t> rows;
  const BatchLayout& layout = loader.layout();
  int64_t position = layout.position(step);
  for (int64_t micro = 0; micro < layout.accumulation; ++micro) {
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      const Batch batch = loader.get(step, micro, rank);
      EXPECT_EQ(batch.valid_targets(), batch.batch * batch.sequence);
      for (const int64_t sample : batch.samples) EXPECT_EQ(sample, position++);
      rows.insert(rows.end(), batch.tokens.begin(), batch.tokens.end());
    }
  }
  return rows;
}

TEST(BatchLoader, OrderDoesNotDependOnRanksOrMicroBatches) {
  const SequenceSet set = numbers(37, 5);
  const BatchLoader one(set, 3, true, {.micro_batch = 12});
  const BatchLoader four(set, 3, true, {.micro_batch = 3, .ranks = 4});
  const BatchLoader many(set, 3, true, {.micro_batch = 2, .accumulation = 3, .ranks = 2});
  for (int64_t step = 0; step < 10; ++step) {  // more than three epochs, with steps that span two
    EXPECT_EQ(step_of(four, step), step_of(one, step));
    EXPECT_EQ(step_of(many, step), step_of(one, step));
  }
  EXPECT_NEAR(one.epochs(37), 12.0, 1e-12);
}

TEST(BatchLoader, ResumesFromAPositionAlone) {
  const SequenceSet set = numbers(37, 5);
  const BatchLoader before(set, 3, true, {.micro_batch = 4});
  // Ten steps of four are done; the run goes on with steps of eight.
  BatchLayout layout{.micro_batch = 4, .ranks = 2};
  layout.origin = before.layout().position(10) - 10 * layout.global_batch();
  const BatchLoader after(set, 3, true, layout);
  for (int64_t i = 0; i < 5; ++i) {
    std::vector<int32_t> expected = step_of(before, 10 + 2 * i);
    const std::vector<int32_t> second = step_of(before, 11 + 2 * i);
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(step_of(after, 10 + i), expected);
  }
}

TEST(ValidationLoader, CoversEverySequenceOnceInOrder) {
  const ValidationLoader loader(numbers(7, 5), 3);
  ASSERT_EQ(loader.count(), 3);
  int32_t next = 1;
  for (int64_t i = 0; i < loader.count(); ++i) {
    const Batch batch = loader.get(i);
    EXPECT_EQ(batch.batch, 3);
    for (const int32_t target : batch.targets) {
      if (target < 0) continue;
      EXPECT_EQ(target, next++);
    }
  }
  EXPECT_EQ(next, 36);
  EXPECT_EQ(loader.get(2).valid_targets(), 5);
  EXPECT_EQ(loader.get(2).samples, (std::vector<int64_t>{6, -1, -1}));
  EXPECT_EQ(ValidationLoader(numbers(7, 5), 3, 2).count(), 1);
  EXPECT_EQ(ValidationLoader(numbers(7, 5), 3, 100).count(), 3);
}

}  // namespace
}  // namespace onefold

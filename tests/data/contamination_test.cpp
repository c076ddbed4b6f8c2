#include "data/contamination.h"

#include <gtest/gtest.h>

#include "data/scratch.h"

namespace onefold {
namespace {

using Documents = std::vector<std::vector<int32_t>>;

constexpr int32_t kEnd = 0;

std::vector<int32_t> random_document(std::mt19937& random, size_t tokens) {
  std::uniform_int_distribution<int32_t> token(1, 999);
  std::vector<int32_t> document(tokens);
  for (int32_t& t : document) t = token(random);
  return document;
}

Documents random_documents(uint32_t seed, size_t count, size_t tokens) {
  std::mt19937 random(seed);
  Documents documents;
  for (size_t i = 0; i < count; ++i) documents.push_back(random_document(random, tokens));
  return documents;
}

TokenSubset part_of(const Documents& documents) {
  const Dataset data = Dataset::from_documents(documents, 1000, kEnd);
  return {data, {0, data.tokens()}};
}

TEST(FindDuplicates, CountsPlantedCopiesAndNothingElse) {
  Documents train = random_documents(1, 40, 30), validation = random_documents(2, 10, 30);
  train.push_back(train[3]);
  train.push_back(train[3]);
  validation.push_back(validation[1]);
  validation.push_back(train[7]);
  const TokenSubset held_out = part_of(validation);
  const DuplicateReport report = find_duplicates(part_of(train), &held_out, 10, nullptr);
  EXPECT_EQ(report.train_documents, 42);
  EXPECT_EQ(report.validation_documents, 12);
  EXPECT_EQ(report.in_train, 2);
  EXPECT_EQ(report.in_validation, 1);
  EXPECT_EQ(report.shared, 1);
  ASSERT_EQ(report.examples.size(), 4u);
  EXPECT_TRUE(report.examples[0].copy.validation);
  EXPECT_EQ(report.examples[0].copy.document, 11);
  EXPECT_FALSE(report.examples[0].original.validation);
  EXPECT_EQ(report.examples[0].original.document, 7);
}

TEST(FindDuplicates, OneTokenMakesADifference) {
  Documents train = random_documents(3, 5, 200);
  train.push_back(train[2]);
  train.back()[199] = train[2][199] == 5 ? 6 : 5;
  train.push_back(train[2]);
  train.back().pop_back();
  EXPECT_EQ(find_duplicates(part_of(train), nullptr, 5, nullptr).count(), 0);
}

// Documents that are read in more than one run of 65536 tokens are hashed and compared whole.
TEST(FindDuplicates, LongDocumentsAreComparedWhole) {
  Documents train = random_documents(4, 2, 70000);
  train.push_back(train[0]);
  train.push_back(train[1]);
  train.back()[69999] ^= 1;
  EXPECT_EQ(find_duplicates(part_of(train), nullptr, 5, nullptr).in_train, 1);
}

TEST(FindOverlap, MeasuresThePlantedShare) {
  Documents train = random_documents(5, 50, 200), validation = random_documents(6, 20, 100);
  // The second half of document 4 is from the middle of a training document: of its 88 13-grams,
  // the 38 that lie wholly in the copy are there.
  std::copy_n(train[9].begin() + 60, 50, validation[4].begin() + 50);
  std::copy_n(train[11].begin() + 100, 100, validation[8].begin());
  OverlapOptions options{.window = 1000, .share = 0.4};
  OverlapReport report = find_overlap(part_of(train), part_of(validation), options, nullptr);
  EXPECT_EQ(report.windows, 20);
  EXPECT_EQ(report.contaminated, 2);
  ASSERT_EQ(report.worst.size(), 2u);
  EXPECT_EQ(report.worst[0].document, 8);
  EXPECT_EQ(report.worst[0].share(), 1.0);
  EXPECT_EQ(report.worst[1].document, 4);
  EXPECT_EQ(report.worst[1].ngrams, 88);
  EXPECT_EQ(report.worst[1].found, 38);
  EXPECT_NEAR(report.mean_share, (1.0 + 38.0 / 88) / 20, 1e-12);
  options.share = 0.5;
  report = find_overlap(part_of(train), part_of(validation), options, nullptr);
  EXPECT_EQ(report.contaminated, 1);
  EXPECT_LT(report.expected_accidents, 1e-9);
}

TEST(FindOverlap, LongDocumentsAreJudgedByWindows) {
  const Documents train = random_documents(7, 5, 300);
  Documents validation = random_documents(8, 1, 100);
  std::copy_n(train[2].begin(), 20, validation[0].begin() + 40);
  const OverlapOptions options{.ngram = 5, .window = 20};
  const OverlapReport report = find_overlap(part_of(train), part_of(validation), options, nullptr);
  EXPECT_EQ(report.windows, 5);
  ASSERT_EQ(report.contaminated, 1);
  EXPECT_EQ(report.worst[0].first_token, 40);
  EXPECT_EQ(report.worst[0].tokens, 20);
  EXPECT_EQ(report.worst[0].share(), 1.0);
}

TEST(FindOverlap, DocumentsShorterThanAnNgramAreCountedApart) {
  const Documents train = random_documents(9, 5, 100);
  const Documents validation = {{1, 2, 3}, train[0]};
  const OverlapReport report = find_overlap(part_of(train), part_of(validation), {}, nullptr);
  EXPECT_EQ(report.short_windows, 1);
  EXPECT_EQ(report.windows, 1);
  EXPECT_EQ(report.contaminated, 1);
}

// With a bound on the table, fewer n-grams are looked for, and the answer stays.
TEST(FindOverlap, SamplingBoundsTheTable) {
  Documents train = random_documents(10, 20, 2000), validation = random_documents(11, 10, 2000);
  validation[3] = train[5];
  const OverlapOptions options{.window = 2000, .most_ngrams = 2000};
  const OverlapReport report = find_overlap(part_of(train), part_of(validation), options, nullptr);
  EXPECT_EQ(report.sampling, 16);
  EXPECT_LT(report.ngrams, 2500);
  EXPECT_EQ(report.windows, 10);
  ASSERT_EQ(report.contaminated, 1);
  EXPECT_EQ(report.worst[0].document, 3);
}

TEST(LocateDocuments, NamesFileAndByte) {
  const ScratchFolder folder;
  const std::string a = folder.write("a.txt", "one\ntwo\n\nthree\n"),
                    b = folder.write("b.txt", "four\nfive");
  const DataSource lines{.paths = {a, b}, .text_documents = TextDocuments::kLine};
  ThreadPool pool(1);
  const Tokenizer bytes = Tokenizer::bytes();
  const Dataset dataset = Dataset::open(lines, &bytes, pool);
  EXPECT_EQ(locate_documents(lines, dataset, {4, 2, 0}),
            (std::vector<std::string>{b + " at byte 5", a + " at byte 9", a + " at byte 0"}));
}

}  // namespace
}  // namespace onefold

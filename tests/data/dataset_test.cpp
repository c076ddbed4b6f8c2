#include "data/dataset.h"

#include <algorithm>

#include "data/scratch.h"
#include "data/sequences.h"
#include "data/token_file.h"
#include "data/tokenize.h"

namespace onefold {
namespace {

using Texts = std::vector<std::string>;

Texts texts_of(const DataSource& source) {
  Texts documents;
  for_each_document(source,
                    [&](const Document& document) { documents.emplace_back(document.text); });
  return documents;
}

Dataset numbered(std::initializer_list<int> lengths, int32_t end_of_text = -1) {
  std::vector<std::vector<int32_t>> documents;
  int32_t next = 0;
  for (const int length : lengths) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  return Dataset::from_documents(documents, 10000, end_of_text);
}

TEST(Documents, TextIsOneDocumentALineOrAParagraph) {
  const ScratchFolder folder;
  const std::string path = folder.write("t.txt", "\none\r\ntwo\n\n  \nthree\nfour\n");
  EXPECT_EQ(texts_of({.paths = {path}}), Texts{"\none\r\ntwo\n\n  \nthree\nfour\n"});
  EXPECT_EQ(texts_of({.paths = {path}, .text_documents = TextDocuments::kLine}),
            (Texts{"one", "two", "  ", "three", "four"}));
  EXPECT_EQ(texts_of({.paths = {path}, .text_documents = TextDocuments::kBlankLine}),
            (Texts{"one\r\ntwo", "three\nfour"}));
  EXPECT_EQ(texts_of({.paths = {path, path}}).size(), 2u);
}

TEST(Documents, JsonlHasOneDocumentOnEachLine) {
  const ScratchFolder folder;
  const std::string path = folder.write(
      "d.jsonl", "{\"text\": \"a\\nb\", \"id\": 1}\n\n{\"text\": \"\"}\r\n{\"text\": \"\\u00e9\"}");
  EXPECT_EQ(texts_of({.paths = {path}, .format = DataFormat::kJsonl}), (Texts{"a\nb", "\u00e9"}));
}

TEST(Documents, JsonlErrorsNameFileAndLine) {
  const ScratchFolder folder;
  const auto error = [&](std::string_view second_line) {
    const std::string path =
        folder.write("d.jsonl", "{\"text\": \"fine\"}\n" + std::string(second_line) + "\n");
    return user_error_of([&] { texts_of({.paths = {path}, .format = DataFormat::kJsonl}); });
  };
  expect_in(error("{\"body\": \"x\", \"id\": 2}"),
            {"d.jsonl:2:", "\"text\"", "\"body\"", "\"id\""});
  expect_in(error("{\"text\": 5}"), {"d.jsonl:2:", "\"text\"", "number"});
  expect_in(error("{\"text\": \"x\""), {"d.jsonl:2:", "not JSON"});
  expect_in(error("{\"text\": \"\xff\"}"), {"d.jsonl:2:"});
  expect_in(error("[1]"), {"d.jsonl:2:", "array"});
}

TEST(Documents, EmptyAndMissingFilesAreErrors) {
  const ScratchFolder folder;
  const std::string path = folder.write("empty.txt", "");
  expect_in(user_error_of([&] { texts_of({.paths = {path}}); }), {path, "empty"});
  expect_in(user_error_of([&] { texts_of({.paths = {folder.path("no.txt")}}); }), {"no.txt"});
  expect_in(user_error_of([&] { texts_of({}); }), {"no data files"});
  ThreadPool pool(1);
  const Tokenizer tokenizer = Tokenizer::bytes();
  const std::string blank = folder.write("blank.txt", "\n\n\n");
  const DataSource lines{.paths = {blank}, .text_documents = TextDocuments::kLine};
  expect_in(user_error_of([&] { Dataset::open(lines, &tokenizer, pool); }),
            {"blank.txt", "no text"});
  expect_in(user_error_of([&] { Dataset::open({.paths = {blank}}, nullptr, pool); }),
            {"tokenizer"});
}

TEST(Documents, MisspeltChoicesGetASuggestion) {
  EXPECT_EQ(parse_data_format("jsonl", "data.format"), DataFormat::kJsonl);
  EXPECT_EQ(parse_text_documents("blank_line", "data.documents_per"), TextDocuments::kBlankLine);
  EXPECT_EQ(parse_document_mode("separated", "data.documents"), DocumentMode::kSeparated);
  expect_in(user_error_of([] { parse_data_format("jsnol", "data.format"); }),
            {"data.format", "jsonl"});
  expect_in(user_error_of([] { parse_document_mode("pack", "data.documents"); }),
            {"data.documents", "packed"});
}

TEST(Dataset, EndsEveryDocumentWithEndOfText) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::bytes();
  ThreadPool pool(2);
  const DataSource source{.paths = {folder.write("t.txt", "ab\nc\n")},
                          .text_documents = TextDocuments::kLine};
  const Dataset dataset = Dataset::open(source, &tokenizer, pool);
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 'b', 256, 'c', 256}));
  EXPECT_EQ(dataset.documents(), 2);
  EXPECT_EQ(dataset.document_of(2), 0);
  EXPECT_EQ(dataset.document_of(3), 1);
  EXPECT_EQ(dataset.memory_bytes(), 5 * 2 + 2 * 8);
}

TEST(Dataset, JoinsTokenFilesIntoOneStream) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::bytes();
  ThreadPool pool(1);
  DataSource joined{.paths = {}, .format = DataFormat::kTokens};
  for (const std::string text : {"ab\nc\n", "def\n"}) {
    const DataSource source{.paths = {folder.write("t.txt", text)},
                            .text_documents = TextDocuments::kLine};
    joined.paths.push_back(folder.path(text.substr(0, 1) + ".tokens"));
    tokenize_to_file(source, tokenizer, pool, joined.paths.back());
  }
  const Dataset dataset = Dataset::open(joined, &tokenizer, pool);
  std::vector<int32_t> middle(5);
  dataset.read(2, middle);
  EXPECT_EQ(middle, (std::vector<int32_t>{256, 'c', 256, 'd', 'e'}));
  EXPECT_EQ(dataset.documents(), 3);
  EXPECT_EQ(dataset.document_start(2), 5);
  EXPECT_EQ(dataset.document_of(4), 1);
  EXPECT_EQ(dataset.document_of(5), 2);
  EXPECT_EQ(dataset.tokens(), 9);
}

TEST(Dataset, RefusesTokensOfAnotherTokenizer) {
  const ScratchFolder folder;
  ThreadPool pool(1);
  const std::string path = folder.path("t.tokens");
  tokenize_to_file({.paths = {folder.write("t.txt", "text")}}, Tokenizer::bytes(), pool, path);
  const Tokenizer other =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
  const DataSource source{.paths = {path}, .format = DataFormat::kTokens};
  expect_in(user_error_of([&] { Dataset::open(source, &other, pool); }),
            {path, "another tokenizer"});
}

// Vocabularies of one size and with one end-of-text, which mean other words by their tokens.
TEST(Dataset, RefusesFilesOfTwoTokenizers) {
  const ScratchFolder folder;
  const auto write = [&](const char* name, uint64_t tokenizer_hash) {
    TokenFileWriter writer(folder.path(name), 257, 256, tokenizer_hash);
    writer.add(std::vector<int32_t>{'a', 'b'});
    writer.end_document();
    writer.finish();
    return folder.path(name);
  };
  const std::string one = write("one.tokens", 1), two = write("two.tokens", 2),
                    unknown = write("unknown.tokens", 0);
  ThreadPool pool(1);
  const auto open = [&](std::vector<std::string> paths) {
    return Dataset::open({.paths = std::move(paths), .format = DataFormat::kTokens}, nullptr, pool);
  };
  expect_in(user_error_of([&] { open({unknown, one, two}); }), {two, one, "another tokenizer"});
  EXPECT_EQ(open({unknown, one, one}).documents(), 3);
  const Dataset of_one = open({one}), of_two = open({two});
  expect_in(user_error_of([&] { of_two.require_tokenizer_of(of_one); }),
            {two, one, "another tokenizer"});
  of_one.require_tokenizer_of(of_one);
  of_one.require_tokenizer_of(open({unknown}));
  open({unknown}).require_tokenizer_of(of_one);
}

TEST(Dataset, RefusesAModelWithASmallerVocabulary) {
  const Dataset dataset = numbered({10});
  dataset.check_vocabulary(10000);
  dataset.check_vocabulary(20000);
  expect_in(user_error_of([&] { dataset.check_vocabulary(9999); }),
            {"9999", "vocab_size", "10000"});
}

TEST(DataSplit, HoldsOutTheLastWholeDocuments) {
  const Dataset dataset = numbered({30, 30, 20, 10, 10});
  const DataSplit split = split_dataset(dataset, 0.18);
  EXPECT_EQ(split.train.begin, 0);
  EXPECT_EQ(split.train.end, 80);
  EXPECT_EQ(split.validation.begin, 80);
  EXPECT_EQ(split.validation.end, 100);
}

TEST(DataSplit, CutsTheTailOfASingleDocument) {
  const DataSplit split = split_dataset(numbered({1000}), 0.1);
  EXPECT_EQ(split.train.end, 900);
  EXPECT_EQ(split.validation.tokens(), 100);
}

TEST(DataSplit, DoesNotHoldOutALargeLastDocumentWhole) {
  EXPECT_EQ(split_dataset(numbered({10, 990}), 0.1).validation.tokens(), 100);
}

TEST(DataSplit, NeverOverlapsAndLosesNothing) {
  std::mt19937 random(9);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::vector<int32_t>> documents(1 + random() % 20);
    for (auto& document : documents) document.resize(1 + random() % 50);
    const Dataset dataset = Dataset::from_documents(documents, 10, 5);
    const double fraction = static_cast<double>(random() % 90 + 1) / 100.0;
    const DataSplit split = split_dataset(dataset, fraction);
    EXPECT_EQ(split.train.begin, 0);
    EXPECT_EQ(split.train.end, split.validation.begin);
    EXPECT_EQ(split.validation.end, dataset.tokens());
    EXPECT_GT(split.validation.tokens(), 0);
    EXPECT_LE(static_cast<double>(split.validation.tokens()),
              2 * fraction * static_cast<double>(dataset.tokens()) + 1);
  }
  const DataSplit none = split_dataset(numbered({10, 10}), 0.0);
  EXPECT_EQ(none.train.tokens(), 20);
  EXPECT_EQ(none.validation.tokens(), 0);
  expect_in(user_error_of([] { split_dataset(numbered({10}), 1.0); }), {"validation_fraction"});
  expect_in(user_error_of([] { split_dataset(numbered({10}), -0.1); }), {"validation_fraction"});
}

TEST(Sequences, PackedMakesEveryTokenATargetOnce) {
  const Dataset dataset = numbered({7, 5, 11});
  const TokenRange range{2, 23};
  const SequenceSet set(dataset, range, 4, DocumentMode::kPacked, "training data");
  EXPECT_EQ(set.count(), 5);
  EXPECT_EQ(set.targets(), 20);
  EXPECT_EQ(set.unused_tokens(), 0);
  std::vector<int32_t> tokens(4), targets(4);
  int32_t next = 3;
  for (int64_t i = 0; i < set.count(); ++i) {
    set.get(i, tokens, targets);
    for (size_t t = 0; t < 4; ++t) {
      EXPECT_EQ(targets[t], next++);
      EXPECT_EQ(tokens[t], targets[t] - 1);
    }
  }
  EXPECT_EQ(next, 23);
}

TEST(Sequences, PackedSaysHowManyTokensFillNoSequence) {
  const SequenceSet set(numbered({12}), {0, 12}, 4, DocumentMode::kPacked, "training data");
  EXPECT_EQ(set.count(), 2);
  EXPECT_EQ(set.unused_tokens(), 3);
}

TEST(Sequences, ATailThatIsKeptIsPaddedAndMasked) {
  const Dataset dataset = numbered({7, 5, 11});
  for (const DocumentMode mode : {DocumentMode::kPacked, DocumentMode::kIsolated}) {
    const SequenceSet set(dataset, {2, 12}, 4, mode, "data", /*keep_tail=*/true);
    ASSERT_EQ(set.count(), 3);
    const bool isolated = mode == DocumentMode::kIsolated;
    EXPECT_EQ(set.targets(), isolated ? 8 : 9);  // token 7 begins a document
    EXPECT_EQ(set.unused_tokens(), 0);
    std::vector<int32_t> tokens(4), targets(4), starts(4);
    set.get(1, tokens, targets);
    EXPECT_EQ(targets, (std::vector<int32_t>{isolated ? -1 : 7, 8, 9, 10}));
    set.get(2, tokens, targets);
    EXPECT_EQ(tokens, (std::vector<int32_t>{10, 0, 0, 0}));
    EXPECT_EQ(targets, (std::vector<int32_t>{11, -1, -1, -1}));
    if (!isolated) continue;
    set.get_starts(2, starts);  // the document at 12 is not in the range
    EXPECT_EQ(starts, (std::vector<int32_t>{0, 0, 0, 0}));
  }
  EXPECT_EQ(SequenceSet(dataset, {0, 2}, 4, DocumentMode::kPacked, "data", true).count(), 1);
  expect_in(user_error_of([&] {
              SequenceSet(dataset, {0, 1}, 4, DocumentMode::kPacked, "evaluation data", true);
            }),
            {"the evaluation data has one token", "at least two"});
}

TEST(Sequences, SeparatedKeepsDocumentsApartAndMasksPadding) {
  const Dataset dataset = numbered({3, 1, 6}, 9999);  // with end-of-text: 4, 2 and 7 tokens
  const SequenceSet set(dataset, {0, dataset.tokens()}, 4, DocumentMode::kSeparated,
                        "training data");
  ASSERT_EQ(set.count(), 4);
  EXPECT_EQ(set.targets(), 3 + 1 + 6);
  const std::vector<std::vector<int32_t>> tokens = {
      {0, 1, 2, 9999}, {3, 9999, 9999, 9999}, {4, 5, 6, 7}, {8, 9, 9999, 9999}};
  const std::vector<std::vector<int32_t>> targets = {
      {1, 2, 9999, -1}, {9999, -1, -1, -1}, {5, 6, 7, 8}, {9, 9999, -1, -1}};
  std::vector<int32_t> row(4), goal(4);
  for (size_t i = 0; i < 4; ++i) {
    set.get(static_cast<int64_t>(i), row, goal);
    EXPECT_EQ(row, tokens[i]);
    EXPECT_EQ(goal, targets[i]);
  }
}

TEST(Sequences, SeparatedSkipsDocumentsWithNothingToPredictAndClipsToItsRange) {
  const Dataset dataset = numbered({1, 5, 1, 1, 4, 1});
  const SequenceSet set(dataset, {0, dataset.tokens()}, 3, DocumentMode::kSeparated, "data");
  EXPECT_EQ(set.count(), 3);
  std::vector<int32_t> row(3), goal(3);
  set.get(2, row, goal);
  EXPECT_EQ(goal, (std::vector<int32_t>{9, 10, 11}));
  const SequenceSet tail(dataset, {10, 13}, 3, DocumentMode::kSeparated, "data");
  ASSERT_EQ(tail.count(), 1);
  tail.get(0, row, goal);
  EXPECT_EQ(row, (std::vector<int32_t>{10, 0, 0}));
  EXPECT_EQ(goal, (std::vector<int32_t>{11, -1, -1}));
}

TEST(Sequences, IsolatedCutsLikePackedAndKeepsDocumentsApart) {
  const Dataset dataset = numbered({3, 5, 1, 6});  // documents begin at 0, 3, 8 and 9
  const TokenRange all{0, dataset.tokens()};
  const SequenceSet set(dataset, all, 7, DocumentMode::kIsolated, "data"),
      packed(dataset, all, 7, DocumentMode::kPacked, "data");
  ASSERT_EQ(set.count(), 2);
  EXPECT_EQ(set.count(), packed.count());
  std::vector<int32_t> row(7), goal(7), packed_row(7), packed_goal(7), starts(7);
  set.get(0, row, goal);
  packed.get(0, packed_row, packed_goal);
  set.get_starts(0, starts);
  EXPECT_EQ(row, packed_row);
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 0, 0, 3, 3, 3, 3}));
  packed_goal[2] = kIgnoredTarget;  // the next document's first token
  EXPECT_EQ(goal, packed_goal);
  // A document that began before the cut goes on from the cut.
  set.get(1, row, goal);
  set.get_starts(1, starts);
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 1, 2, 2, 2, 2, 2}));
  EXPECT_EQ(goal[0], kIgnoredTarget);
  EXPECT_EQ(goal[1], kIgnoredTarget);
  EXPECT_EQ(set.targets(), packed.targets() - 3);
}

// A step on nothing but such a sequence would have no loss.
TEST(Sequences, IsolatedSequencesWithoutATargetAreLeftOut) {
  const Dataset dataset = numbered({1, 1, 1, 1, 1, 3, 1, 1});  // targets at tokens 6 and 7
  const TokenRange all{0, dataset.tokens()};
  const SequenceSet set(dataset, all, 3, DocumentMode::kIsolated, "data");
  ASSERT_EQ(set.count(), 2);
  EXPECT_EQ(set.targets(), 2);
  std::vector<int32_t> row(3), goal(3), starts(3);
  set.get(0, row, goal);
  set.get_starts(0, starts);
  EXPECT_EQ(row, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(goal, (std::vector<int32_t>{-1, -1, 6}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 1, 2}));
  set.get(1, row, goal);
  EXPECT_EQ(goal, (std::vector<int32_t>{7, -1, -1}));
  // The last sequence, which is short, has the two documents at the end alone.
  EXPECT_EQ(SequenceSet(dataset, all, 7, DocumentMode::kIsolated, "data", true).count(), 1);
  const Dataset ones = numbered({1, 1, 1, 1});
  expect_in(user_error_of([&] {
              SequenceSet(ones, {0, 4}, 2, DocumentMode::kIsolated, "training data");
            }),
            {"the training data has nothing to train on", "isolated", "second token"});
}

TEST(Sequences, TooFewTokensSayHowManyAreNeeded) {
  const Dataset dataset = numbered({8});
  const auto make = [&](TokenRange range, DocumentMode mode) {
    SequenceSet(dataset, range, 8, mode, "training data");
  };
  expect_in(user_error_of([&] {
              make({0, 8}, DocumentMode::kPacked);
            }),
            {"training data", "8 tokens", "9"});
  expect_in(user_error_of([&] { make({0, 0}, DocumentMode::kPacked); }), {"0 tokens"});
  expect_in(user_error_of([&] { make({0, 1}, DocumentMode::kSeparated); }), {"two tokens"});
  expect_in(user_error_of([&] { make({3, 3}, DocumentMode::kSeparated); }), {"two tokens"});
  expect_in(user_error_of([&] {
              SequenceSet(dataset, {0, 8}, 0, DocumentMode::kPacked, "");
            }),
            {"sequence_length"});
}

}  // namespace
}  // namespace onefold

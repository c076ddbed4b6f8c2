// What makes an evaluation look better than it is: documents that come twice, and validation text
// that the training data holds too. Works on tokens, so on every format, and in bounded memory: 16
// bytes for each document, and one table of n-grams of the validation data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace onefold {

// Tokens of a dataset that serve one purpose. Documents at its ends may be cut.
struct TokenSubset {
  Dataset dataset;
  TokenRange range;
};

struct DocumentPlace {
  bool validation = false;
  int64_t document = 0;  // of its dataset
};

struct DuplicateReport {
  int64_t train_documents = 0, validation_documents = 0;
  int64_t in_train = 0;       // training documents that repeat an earlier one
  int64_t in_validation = 0;  // validation documents that repeat an earlier one
  int64_t shared = 0;         // validation documents that are training documents too
  struct Pair {
    DocumentPlace copy, original;
  };
  std::vector<Pair> examples;  // the shared ones first

  int64_t count() const { return in_train + in_validation + shared; }
};

using CheckProgress = std::function<void(int64_t done_tokens, int64_t all_tokens)>;

// Documents with the same tokens, all of them: found by hash, then compared. `validation` may be
// null.
DuplicateReport find_duplicates(const TokenSubset& train, const TokenSubset* validation,
                                size_t most_examples, const CheckProgress& progress);

struct OverlapOptions {
  int64_t ngram = 13;     // tokens
  int64_t window = 1024;  // longer validation documents are judged in pieces of so many tokens
  double share = 0.5;     // of a window's n-grams, in the training data: it is contaminated
  size_t most_examples = 5;
  // Fingerprints of so many are kept at most, in a table of at most 32 bytes for each: 256 MiB.
  // Beyond it, n-grams are sampled by their hash: the same ones on both sides.
  int64_t most_ngrams = int64_t{1} << 23;
};

struct OverlapReport {
  int64_t windows = 0;        // with at least one n-gram that was looked for
  int64_t short_windows = 0;  // without
  int64_t contaminated = 0;
  double mean_share = 0;
  int64_t ngrams = 0, train_ngrams = 0;  // looked for, and looked through
  int64_t sampling = 1;                  // one n-gram in so many was looked for
  // The expected number of n-grams that were found by accident: their 64-bit fingerprint is that of
  // other tokens.
  double expected_accidents = 0;
  struct Window {
    int64_t document = 0, first_token = 0, tokens = 0;  // first_token counts within the document
    int64_t ngrams = 0, found = 0;
    double share() const { return static_cast<double>(found) / static_cast<double>(ngrams); }
  };
  std::vector<Window> worst;  // the contaminated ones, the worst first
};

OverlapReport find_overlap(const TokenSubset& train, const TokenSubset& validation,
                           const OverlapOptions& options, const CheckProgress& progress);

// Where documents of a source lie, for people: "a.jsonl at byte 120", "b.tokens, document 3"; of a
// pipe, which cannot be read again, "document 3 of the files". `dataset` is what was opened of it.
std::vector<std::string> locate_documents(const DataSource& source, const Dataset& dataset,
                                          const std::vector<int64_t>& documents);

}  // namespace onefold

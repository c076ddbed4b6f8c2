#include "data/contamination.h"

#include <algorithm>
#include <bit>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "data/byte_input.h"

namespace onefold {
namespace {

uint64_t mixed(uint64_t x) {  // the finalizer of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t kBase = 0x9E3779B97F4A7C15u;

// The hash of the last n tokens, one multiplication for each that comes: a polynomial in kBase.
class RollingHash {
 public:
  explicit RollingHash(int64_t n) : window_(static_cast<size_t>(n)) {
    for (int64_t i = 0; i < n; ++i) first_weight_ *= kBase;
  }
  void restart() { count_ = 0, sum_ = 0; }
  // Whether there are n tokens by now.
  bool push(int32_t token) {
    const uint64_t value = mixed(static_cast<uint64_t>(token) + 1);
    uint64_t& oldest = window_[count_ % window_.size()];
    sum_ = sum_ * kBase + value;
    if (count_ >= window_.size()) sum_ -= oldest * first_weight_;
    oldest = value;
    return ++count_ >= window_.size();
  }
  uint64_t hash() const { return mixed(sum_); }

 private:
  std::vector<uint64_t> window_;
  size_t count_ = 0;
  uint64_t sum_ = 0, first_weight_ = 1;
};

// The documents of a subset, so many tokens at a time: visit(document, first token within it,
// tokens). The end-of-text that closes a document is not part of it.
using VisitTokens = std::function<void(int64_t document, int64_t first, std::span<const int32_t>)>;

void for_each_token_run(const TokenSubset& subset, const VisitTokens& visit) {
  constexpr int64_t kRunTokens = 1 << 16;
  const Dataset& data = subset.dataset;
  std::vector<int32_t> tokens;
  int64_t begin = subset.range.begin;
  while (begin < subset.range.end) {
    const int64_t document = data.document_of(begin);
    const int64_t end = std::min(data.document_start(document + 1), subset.range.end);
    for (int64_t at = begin; at < end; at += kRunTokens) {
      tokens.resize(static_cast<size_t>(std::min(kRunTokens, end - at)));
      data.read(at, tokens);
      const bool closes = at + kRunTokens >= end && tokens.back() == data.end_of_text();
      visit(document, at - begin, std::span(tokens).first(tokens.size() - (closes ? 1 : 0)));
    }
    begin = end;
  }
}

// visit(document, first token of the n-gram within it, hash).
template <typename Visit>
void for_each_ngram(const TokenSubset& subset, int64_t n, const Visit& visit,
                    const std::function<void(int64_t)>& done = nullptr) {
  RollingHash rolling(n);
  int64_t read = 0;
  for_each_token_run(subset, [&](int64_t document, int64_t first, std::span<const int32_t> tokens) {
    if (first == 0) rolling.restart();
    for (size_t i = 0; i < tokens.size(); ++i)
      if (rolling.push(tokens[i]))
        visit(document, first + static_cast<int64_t>(i) + 1 - n, rolling.hash());
    read += static_cast<int64_t>(tokens.size());
    if (done) done(read);
  });
}

// Fingerprints of n-grams, and whether each was found in the training data. Open addressing, at
// most half full.
class NgramTable {
 public:
  explicit NgramTable(size_t most)
      : slots_(std::bit_ceil(2 * most + 2)), found_(slots_.size()), mask_(slots_.size() - 1) {}

  void insert(uint64_t hash) {
    uint64_t& slot = slots_[slot_of(hash)];
    if (slot != hash) slot = hash, ++size_;
  }
  void mark_found(uint64_t hash) {
    const size_t at = slot_of(hash);
    if (slots_[at] == hash) found_[at] = true;
  }
  bool found(uint64_t hash) const { return found_[slot_of(hash)]; }
  int64_t size() const { return size_; }

 private:
  // Where the hash is, or the empty slot where it would be. 0 marks an empty slot.
  size_t slot_of(uint64_t hash) const {
    size_t at = (hash >> 20) & mask_;  // the low bits are the same for all that are sampled
    while (slots_[at] != 0 && slots_[at] != hash) at = (at + 1) & mask_;
    return at;
  }

  std::vector<uint64_t> slots_;
  std::vector<bool> found_;
  size_t mask_;
  int64_t size_ = 0;
};

struct HashedDocument {
  uint64_t hash;
  int64_t number;  // training documents first, then validation
};

void hash_documents(const TokenSubset& subset, int64_t offset, std::vector<HashedDocument>& hashed,
                    const std::function<void(int64_t)>& done) {
  int64_t read = 0;
  for_each_token_run(subset, [&](int64_t document, int64_t first, std::span<const int32_t> tokens) {
    if (first == 0) hashed.push_back({0, offset + document});
    uint64_t& hash = hashed.back().hash;
    for (const int32_t token : tokens)
      hash = mixed(hash * kBase + static_cast<uint64_t>(token) + 1);
    read += static_cast<int64_t>(tokens.size());
    done(read);
  });
}

std::vector<int32_t> tokens_of(const TokenSubset& subset, int64_t document) {
  const int64_t begin = std::max(subset.dataset.document_start(document), subset.range.begin);
  const int64_t end = std::min(subset.dataset.document_start(document + 1), subset.range.end);
  std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
  subset.dataset.read(begin, tokens);
  if (tokens.back() == subset.dataset.end_of_text()) tokens.pop_back();
  return tokens;
}

std::function<void(int64_t)> shifted(const CheckProgress& progress, int64_t before, int64_t all) {
  return [&progress, before, all](int64_t done) {
    if (progress) progress(before + done, all);
  };
}

}  // namespace

DuplicateReport find_duplicates(const TokenSubset& train, const TokenSubset* validation,
                                size_t most_examples, const CheckProgress& progress) {
  const int64_t offset = train.dataset.documents();
  const int64_t all = train.range.tokens() + (validation ? validation->range.tokens() : 0);
  std::vector<HashedDocument> hashed;
  hash_documents(train, 0, hashed, shifted(progress, 0, all));
  DuplicateReport report;
  report.train_documents = static_cast<int64_t>(hashed.size());
  if (validation)
    hash_documents(*validation, offset, hashed, shifted(progress, train.range.tokens(), all));
  report.validation_documents = static_cast<int64_t>(hashed.size()) - report.train_documents;
  std::sort(hashed.begin(), hashed.end(), [](const HashedDocument& a, const HashedDocument& b) {
    return std::pair(a.hash, a.number) < std::pair(b.hash, b.number);
  });

  const auto place = [&](int64_t number) {
    return number < offset ? DocumentPlace{false, number} : DocumentPlace{true, number - offset};
  };
  const auto read = [&](int64_t number) {
    const DocumentPlace at = place(number);
    return tokens_of(at.validation ? *validation : train, at.document);
  };
  std::vector<DuplicateReport::Pair> shared, others;
  for (size_t first = 0, end = 0; first < hashed.size(); first = end) {
    while (end < hashed.size() && hashed[end].hash == hashed[first].hash) ++end;
    if (end - first < 2) continue;
    const DocumentPlace original = place(hashed[first].number);
    const std::vector<int32_t> tokens = read(hashed[first].number);
    for (size_t i = first + 1; i < end; ++i) {
      if (read(hashed[i].number) != tokens) continue;  // a collision of 64-bit hashes
      const DocumentPlace copy = place(hashed[i].number);
      const bool across = copy.validation && !original.validation;
      ++(across ? report.shared : copy.validation ? report.in_validation : report.in_train);
      std::vector<DuplicateReport::Pair>& list = across ? shared : others;
      if (list.size() < most_examples) list.push_back({copy, original});
    }
  }
  report.examples = std::move(shared);
  report.examples.insert(report.examples.end(), others.begin(), others.end());
  if (report.examples.size() > most_examples) report.examples.resize(most_examples);
  return report;
}

OverlapReport find_overlap(const TokenSubset& train, const TokenSubset& validation,
                           const OverlapOptions& options, const CheckProgress& progress) {
  OverlapReport report;
  while (validation.range.tokens() / report.sampling > options.most_ngrams) report.sampling *= 2;
  const auto sampled = [mask = static_cast<uint64_t>(report.sampling - 1)](uint64_t hash) {
    return (hash & mask) == 0 && hash != 0;
  };
  // An eighth above the expected number, far more than samples by hash vary.
  const int64_t expected = validation.range.tokens() / report.sampling;
  NgramTable table(static_cast<size_t>(expected + expected / 8 + 1024));
  for_each_ngram(validation, options.ngram, [&](int64_t, int64_t, uint64_t hash) {
    if (sampled(hash)) table.insert(hash);
  });
  for_each_ngram(
      train, options.ngram,
      [&](int64_t, int64_t, uint64_t hash) {
        ++report.train_ngrams;
        if (sampled(hash)) table.mark_found(hash);
      },
      shifted(progress, 0, train.range.tokens()));

  const int64_t window = std::max(options.window, options.ngram);
  std::vector<OverlapReport::Window> contaminated;
  OverlapReport::Window now{.document = -1};
  double shares = 0;
  const auto close = [&] {
    if (now.document < 0) return;
    if (now.ngrams == 0) {
      ++report.short_windows;
      return;
    }
    ++report.windows;
    shares += now.share();
    if (now.share() >= options.share) contaminated.push_back(now);
  };
  const auto enter = [&](int64_t document, int64_t at, int64_t tokens) {
    if (document != now.document || at >= now.first_token + window) {
      close();
      now = {.document = document, .first_token = at / window * window};
    }
    now.tokens = std::max(now.tokens, at + tokens - now.first_token);
  };
  RollingHash rolling(options.ngram);
  for_each_token_run(
      validation, [&](int64_t document, int64_t first, std::span<const int32_t> tokens) {
        if (first == 0) rolling.restart();
        for (size_t i = 0; i < tokens.size(); ++i) {
          const int64_t at = first + static_cast<int64_t>(i);
          enter(document, at, 1);
          const bool whole = rolling.push(tokens[i]);
          if (!whole || at + 1 - options.ngram < now.first_token || !sampled(rolling.hash()))
            continue;
          ++now.ngrams;
          now.found += table.found(rolling.hash()) ? 1 : 0;
        }
      });
  close();
  report.ngrams = table.size();
  report.contaminated = static_cast<int64_t>(contaminated.size());
  report.mean_share = report.windows > 0 ? shares / static_cast<double>(report.windows) : 0;
  report.expected_accidents =
      static_cast<double>(report.ngrams) * static_cast<double>(report.train_ngrams) * 0x1p-64;
  std::stable_sort(contaminated.begin(), contaminated.end(),
                   [](const auto& a, const auto& b) { return a.share() > b.share(); });
  if (contaminated.size() > options.most_examples) contaminated.resize(options.most_examples);
  report.worst = std::move(contaminated);
  return report;
}

std::vector<std::string> locate_documents(const DataSource& given, const Dataset& dataset,
                                          const std::vector<int64_t>& documents) {
  const DataSource source = expanded(given);
  std::map<int64_t, std::string> places;
  for (const int64_t document : documents)
    places[document] = fmt::format("document {} of the files", document);
  if (source.format == DataFormat::kTokens) {
    for (auto& [document, place] : places) {
      const auto [file, number] = dataset.file_of_document(document);
      place = fmt::format("{}, document {}", file, number);
    }
  } else if (std::none_of(source.paths.begin(), source.paths.end(), is_read_once)) {
    int64_t number = 0;
    for_each_document(source, [&](const Document& document) {
      if (!document.begins) return;
      const auto found = places.find(number++);
      if (found == places.end()) return;
      found->second = fmt::format("{} at byte {}", source.paths[document.file], document.position);
    });
  }
  std::vector<std::string> result;
  for (const int64_t document : documents) result.push_back(places[document]);
  return result;
}

}  // namespace onefold

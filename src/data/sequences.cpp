#include "data/sequences.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace onefold {

DocumentMode parse_document_mode(std::string_view name, std::string_view what) {
  std::vector<std::string> choices;
  for (const DocumentMode mode :
       {DocumentMode::kPacked, DocumentMode::kIsolated, DocumentMode::kSeparated}) {
    if (name == document_mode_name(mode)) return mode;
    choices.emplace_back(document_mode_name(mode));
  }
  user_error("{}: \"{}\" is none of {}{}", what, name, join(choices, ", "),
             did_you_mean(name, choices));
}

const char* document_mode_name(DocumentMode mode) {
  static constexpr const char* kNames[] = {"packed", "isolated", "separated"};
  return kNames[static_cast<int>(mode)];
}

SequenceSet::SequenceSet(Dataset dataset, TokenRange range, int64_t length, DocumentMode mode,
                         std::string what, bool keep_tail)
    : dataset_(std::move(dataset)), range_(range), length_(length), mode_(mode) {
  if (length < 1) user_error("sequence_length is {}; it must be at least 1", length);
  require(range.begin >= 0 && range.begin <= range.end && range.end <= dataset_.tokens(),
          "tokens {} to {} of {}", range.begin, range.end, dataset_.tokens());
  if (mode != DocumentMode::kSeparated) {
    const int64_t predicted = std::max<int64_t>(range.tokens() - 1, 0);
    count_ = predicted / length + (keep_tail && predicted % length > 0 ? 1 : 0);
    targets_ = std::min(count_ * length, predicted);
    unused_ = count_ > 0 ? range.tokens() - 1 - targets_ : range.tokens();
    if (mode == DocumentMode::kIsolated)
      for_each_boundary(range.begin + 1, range.begin + targets_ + 1, [&](int64_t) { --targets_; });
    if (count_ > 0) return;
    if (keep_tail)
      user_error("the {} has {}; at least two tokens are needed: one, and one to predict from it",
                 what, range.tokens() == 1 ? "one token" : "no token");
    user_error(
        "the {} has {} tokens, and one sequence of {} needs {}; give more text or lower "
        "sequence_length",
        what, range.tokens(), length, length + 1);
  }
  index_documents();
  if (count_ > 0) return;
  user_error(
      "the {} has {} tokens, and no document of two tokens or more, which is what one sequence "
      "needs",
      what, range.tokens());
}

// Calls visit(token) for each document's first token in [begin, end).
template <typename Visit>
void SequenceSet::for_each_boundary(int64_t begin, int64_t end, const Visit& visit) const {
  if (begin >= end) return;
  for (int64_t document = dataset_.document_of(begin); document < dataset_.documents();
       ++document) {
    const int64_t start = dataset_.document_start(document);
    if (start >= end) return;
    if (start >= begin) visit(start);
  }
}

TokenRange SequenceSet::document_range(int64_t document) const {
  return {std::max(dataset_.document_start(document), range_.begin),
          std::min(dataset_.document_start(document + 1), range_.end)};
}

int64_t SequenceSet::sequences_of(int64_t document) const {
  return (document_range(document).tokens() - 1 + length_ - 1) /
         length_;  // the last token has no target
}

void SequenceSet::index_documents() {
  if (range_.tokens() == 0) return;
  first_document_ = dataset_.document_of(range_.begin);
  const int64_t last = dataset_.document_of(range_.end - 1);
  first_sequence_.reserve(static_cast<size_t>(last - first_document_ + 2));
  for (int64_t document = first_document_; document <= last; ++document) {
    first_sequence_.push_back(count_);
    count_ += sequences_of(document);
    targets_ += document_range(document).tokens() - 1;
  }
  first_sequence_.push_back(count_);
}

void SequenceSet::get(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  require(index >= 0 && index < count_, "sequence {} of {}", index, count_);
  require(static_cast<int64_t>(tokens.size()) == length_ &&
              static_cast<int64_t>(targets.size()) == length_,
          "room for {} tokens and {} targets, for sequences of {}", tokens.size(), targets.size(),
          length_);
  if (mode_ == DocumentMode::kSeparated) return get_separated(index, tokens, targets);
  const int64_t begin = range_.begin + index * length_;
  const int64_t count = read_row(begin, range_.end - 1, tokens, targets);
  if (mode_ == DocumentMode::kIsolated)
    for_each_boundary(begin + 1, begin + count + 1, [&](int64_t token) {
      targets[static_cast<size_t>(token - begin - 1)] = kIgnoredTarget;
    });
}

void SequenceSet::get_starts(int64_t index, std::span<int32_t> starts) const {
  require(mode_ == DocumentMode::kIsolated && static_cast<int64_t>(starts.size()) == length_,
          "the starts of {} tokens, for sequences of {}", starts.size(), length_);
  const int64_t begin = range_.begin + index * length_;
  std::fill(starts.begin(), starts.end(), 0);
  for_each_boundary(begin, std::min(begin + length_, range_.end - 1), [&](int64_t token) {
    const auto at = static_cast<int32_t>(token - begin);
    std::fill(starts.begin() + at, starts.end(), at);
  });
}

void SequenceSet::get_separated(int64_t index, std::span<int32_t> tokens,
                                std::span<int32_t> targets) const {
  // The last document whose first sequence is not after `index`: documents without sequences share
  // their successor's.
  const auto after = std::upper_bound(first_sequence_.begin(), first_sequence_.end(), index);
  const int64_t nth = after - first_sequence_.begin() - 1;
  const TokenRange document = document_range(first_document_ + nth);
  const int64_t begin =
      document.begin + (index - first_sequence_[static_cast<size_t>(nth)]) * length_;
  read_row(begin, document.end - 1, tokens, targets);
}

// As many of the tokens [begin, end) as a row holds, each with the one after it; then padding.
int64_t SequenceSet::read_row(int64_t begin, int64_t end, std::span<int32_t> tokens,
                              std::span<int32_t> targets) const {
  const int64_t count = std::min(length_, end - begin);
  dataset_.read(begin, tokens.first(static_cast<size_t>(count)));
  dataset_.read(begin + 1, targets.first(static_cast<size_t>(count)));
  std::fill(tokens.begin() + count, tokens.end(), std::max(dataset_.end_of_text(), 0));
  std::fill(targets.begin() + count, targets.end(), kIgnoredTarget);
  return count;
}

}  // namespace onefold

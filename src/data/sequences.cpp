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
  if (mode == DocumentMode::kSeparated)
    index_documents(what);
  else
    index_stretches(what, keep_tail);
  leave_out_those_without_target(what);
}

void SequenceSet::index_stretches(const std::string& what, bool keep_tail) {
  const int64_t predicted = std::max<int64_t>(range_.tokens() - 1, 0);
  count_ = predicted / length_ + (keep_tail && predicted % length_ > 0 ? 1 : 0);
  if (count_ == 0 && keep_tail)
    user_error("the {} has {}; at least two tokens are needed: one, and one to predict from it",
               what, range_.tokens() == 1 ? "one token" : "no token");
  if (count_ == 0)
    user_error(
        "the {} has {} tokens, and one sequence of {} needs {}; give more text or lower "
        "sequence_length",
        what, range_.tokens(), length_, length_ + 1);
  const int64_t used = std::min(count_ * length_, predicted);
  const TokenRange targets{range_.begin + 1, range_.begin + used + 1};
  unused_ = predicted - used;
  targets_ = dataset_.count_targets(targets);
  if (mode_ == DocumentMode::kIsolated)
    for_each_boundary(targets.begin, targets.end,
                      [&](int64_t token) { targets_ -= dataset_.is_target(token) ? 1 : 0; });
}

// Whether there may be sequences without a target: of isolated documents, where as many of one
// token as the shortest sequence has targets follow each other.
bool SequenceSet::some_lack_targets() const {
  if (dataset_.masked()) return true;
  if (mode_ != DocumentMode::kIsolated) return false;
  const int64_t predicted = range_.tokens() - 1;
  const int64_t shortest = std::min(length_, predicted - (count_ - 1) * length_);
  int64_t longest = 0, beginnings = 0, before = -1;
  for_each_boundary(range_.begin + 1, range_.end, [&](int64_t token) {
    beginnings = token == before + 1 ? beginnings + 1 : 1;
    before = token;
    longest = std::max(longest, beginnings);
  });
  return longest >= shortest;
}

// A step on nothing but such sequences would have no loss.
void SequenceSet::leave_out_those_without_target(const std::string& what) {
  if (!some_lack_targets()) return;
  std::vector<int32_t> tokens(static_cast<size_t>(length_)), targets = tokens;
  for (int64_t number = 0; number < count_; ++number) {
    get_any(number, tokens, targets);
    if (std::any_of(targets.begin(), targets.end(),
                    [](int32_t target) { return target != kIgnoredTarget; }))
      kept_.push_back(number);
  }
  if (kept_.empty())
    user_error("the {} has nothing to train on: {}", what,
               dataset_.masked() ? "no token of it is an answer's"
                                 : "its documents are isolated, and none has a second token");
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

void SequenceSet::index_documents(const std::string& what) {
  first_document_ = range_.tokens() == 0 ? 0 : dataset_.document_of(range_.begin);
  const int64_t last = range_.tokens() == 0 ? -1 : dataset_.document_of(range_.end - 1);
  first_sequence_.reserve(static_cast<size_t>(last - first_document_ + 2));
  for (int64_t document = first_document_; document <= last; ++document) {
    first_sequence_.push_back(count_);
    count_ += sequences_of(document);
    const TokenRange range = document_range(document);
    targets_ += dataset_.count_targets({std::min(range.begin + 1, range.end), range.end});
  }
  first_sequence_.push_back(count_);
  if (count_ == 0)
    user_error(
        "the {} has {} tokens, and no document of two tokens or more, which is what one sequence "
        "needs",
        what, range_.tokens());
}

void SequenceSet::get(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  require(index >= 0 && index < count(), "sequence {} of {}", index, count());
  require(static_cast<int64_t>(tokens.size()) == length_ &&
              static_cast<int64_t>(targets.size()) == length_,
          "room for {} tokens and {} targets, for sequences of {}", tokens.size(), targets.size(),
          length_);
  get_any(kept_.empty() ? index : kept_[static_cast<size_t>(index)], tokens, targets);
}

void SequenceSet::get_any(int64_t number, std::span<int32_t> tokens,
                          std::span<int32_t> targets) const {
  if (mode_ == DocumentMode::kSeparated) return get_separated(number, tokens, targets);
  const int64_t begin = range_.begin + number * length_;
  const int64_t count = read_row(begin, range_.end - 1, tokens, targets);
  if (mode_ == DocumentMode::kIsolated)
    for_each_boundary(begin + 1, begin + count + 1, [&](int64_t token) {
      targets[static_cast<size_t>(token - begin - 1)] = kIgnoredTarget;
    });
}

void SequenceSet::get_starts(int64_t index, std::span<int32_t> starts) const {
  require(mode_ == DocumentMode::kIsolated && static_cast<int64_t>(starts.size()) == length_,
          "the starts of {} tokens, for sequences of {}", starts.size(), length_);
  const int64_t number = kept_.empty() ? index : kept_[static_cast<size_t>(index)];
  const int64_t begin = range_.begin + number * length_;
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
  dataset_.read_targets(begin + 1, targets.first(static_cast<size_t>(count)));
  std::fill(tokens.begin() + count, tokens.end(), std::max(dataset_.end_of_text(), 0));
  std::fill(targets.begin() + count, targets.end(), kIgnoredTarget);
  return count;
}

SequenceMix::SequenceMix(std::vector<SequenceSet> sets) : sets_(std::move(sets)), firsts_{0} {
  require(!sets_.empty(), "a mix of no sequences");
  for (const SequenceSet& set : sets_) {
    require(set.length() == length() && set.mode() == mode(), "a mix of unlike sequences");
    firsts_.push_back(firsts_.back() + set.count());
  }
}

int64_t SequenceMix::targets() const {
  int64_t sum = 0;
  for (const SequenceSet& set : sets_) sum += set.targets();
  return sum;
}

int64_t SequenceMix::unused_tokens() const {
  int64_t sum = 0;
  for (const SequenceSet& set : sets_) sum += set.unused_tokens();
  return sum;
}

size_t SequenceMix::set_of(int64_t index) const {
  require(index >= 0 && index < count(), "sequence {} of {}", index, count());
  return static_cast<size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), index) -
                             firsts_.begin() - 1);
}

void SequenceMix::get(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  const size_t set = set_of(index);
  sets_[set].get(index - firsts_[set], tokens, targets);
}

void SequenceMix::get_starts(int64_t index, std::span<int32_t> starts) const {
  const size_t set = set_of(index);
  sets_[set].get_starts(index - firsts_[set], starts);
}

}  // namespace onefold

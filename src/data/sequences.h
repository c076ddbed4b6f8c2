// Fixed-length training sequences cut from a dataset. A sequence is `length` input tokens and, for
// each, the token that follows it: the target. A target of -1 is not trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace onefold {

inline constexpr int32_t kIgnoredTarget = -1;

// packed: the documents, one after the other, are cut every `length` tokens; no token is wasted on
// padding. isolated: cut likewise, but tokens see only their own document, whose positions count
// from its beginning, and none is asked to predict another document. separated: a sequence holds
// tokens of one document only (long ones take several), and is padded to `length`.
enum class DocumentMode { kPacked, kIsolated, kSeparated };
DocumentMode parse_document_mode(std::string_view name, std::string_view what);
const char* document_mode_name(DocumentMode mode);

class SequenceSet {
 public:
  // `what` names the data in errors ("training data", "validation data"). Throws UserError if there
  // is not one sequence. With `keep_tail` the last tokens, which fill no sequence, are one too,
  // padded: every token that has one before it is a target.
  SequenceSet(Dataset dataset, TokenRange range, int64_t length, DocumentMode mode,
              std::string what, bool keep_tail = false);

  // Sequences; those without a target are left out: all in them is masked, or all documents in them
  // are isolated and of one token.
  int64_t count() const { return kept_.empty() ? count_ : static_cast<int64_t>(kept_.size()); }
  int64_t length() const { return length_; }
  // Targets that are trained on in one pass over all sequences. Packed: every token but the first,
  // and but those of the last stretch that fills no sequence, unless it is kept; isolated: less
  // those that begin a document. Separated: every token but the first of each document. None is a
  // target twice.
  int64_t targets() const { return targets_; }
  // Tokens at the end that fill no sequence (packed), fewer than `length`.
  int64_t unused_tokens() const { return unused_; }

  // Sequence `index` of count(); both spans have `length` elements. Padding is end-of-text (0 if
  // there is none) with target -1.
  void get(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  // Isolated: where in sequence `index` the document of each of its tokens begins; `length`
  // elements.
  void get_starts(int64_t index, std::span<int32_t> starts) const;
  DocumentMode mode() const { return mode_; }

 private:
  TokenRange document_range(int64_t document) const;  // clipped to range_
  int64_t sequences_of(int64_t document) const;
  void index_stretches(const std::string& what, bool keep_tail);  // packed, isolated
  void index_documents(const std::string& what);                  // separated
  template <typename Visit>
  void for_each_boundary(int64_t begin, int64_t end, const Visit& visit) const;
  int64_t read_row(int64_t begin, int64_t end, std::span<int32_t> tokens,
                   std::span<int32_t> targets) const;
  void get_any(int64_t number, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  bool some_lack_targets() const;
  void leave_out_those_without_target(const std::string& what);
  void get_separated(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const;

  Dataset dataset_;
  TokenRange range_;
  int64_t length_;
  DocumentMode mode_;
  int64_t count_ = 0, targets_ = 0, unused_ = 0;
  int64_t first_document_ = 0;
  std::vector<int64_t>
      first_sequence_;  // separated: the first sequence of each document, and count() at the end
  std::vector<int64_t> kept_;  // masked data: the sequences with a target; empty: all
};

// Sequences of several sets, one after the other.
class SequenceMix {
 public:
  SequenceMix(SequenceSet set) : SequenceMix(std::vector<SequenceSet>{std::move(set)}) {}
  explicit SequenceMix(std::vector<SequenceSet> sets);

  const std::vector<SequenceSet>& sets() const { return sets_; }
  int64_t count() const { return firsts_.back(); }
  int64_t length() const { return sets_[0].length(); }
  int64_t targets() const;
  int64_t unused_tokens() const;
  DocumentMode mode() const { return sets_[0].mode(); }
  // As SequenceSet's.
  void get(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  void get_starts(int64_t index, std::span<int32_t> starts) const;

 private:
  size_t set_of(int64_t index) const;

  std::vector<SequenceSet> sets_;
  std::vector<int64_t> firsts_;  // the number of each set's first sequence, and count()
};

}  // namespace onefold

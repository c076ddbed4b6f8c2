#include "data/bpe_merger.h"

#include <algorithm>

#include "base/error.h"

namespace onefold {
namespace {

constexpr int32_t kEdge = INT32_MIN;        // between two words
constexpr int32_t kInside = INT32_MIN + 1;  // once the first byte of a token, now within another
constexpr size_t kBytes = 256;

uint64_t start_of(std::string_view bytes) {
  uint64_t start = 0;
  for (size_t i = 0; i < 8; ++i)
    start = start << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0);
  return start;
}

}  // namespace

BpeMerger::BpeMerger(std::vector<Word> words, std::vector<std::string> tokens, int64_t least)
    : least_(least), heap_(Later{this}) {
  for (std::string& token : tokens) {
    ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    add_token(std::move(token));
  }
  lay_out(words);
  count_first_pairs();
  for (const auto& [key, seen] : pairs_) {
    const Pair pair{static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFFu)};
    if (seen.count >= least_) heap_.push({seen.count, pair});
  }
}

void BpeMerger::lay_out(std::vector<Word>& words) {
  std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) {
    return a.count != b.count ? a.count > b.count : a.bytes < b.bytes;
  });
  size_t slots = 1;
  for (const Word& word : words) slots += word.bytes.size() + 1;
  if (slots > UINT32_MAX)
    user_error(
        "the text has {} bytes of distinct words, more than a vocabulary is learnt from at once; "
        "give less text",
        slots);
  slots_.reserve(slots);
  slots_.push_back(kEdge);
  for (const Word& word : words) {
    if (counts_.empty() || counts_.back().second != word.count)
      counts_.emplace_back(static_cast<uint32_t>(slots_.size()), word.count);
    for (const unsigned char b : word.bytes) slots_.push_back(b);
    slots_.push_back(kEdge);
  }
}

// There are few pairs of bytes and very many places: counted first, so that each list has its size.
void BpeMerger::count_first_pairs() {
  std::vector<uint32_t> places(kBytes * kBytes);
  const auto pair_at = [&](size_t place) {
    const int32_t left = slots_[place], right = slots_[place + 1];
    return left < 0 || right < 0 ? SIZE_MAX
                                 : static_cast<size_t>(left) * kBytes + static_cast<size_t>(right);
  };
  for (size_t place = 0; place + 1 < slots_.size(); ++place)
    if (const size_t pair = pair_at(place); pair != SIZE_MAX) ++places[pair];
  std::vector<Seen*> lists(places.size());
  for (size_t pair = 0; pair < places.size(); ++pair) {
    if (places[pair] == 0) continue;
    lists[pair] =
        &pairs_[key_of({static_cast<int32_t>(pair / kBytes), static_cast<int32_t>(pair % kBytes)})];
    lists[pair]->places.reserve(places[pair]);
  }
  for (size_t place = 0; place + 1 < slots_.size(); ++place) {
    const size_t pair = pair_at(place);
    if (pair == SIZE_MAX) continue;
    lists[pair]->places.push_back(static_cast<uint32_t>(place));
    lists[pair]->count += count_at(static_cast<uint32_t>(place));
  }
}

int64_t BpeMerger::count_at(uint32_t place) const {
  if (place >= counts_.back().first) return counts_.back().second;  // most words are rare
  const auto after = std::upper_bound(
      counts_.begin(), counts_.end(), place,
      [](uint32_t p, const std::pair<uint32_t, int64_t>& from) { return p < from.first; });
  return std::prev(after)->second;
}

void BpeMerger::add_token(std::string bytes) {
  lengths_.push_back(static_cast<int32_t>(bytes.size()));
  starts_.push_back(start_of(bytes));
  tokens_.push_back(std::move(bytes));
}

// Two merges can spell the same token ("a"+"bc", "ab"+"c"); it keeps its first id.
int32_t BpeMerger::token_for(const std::string& bytes) {
  const auto [found, is_new] = ids_.emplace(bytes, static_cast<int32_t>(tokens_.size()));
  if (is_new) add_token(bytes);
  return found->second;
}

int BpeMerger::order(int32_t a, int32_t b) const {
  const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
  if (starts_[i] != starts_[j]) return starts_[i] < starts_[j] ? -1 : 1;
  return tokens_[i].compare(tokens_[j]);
}

bool BpeMerger::Later::operator()(const Entry& a, const Entry& b) const {
  if (a.count != b.count) return a.count < b.count;
  if (a.pair.left != b.pair.left) return merger->order(a.pair.left, b.pair.left) > 0;
  return merger->order(a.pair.right, b.pair.right) > 0;
}

std::pair<BpeMerger::Pair, int64_t> BpeMerger::top() {
  while (!heap_.empty()) {
    const Entry entry = heap_.top();
    const auto found = pairs_.find(key_of(entry.pair));
    const int64_t count = found == pairs_.end() ? 0 : found->second.count;
    if (count == entry.count) return {entry.pair, count};
    // The count has changed since. A rise was pushed when it happened; a fall is put back here.
    heap_.pop();
    if (count >= least_ && count < entry.count) heap_.push({count, entry.pair});
  }
  return {{0, 0}, 0};
}

// `by` is negative where the pair at `place` is gone.
void BpeMerger::change(Pair pair, int64_t by, uint32_t place) {
  const auto found = pairs_.try_emplace(key_of(pair)).first;
  Seen& seen = found->second;
  seen.count += by;
  if (by < 0) {
    if (seen.count == 0 && !seen.risen) pairs_.erase(found);
    return;
  }
  seen.places.push_back(place);
  if (!std::exchange(seen.risen, true)) risen_.push_back(pair);
}

int32_t BpeMerger::merge(Pair pair) {
  const int32_t merged =
      token_for(tokens_[static_cast<size_t>(pair.left)] + tokens_[static_cast<size_t>(pair.right)]);
  std::vector<uint32_t> places = std::move(pairs_[key_of(pair)].places);
  // From left to right, for pairs that overlap.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  const int32_t left_length = length(pair.left), right_length = length(pair.right);
  for (const uint32_t place : places) {
    if (slots_[place] != pair.left) continue;
    const size_t right = place + static_cast<size_t>(left_length);
    if (slots_[right] != pair.right) continue;
    const size_t end = right + static_cast<size_t>(right_length);
    const int64_t count = count_at(place);

    const int32_t before = slots_[place - 1];  // a token of one byte, or the length of a longer one
    if (before != kEdge) {
      const size_t start = before >= 0 ? place - 1 : place - static_cast<size_t>(-before);
      const int32_t neighbour = slots_[start];
      change({neighbour, pair.left}, -count, 0);
      change({neighbour, merged}, count, static_cast<uint32_t>(start));
    }
    if (slots_[end] != kEdge) {
      change({pair.right, slots_[end]}, -count, 0);
      change({merged, slots_[end]}, count, place);
    }
    slots_[right] = kInside;
    slots_[place] = merged;
    slots_[end - 1] = -(left_length + right_length);
  }
  pairs_.erase(key_of(pair));
  for (const Pair risen : risen_) {
    const auto found = pairs_.find(key_of(risen));
    if (found == pairs_.end()) continue;
    found->second.risen = false;
    if (found->second.count >= least_) heap_.push({found->second.count, risen});
    if (found->second.count == 0) pairs_.erase(found);
  }
  risen_.clear();
  return merged;
}

}  // namespace onefold

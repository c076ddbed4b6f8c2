#include "tensor/ledger.h"

#include <algorithm>

#include "base/text.h"

namespace onefold {
namespace {

int64_t rounded(int64_t bytes) {
  return (bytes + Ledger::kAlignment - 1) / Ledger::kAlignment * Ledger::kAlignment;
}

}  // namespace

const char* tier_name(Tier tier) {
  static constexpr const char* kNames[kTiers] = {"device", "host", "disk"};
  return kNames[static_cast<int>(tier)];
}

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[kKinds] = {
      "parameters", "gradients", "optimizer", "activations", "workspace", "communication", "data"};
  return kNames[static_cast<int>(kind)];
}

Buffer::~Buffer() {
  if (ledger_) ledger_->give_back(*this);
}

Ledger::Ledger(const Tiers& tiers) {
  for (size_t t = 0; t < kTiers; ++t) books_[t].setup = tiers[t];
  moment("start");
}

Ledger::~Ledger() {
  for (Books& books : books_)
    for (auto& [block, bytes] : books.spare) books.setup.source->drop(block, bytes);
}

void Ledger::moment(Moment text) {
  std::lock_guard lock(mutex_);
  moment_ = std::move(text);
}

void Ledger::moment(std::string text) {
  moment([text = std::move(text)] { return text; });
}

Buffer Ledger::allocate(Kind kind, int64_t bytes, std::string_view what, Tier tier) {
  require(bytes >= 0, "allocation of {} bytes for {}", bytes, what);
  std::lock_guard lock(mutex_);
  Books& own = books(tier);
  require(own.setup.source != nullptr, "{} for {} on the {} tier, which this device lacks", bytes,
          what, tier_name(tier));
  bytes = own.setup.source->block_bytes(bytes);
  if (bytes > own.setup.limit_bytes - own.total)
    user_error(
        "out of {}memory: {} for {} ({}) would pass the limit of {}: {} are held, at \"{}\". Lower "
        "the micro-batch or the sequence length, or raise the limit (run.memory)",
        tier == Tier::device ? "" : fmt::format("{} ", tier_name(tier)), format_bytes(bytes), what,
        kind_name(kind), format_bytes(own.setup.limit_bytes), format_bytes(own.total), moment_());
  Buffer buffer;
  if (bytes > 0) buffer.data_ = take(own, kind, bytes);
  buffer.bytes_ = bytes;
  buffer.ledger_ = this;
  buffer.tier_ = tier;
  buffer.kind_ = kind;
  const auto k = static_cast<size_t>(kind);
  own.held[k] += bytes;
  own.own_peak[k] = std::max(own.own_peak[k], own.held[k]);
  own.total += bytes;
  if (own.total > own.peak) {
    own.peak = own.total;
    own.at_peak = own.held;
    own.peak_moment = moment_;
  }
  return buffer;
}

// Part of the smallest spare that is large enough. Activations come from its lower end and what
// outlives them from the upper one: as backward gives the last activations back, they join what is
// free in the middle, where gradients are taken from.
void* Ledger::cut_spare(Books& books, Kind kind, int64_t bytes) {
  auto best = books.spare.end();
  for (auto spare = books.spare.begin(); spare != books.spare.end(); ++spare)
    if (spare->second >= bytes && (best == books.spare.end() || spare->second < best->second))
      best = spare;
  if (best == books.spare.end()) return nullptr;
  const auto [begin, size] = *best;
  books.spare.erase(best);
  books.spare_bytes -= bytes;
  const bool lower = kind == Kind::activations;
  if (size > bytes) books.spare.emplace(lower ? begin + bytes : begin, size - bytes);
  return lower ? begin : begin + (size - bytes);
}

// The spare nearest in size, made to fit. An eighth is the most that is thrown away or faulted in
// anew; where spares can be cut none is too large, and a smaller one saves half of the faults.
void* Ledger::resize_spare(Books& books, int64_t bytes) {
  const auto distance = [&](int64_t size) { return std::max(size - bytes, bytes - size); };
  auto best = books.spare.end();
  for (auto spare = books.spare.begin(); spare != books.spare.end(); ++spare)
    if (distance(spare->second) <= bytes / (books.setup.source->divisible() ? 2 : 8) &&
        (best == books.spare.end() || distance(spare->second) < distance(best->second)))
      best = spare;
  if (best == books.spare.end()) return nullptr;
  const auto [begin, size] = *best;
  void* block = size == bytes ? begin : books.setup.source->resize(begin, size, bytes);
  if (!block) return nullptr;
  books.spare_bytes -= size;
  books.spare.erase(begin);
  return block;
}

// Spares may stay as long as the process holds no more than at its peak; the smallest go first.
// Joined, all of a step's gradients may be one spare: a block from elsewhere that passes the peak
// by a kilobyte costs the end of it, not all.
void Ledger::drop_spares(Books& books, int64_t bytes) {
  constexpr int64_t kLeast = int64_t{2} << 20;  // a huge page, so that few blocks need another cut
  const int64_t bound = std::max(books.peak, books.total + bytes);
  while (!books.spare.empty() && books.total + bytes + books.spare_bytes > bound) {
    const auto smallest =
        std::min_element(books.spare.begin(), books.spare.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const int64_t beyond = books.total + bytes + books.spare_bytes - bound,
                  whole = (beyond + kLeast - 1) / kLeast * kLeast,
                  part = books.setup.source->divisible() ? std::min(whole, smallest->second)
                                                         : smallest->second;
    smallest->second -= part;
    books.setup.source->drop(smallest->first + smallest->second, part);
    books.spare_bytes -= part;
    if (smallest->second == 0) books.spare.erase(smallest);
  }
}

void Ledger::keep_spare(Books& books, std::byte* block, int64_t bytes) {
  books.spare_bytes += bytes;
  auto spare = books.spare.emplace(block, bytes).first;
  if (!books.setup.source->divisible()) return;
  const auto joins = [&](auto lower, auto upper) {
    return lower->first + lower->second == upper->first;
  };
  if (const auto next = std::next(spare); next != books.spare.end() && joins(spare, next)) {
    spare->second += next->second;
    books.spare.erase(next);
  }
  if (spare == books.spare.begin()) return;
  if (const auto before = std::prev(spare); joins(before, spare)) {
    before->second += spare->second;
    books.spare.erase(spare);
  }
}

void* Ledger::take(Books& books, Kind kind, int64_t bytes) {
  MemorySource& source = *books.setup.source;
  void* block = nullptr;
  if (source.worth_keeping(bytes)) {
    if (source.divisible()) block = cut_spare(books, kind, bytes);
    if (!block) block = resize_spare(books, bytes);
  }
  drop_spares(books, bytes);
  if (!block) block = source.take(bytes);
  if (!block && source.real())
    user_error("the system refused {} of memory; {} are held", format_bytes(bytes),
               format_bytes(books.total));
  return block;
}

void Ledger::give_back(Buffer& buffer) {
  std::lock_guard lock(mutex_);
  Books& own = books(buffer.tier_);
  own.held[static_cast<size_t>(buffer.kind_)] -= buffer.bytes_;
  own.total -= buffer.bytes_;
  if (!buffer.data_) return;
  if (!own.setup.source->worth_keeping(buffer.bytes_))
    return own.setup.source->give_back(buffer.data_, buffer.bytes_);
  keep_spare(own, static_cast<std::byte*>(buffer.data_), buffer.bytes_);
}

int64_t Ledger::held_bytes(Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).total;
}

int64_t Ledger::peak_bytes(Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).peak;
}

int64_t Ledger::held_bytes(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).held[static_cast<size_t>(kind)];
}

int64_t Ledger::peak_bytes(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).own_peak[static_cast<size_t>(kind)];
}

int64_t Ledger::bytes_at_peak(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).at_peak[static_cast<size_t>(kind)];
}

std::string Ledger::peak_moment(Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).peak_moment ? books(tier).peak_moment() : "";
}

int64_t Ledger::spare_bytes(Tier tier) const {
  std::lock_guard lock(mutex_);
  return books(tier).spare_bytes;
}

int64_t Ledger::limit_bytes(Tier tier) const { return books(tier).setup.limit_bytes; }

std::string Ledger::table() const {
  std::lock_guard lock(mutex_);
  std::string header = fmt::format("  {:<14}", "memory"), totals = fmt::format("  {:<14}", "total");
  std::array<std::string, kKinds> rows;
  std::array<bool, kKinds> used{};
  for (size_t k = 0; k < kKinds; ++k)
    rows[k] = fmt::format("  {:<14}", kind_name(static_cast<Kind>(k)));
  for (size_t t = 0; t < kTiers; ++t) {
    const Books& own = books_[t];
    if (own.peak == 0) continue;
    const bool device = static_cast<Tier>(t) == Tier::device;
    header += fmt::format(
        "{:>14}{:>9}{:>14}",
        device ? "at the peak" : fmt::format("{} peak", tier_name(static_cast<Tier>(t))), "share",
        "now");
    totals += fmt::format("{:>14}{:>9}{:>14}", format_bytes(own.peak), "", format_bytes(own.total));
    for (size_t k = 0; k < kKinds; ++k) {
      used[k] = used[k] || own.own_peak[k] > 0;
      rows[k] +=
          fmt::format("{:>14}{:>8.1f}%{:>14}", format_bytes(own.at_peak[k]),
                      100.0 * static_cast<double>(own.at_peak[k]) / static_cast<double>(own.peak),
                      format_bytes(own.held[k]));
    }
  }
  std::string text = header + "\n";
  for (size_t k = 0; k < kKinds; ++k)
    if (used[k]) text += rows[k] + "\n";
  const Moment& peak = books(Tier::device).peak_moment;
  return text + totals + fmt::format("   peak at: {}\n", peak ? peak() : "");
}

Tensor Arena::take(int64_t rows, int64_t cols, DType dtype) {
  const int64_t bytes = rounded(rows * cols * dtype_bytes(dtype));
  const int64_t at = top_;
  top_ += bytes;
  high_water_ = std::max(high_water_, top_);
  if (!block_) return matrix(nullptr, rows, cols, dtype);
  require(top_ <= block_.bytes(), "scratch of {} bytes at {} passes the planned {}", bytes, at,
          block_.bytes());
  void* data = block_.data() ? static_cast<char*>(block_.data()) + at : nullptr;
  return matrix(data, rows, cols, dtype);
}

}  // namespace onefold

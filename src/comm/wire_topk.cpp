// The largest magnitudes: exactly as many as there is room for. Of equal ones, those that come
// first.
#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class TopkWire final : public SparseWire {
 public:
  using SparseWire::SparseWire;

 private:
  bool sends_the_largest() const override { return true; }

  // The cut is taken among those above a lower threshold that a sample gives, if they are few and
  // enough; else among all.
  int64_t select(std::span<const float> values, const WireDraw&,
                 std::span<uint32_t> places) override {
    const auto room = static_cast<int64_t>(places.size());
    const int64_t few = candidates(values, room);
    const bool all = few < room;
    const auto count = all ? static_cast<int64_t>(values.size()) : few;
    magnitudes_.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < magnitudes_.size(); ++i)
      magnitudes_[i] = magnitude(values[all ? i : candidates_[i]]);
    const Cut cut = cut_of(magnitudes_, room);
    int64_t equal = room - cut.above, sent = 0;
    for (size_t i = 0; i < magnitudes_.size() && sent < room; ++i) {
      if (magnitudes_[i] < cut.magnitude || (magnitudes_[i] == cut.magnitude && equal-- <= 0))
        continue;
      places[static_cast<size_t>(sent++)] = all ? static_cast<uint32_t>(i) : candidates_[i];
    }
    return sent;
  }

  // Places of all numbers from a threshold on, or 0 where that is not worth while: where they are
  // too many or too few.
  int64_t candidates(std::span<const float> values, int64_t room) {
    constexpr int64_t kRun = 4, kAboveCut = 64, kLeast = 16384;
    const auto elems = static_cast<int64_t>(values.size());
    if (elems < kLeast || room > elems / 8) return 0;
    // Runs of neighbours, of which some dozens are above the cut.
    const int64_t runs = std::min(elems / 8, kAboveCut * elems / room) / kRun;
    magnitudes_.resize(static_cast<size_t>(runs * kRun));
    for (int64_t i = 0; i < runs * kRun; ++i)
      magnitudes_[static_cast<size_t>(i)] =
          magnitude(values[static_cast<size_t>(i / kRun * (elems / runs) + i % kRun)]);
    // Half as many again: three deviations of so many.
    const Cut cut = cut_of(magnitudes_, std::max<int64_t>(1, 3 * room * runs * kRun / elems / 2));
    candidates_.resize(static_cast<size_t>(3 * room));
    const int64_t count = find_places(values, std::max(cut.magnitude, 1u), 0, candidates_);
    return count < static_cast<int64_t>(candidates_.size()) ? count : 0;
  }

  std::vector<uint32_t> magnitudes_, candidates_;  // the memory is reused by later calls
};

}  // namespace

std::unique_ptr<Wire> make_topk(const WireFormat& format) {
  return std::make_unique<TopkWire>(format);
}

}  // namespace onefold::wire

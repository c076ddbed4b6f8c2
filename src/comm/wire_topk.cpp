// The largest magnitudes: exactly as many as there is room for. Of equal ones, those that come
// first.
#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class TopkWire final : public ChosenWire {
 public:
  using ChosenWire::ChosenWire;

 private:
  // The cut is taken among those above a lower threshold that a sample gives, if they are few and
  // enough; else among all.
  FoundPlaces select(std::span<const float> values, const WireDraw&,
                     const Entries& entries) override {
    const FoundPlaces few = candidates(values, entries.room);
    const bool all = few.count < entries.room;
    const std::span<const float> from =
        all ? values : std::span(candidates_).first(static_cast<size_t>(few.count));
    magnitudes_.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) magnitudes_[i] = magnitude(from[i]);
    const Cut cut = cut_of(magnitudes_, entries.room);
    FoundPlaces sent{.count = 0, .others = all ? 0 : few.others};
    int64_t equal = entries.room - cut.above;
    for (size_t i = 0; i < from.size(); ++i) {
      if (magnitudes_[i] < cut.magnitude || (magnitudes_[i] == cut.magnitude && equal-- <= 0)) {
        sent.others += square(from[i]);
        continue;
      }
      entries.set_value(sent.count, from[i]);
      entries.set_place(sent.count++, all ? static_cast<uint32_t>(i) : places_[i]);
    }
    return sent;
  }

  // Places of all numbers from a threshold on, or none where that is not worth while: where they
  // are too many or too few.
  FoundPlaces candidates(std::span<const float> values, int64_t room) {
    constexpr int64_t kRun = 4, kAboveCut = 64, kLeast = 16384;
    const auto elems = static_cast<int64_t>(values.size());
    if (elems < kLeast || room > elems / 8) return {};
    // Runs of neighbours, of which some dozens are above the cut.
    const int64_t runs = std::min(elems / 8, kAboveCut * elems / room) / kRun;
    magnitudes_.resize(static_cast<size_t>(runs * kRun));
    for (int64_t i = 0; i < runs * kRun; ++i)
      magnitudes_[static_cast<size_t>(i)] =
          magnitude(values[static_cast<size_t>(i / kRun * (elems / runs) + i % kRun)]);
    // Half as many again: three deviations of so many.
    const Cut cut = cut_of(magnitudes_, std::max<int64_t>(1, 3 * room * runs * kRun / elems / 2));
    candidates_.resize(static_cast<size_t>(3 * room));
    places_.resize(candidates_.size());
    const FoundPlaces found =
        find_places(values, std::max(cut.magnitude, 1u), 0, places_, candidates_);
    return found.count < 3 * room ? found : FoundPlaces{};
  }

  // The memory is reused by later calls.
  std::vector<uint32_t> magnitudes_, places_;
  std::vector<float> candidates_;
};

}  // namespace

std::unique_ptr<Wire> make_topk(const WireFormat& format) {
  return std::make_unique<TopkWire>(format);
}

}  // namespace onefold::wire

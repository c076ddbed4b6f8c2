// The largest magnitudes: exactly as many as there is room for. Of equal ones, those that come
// first.
#include <numeric>

#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class TopkWire final : public ChosenWire {
 public:
  using ChosenWire::ChosenWire;

 private:
  // The cut is taken among those above a lower threshold that a sample gives, if they are few and
  // enough; else among all.
  FoundPlaces select(std::span<const float> values, const WireDraw&, Lost lost,
                     const Entries& entries) override {
    const FoundPlaces few = candidates(values, entries.room, lost);
    const bool all = few.count < entries.room;
    const std::span<const float> from =
        all ? values : std::span(candidates_).first(static_cast<size_t>(few.count));
    magnitudes_.resize(from.size());
    std::transform(from.begin(), from.end(), magnitudes_.begin(), magnitude);
    const Cut cut = cut_of(magnitudes_, entries.room);
    FoundPlaces sent = take(from, cut, lost, entries);
    if (all) return sent;
    for (uint32_t& place : entries.place_list()) place = places_[place];
    sent.others += few.others;
    return sent;
  }

  // All above the cut, and of those at the cut the first.
  static FoundPlaces take(std::span<const float> from, const Cut& cut, Lost lost,
                          const Entries& entries) {
    // From `end` on, those at the cut are too many.
    size_t end = from.size();
    if (cut.above + cut.equal > entries.room) {
      int64_t equal = entries.room - cut.above;
      for (end = 0; equal > 0; ++end) equal -= magnitude(from[end]) == cut.magnitude ? 1 : 0;
    }
    const std::span<uint32_t> places = entries.place_list();
    const std::span<float> numbers = entries.values();
    FoundPlaces first;
    if (cut.magnitude > 0) {
      first = find_places(from.first(end), cut.magnitude, 0, lost, places, numbers);
    } else {  // any number will do
      std::copy_n(from.begin(), end, numbers.begin());
      std::iota(places.begin(), places.begin() + static_cast<int64_t>(end), 0u);
      first.count = static_cast<int64_t>(end);
    }
    const auto count = static_cast<size_t>(first.count);
    const FoundPlaces then =
        find_places(from.subspan(end), cut.magnitude + 1, static_cast<uint32_t>(end), lost,
                    places.subspan(count), numbers.subspan(count));
    return {first.count + then.count, first.others + then.others};
  }

  // Places of all numbers from a threshold on, or none where that is not worth while: where they
  // are too many or too few.
  FoundPlaces candidates(std::span<const float> values, int64_t room, Lost lost) {
    constexpr int64_t kRun = 8, kAboveCut = 160, kLeast = 16384;
    const auto elems = static_cast<int64_t>(values.size());
    if (elems < kLeast || room > elems / 8) return {};
    // Runs of neighbours, of which some hundreds are above the cut.
    const int64_t runs = std::min(elems / 8, kAboveCut * elems / room) / kRun;
    magnitudes_.clear();
    for_each_sample(values, static_cast<size_t>(runs), kRun,
                    [&](float value) { magnitudes_.push_back(magnitude(value)); });
    // A third more: three deviations of so many.
    const Cut cut = cut_of(magnitudes_, std::max<int64_t>(1, 4 * room * runs * kRun / elems / 3));
    candidates_.resize(static_cast<size_t>(3 * room));
    places_.resize(candidates_.size());
    const FoundPlaces found =
        find_places(values, std::max(cut.magnitude, 1u), 0, lost, places_, candidates_);
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

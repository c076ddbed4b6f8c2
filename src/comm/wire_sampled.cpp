// Numbers above a threshold that is the exact cut of a sample: every so many numbers, from a drawn
// place on. One sweep over most of them in the place of four; about as many are above the
// threshold as there is room for, and places that stay empty are sent empty.
#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class SampledWire final : public ChosenWire {
 public:
  using ChosenWire::ChosenWire;

 private:
  FoundPlaces select(std::span<const float> values, const WireDraw& draw, Lost lost,
                     const Entries& entries) override {
    // So that some dozens of the sample are above the cut.
    constexpr int64_t kLeastSample = 1024, kShare = 256, kAboveCut = 32;
    const auto elems = static_cast<int64_t>(values.size());
    const int64_t wanted =
        std::max({kLeastSample, elems / kShare, kAboveCut * elems / entries.room});
    const int64_t stride = std::max<int64_t>(1, elems / std::min(wanted, elems));
    const auto first =
        static_cast<int64_t>(philox_word(draw.own, 1) % static_cast<uint64_t>(stride));
    const int64_t sample = (elems - first + stride - 1) / stride;
    sample_.resize(static_cast<size_t>(sample));
    for (int64_t i = 0; i < sample; ++i)
      sample_[static_cast<size_t>(i)] = magnitude(values[static_cast<size_t>(first + i * stride)]);
    const Cut cut = cut_of(sample_, std::max<int64_t>(1, entries.room * sample / elems));
    return places_around(values, draw.own, std::max(cut.magnitude, 1u), lost, entries);
  }

  std::vector<uint32_t> sample_;  // the memory is reused by later calls
};

}  // namespace

std::unique_ptr<Wire> make_sampled(const WireFormat& format) {
  return std::make_unique<SampledWire>(format);
}

}  // namespace onefold::wire

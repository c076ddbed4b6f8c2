// Numbers of at least a given magnitude, as many as there is room for; places that stay empty are
// sent empty, so that a packet's length does not depend on its numbers.
#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class ThresholdWire final : public ChosenWire {
 public:
  explicit ThresholdWire(const WireFormat& format)
      : ChosenWire(format), least_(magnitude(static_cast<float>(format.least))) {}

 private:
  FoundPlaces select(std::span<const float> values, const WireDraw& draw, Lost lost,
                     const Entries& entries) override {
    return places_around(values, draw.own, std::max(least_, 1u), lost, entries);
  }

  const uint32_t least_;
};

}  // namespace

std::unique_ptr<Wire> make_threshold(const WireFormat& format) {
  return std::make_unique<ThresholdWire>(format);
}

}  // namespace onefold::wire

// The largest magnitudes: exactly as many as there is room for. Of equal ones, those that come
// first.
#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class TopkWire final : public SparseWire {
 public:
  using SparseWire::SparseWire;

 private:
  void select(std::span<const float> values, const WireDraw&, int64_t room,
              const std::function<bool(int64_t)>& send) const override {
    const auto elems = static_cast<int64_t>(values.size());
    const auto magnitude_of = [&](int64_t i) { return magnitude(values[static_cast<size_t>(i)]); };
    const Cut cut = cut_of(elems, room, magnitude_of);
    int64_t equal = room - cut.above;
    for (int64_t i = 0; i < elems; ++i) {
      const uint32_t size = magnitude_of(i);
      if (size < cut.magnitude || (size == cut.magnitude && equal-- <= 0)) continue;
      if (!send(i)) return;
    }
  }
};

}  // namespace

std::unique_ptr<Wire> make_topk(const WireFormat& format) {
  return std::make_unique<TopkWire>(format);
}

}  // namespace onefold::wire

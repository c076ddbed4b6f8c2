// 1 byte for each number, and 2 for each block (wire_int.h).
#include "comm/wire_int.h"

namespace onefold::wire {
namespace {

struct Bytes {
  static constexpr int kLevels = 127;
  static int64_t bytes(int64_t elems) { return elems; }
  static void finish(std::byte*, int64_t) {}
  static void store(std::byte* codes, int64_t first, std::span<const float> values, float unit,
                    const uint32_t* words) {
    pack_int8(values, unit, words, reinterpret_cast<int8_t*>(codes) + first);
  }
  static bool keeps(int64_t) { return true; }
  static double keep(std::byte* codes, int64_t first, std::span<float> values, float unit) {
    return keep_int8(values, unit, reinterpret_cast<int8_t*>(codes) + first);
  }
  static void load(const std::byte* codes, int64_t first, float unit, Apply how,
                   std::span<float> dst) {
    unpack_int8(reinterpret_cast<const int8_t*>(codes) + first, unit, how, dst);
  }
};

}  // namespace

std::unique_ptr<Wire> make_int8(const WireFormat& format) {
  return std::make_unique<IntWire<Bytes>>(format);
}

}  // namespace onefold::wire

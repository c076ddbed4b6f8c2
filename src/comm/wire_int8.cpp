// 1 byte for each number, and 2 for each block (wire_int.h).
#include "comm/wire_int.h"

namespace onefold::wire {
namespace {

struct Bytes {
  static constexpr int kLevels = 127;
  static int64_t bytes(int64_t elems) { return elems; }
  // What no block writes, at the end of a packet or where a block has no scale, is defined too.
  static void clear(std::byte* codes, int64_t elems) {
    std::memset(codes, 0, static_cast<size_t>(bytes(elems)));
  }
  static void store(std::byte* codes, int64_t i, int level) {
    reinterpret_cast<int8_t*>(codes)[i] = static_cast<int8_t>(level);
  }
  static void store_block(std::byte* codes, int64_t first, std::span<const float> block,
                          float unit) {
    auto* const to = reinterpret_cast<int8_t*>(codes) + first;
    for (size_t i = 0; i < block.size(); ++i) {
      const float level = nearest(block[i] / unit);
      to[i] = static_cast<int8_t>(static_cast<int32_t>(std::min(std::max(level, -127.0f), 127.0f)));
    }
  }
  static int load(const std::byte* codes, int64_t i) {
    return reinterpret_cast<const int8_t*>(codes)[i];
  }
};

}  // namespace

std::unique_ptr<Wire> make_int8(const WireFormat& format) {
  return std::make_unique<IntWire<Bytes>>(format);
}

}  // namespace onefold::wire

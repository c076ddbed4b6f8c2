// Half a byte for each number, and 2 bytes for each block (wire_int.h). Even places are the lower
// halves; a level is stored with 8 added.
#include "comm/wire_int.h"

namespace onefold::wire {
namespace {

struct Halves {
  static constexpr int kLevels = 7;
  static int64_t bytes(int64_t elems) { return (elems + 1) / 2; }
  static void clear(std::byte* codes, int64_t elems) {
    std::memset(codes, 0x88, static_cast<size_t>(bytes(elems)));
  }
  static void store(std::byte* codes, int64_t i, int level) {
    auto& pair = reinterpret_cast<uint8_t*>(codes)[i / 2];
    const auto code = static_cast<uint8_t>(level + 8);
    pair = static_cast<uint8_t>(i % 2 == 0 ? (pair & 0xF0) | code : (pair & 0x0F) | code << 4);
  }
  static void store_block(std::byte* codes, int64_t first, std::span<const float> block,
                          float unit) {
    const auto level = [&](size_t i) {
      return static_cast<int>(std::min(std::max(nearest(block[i] / unit), -7.0f), 7.0f));
    };
    size_t i = 0;
    if (first % 2 != 0) store(codes, first, level(i++));
    auto* const to = reinterpret_cast<uint8_t*>(codes) + (first + 1) / 2;
    const size_t pairs = (block.size() - i) / 2;
    for (size_t p = 0; p < pairs; ++p, i += 2)
      to[p] = static_cast<uint8_t>((level(i) + 8) | (level(i + 1) + 8) << 4);
    if (i < block.size()) store(codes, first + static_cast<int64_t>(i), level(i));
  }
  static int load(const std::byte* codes, int64_t i) {
    const auto pair = reinterpret_cast<const uint8_t*>(codes)[i / 2];
    return (i % 2 == 0 ? pair & 0x0F : pair >> 4) - 8;
  }
};

}  // namespace

std::unique_ptr<Wire> make_int4(const WireFormat& format) {
  return std::make_unique<IntWire<Halves>>(format);
}

}  // namespace onefold::wire

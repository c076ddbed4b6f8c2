// Half a byte for each number, and 2 bytes for each block (wire_int.h). Even places are the lower
// halves; a level is stored with 8 added.
#include "comm/wire_int.h"

namespace onefold::wire {
namespace {

struct Halves {
  static constexpr int kLevels = 7;
  static int64_t bytes(int64_t elems) { return (elems + 1) / 2; }
  // The upper half of an odd number's last byte: 0.
  static void finish(std::byte* codes, int64_t elems) {
    if (elems % 2 != 0) codes[elems / 2] = std::byte{0x88};
  }
  static void store(std::byte* codes, int64_t first, std::span<const float> values, float unit,
                    const uint32_t* words) {
    const auto rest = [&](size_t from) { return words ? words + from : nullptr; };
    const size_t head = first % 2 != 0 ? 1 : 0, tail = (values.size() - head) % 2;
    auto* const pairs = reinterpret_cast<uint8_t*>(codes) + (first + 1) / 2;
    if (head > 0) {
      const uint8_t pair = code_of(values[0], unit, words);
      pairs[-1] = static_cast<uint8_t>((pairs[-1] & 0x0F) | pair << 4);
    }
    pack_int4(values.subspan(head, values.size() - head - tail), unit, rest(head), pairs);
    if (tail > 0) {
      const size_t last = values.size() - 1;
      uint8_t& pair = pairs[(last - head) / 2];
      pair = static_cast<uint8_t>((pair & 0xF0) | code_of(values[last], unit, rest(last)));
    }
  }
  // Blocks that begin at a byte.
  static bool keeps(int64_t block) { return block % 2 == 0; }
  static double keep(std::byte* codes, int64_t first, std::span<float> values, float unit) {
    return keep_int4(values, unit, reinterpret_cast<uint8_t*>(codes) + first / 2);
  }
  static void load(const std::byte* codes, int64_t first, float unit, Apply how,
                   std::span<float> dst) {
    const auto* const pairs = reinterpret_cast<const uint8_t*>(codes) + (first + 1) / 2;
    const size_t head = first % 2 != 0 ? 1 : 0;
    if (head > 0) {
      const auto upper = static_cast<uint8_t>(pairs[-1] >> 4);
      unpack_int4(&upper, unit, how, dst.first(1));
    }
    unpack_int4(pairs, unit, how, dst.subspan(head));
  }

 private:
  static uint8_t code_of(float value, float unit, const uint32_t* word) {
    uint8_t code = 0;
    pack_int4({&value, 1}, unit, word, &code);
    return code & 0x0F;
  }
};

}  // namespace

std::unique_ptr<Wire> make_int4(const WireFormat& format) {
  return std::make_unique<IntWire<Halves>>(format);
}

}  // namespace onefold::wire

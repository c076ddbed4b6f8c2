// The loops of wire formats (comm/wire.h) over plain host memory. They run on the calling thread,
// allocate nothing, and have the same bits on every SIMD target: elements are computed one by one,
// and sums are in double, sixteen at a time, of every sixteenth element, added by a tree.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/philox.h"

namespace onefold {

// What becomes of decoded numbers.
enum class Apply : uint8_t {
  set,       // dst = decoded
  add,       // dst += decoded
  subtract,  // dst -= decoded; what is not finite becomes 0
  clear      // of sparse formats: dst = 0 where something was sent
};

// A magnitude is a number's bits without its sign: magnitudes compare as their numbers do, and what
// is not finite is larger than all else.
uint32_t largest_magnitude(std::span<const float> values);
// And the sum of magnitudes.
uint32_t largest_magnitude(std::span<const float> values, double& magnitudes);

// In one sweep: the largest magnitude, the sum of squares, and that of magnitudes.
struct Measures {
  uint32_t largest = 0;
  double squares = 0;
};
Measures measure(std::span<const float> values);
Measures measure(std::span<const float> values, double& magnitudes);

// Whether squares of what is not sent are summed: Wire::pack() needs them, Wire::encode() does not.
enum class Lost : uint8_t { measured, unmeasured };

// `first` and further, in order, of the places with at least this magnitude (from 1 on; what is not
// finite has it), and the numbers there, until there is no more room.
struct FoundPlaces {
  int64_t count = 0;
  // The sum of squares of all others; unmeasured, it is 0, or infinite if one of them is not
  // finite.
  double others = 0;
};
FoundPlaces find_places(std::span<const float> values, uint32_t least, uint32_t first, Lost lost,
                        std::span<uint32_t> places, std::span<float> numbers);

// Numbers that are drawn in proportion to their magnitudes: every sixteenth number, from each of
// the first sixteen on, is on a line of magnitudes, and draws lie a level apart on it. So a number
// is drawn with the chance of its magnitude as a share of the level, up to a unit, 1 / kLine. What
// is at least a level (or no number) is found too, and is on no line. In order, the places and the
// numbers, while there is room for sixteen more.
inline constexpr uint32_t kLine = 1u << 22;
inline constexpr float kLeastLevel = 0x1p-90f;
struct DrawnPlaces {
  int64_t count = 0;
  bool all = false;               // there was room for all
  double others = 0;              // if measured: the sum of squares of all others
  std::array<uint32_t, 16> ends;  // how far behind a draw lines end, as `starts`, below kLine
};
DrawnPlaces draw_places(std::span<const float> values, float level,
                        std::span<const uint32_t, 16> starts, Lost lost, std::span<uint32_t> places,
                        std::span<float> numbers);

// kept += the gradient times `scale`; with a velocity, which becomes that plus `momentum` times
// what it was, kept += the velocity.
struct Fold {
  float scale = 1, momentum = 0;
};
void fold_gradient(std::span<const float> gradient, const Fold& fold, float* velocity, float* kept);

// philox_word() of `first`, a multiple of 4, and the numbers after it.
void draw_words(PhiloxKey key, uint64_t first, std::span<uint32_t> words);

// Codes of numbers. Without `words` numbers are rounded to the nearest, ties to even; with them,
// one for each, to the neighbour that the word chooses. bf16: what is finite stays so. int8 and
// int4: levels from -127 to 127 and from -7 to 7 of `unit`; of two levels in a byte the first is
// the lower half, with 8 added. Signs: eight in a byte, the first the lowest bit.
void pack_bf16(std::span<const float> values, const uint32_t* words, uint16_t* codes);
void pack_int8(std::span<const float> values, float unit, const uint32_t* words, int8_t* codes);
void pack_int4(std::span<const float> values, float unit, const uint32_t* words, uint8_t* codes);
void pack_signs(std::span<const float> values, uint8_t* codes);

// The same to the nearest of finite numbers, and `values` become what the codes lack: the sum of
// its squares. Signs are packed by themselves.
double keep_bf16(std::span<float> values, uint16_t* codes);
double keep_int8(std::span<float> values, float unit, int8_t* codes);
double keep_int4(std::span<float> values, float unit, uint8_t* codes);
double keep_signs(std::span<float> values, float mean);

// And back. A sign is that of `mean`, which is not negative.
void unpack_bf16(const uint16_t* codes, Apply how, std::span<float> dst);
void unpack_int8(const int8_t* codes, float unit, Apply how, std::span<float> dst);
void unpack_int4(const uint8_t* codes, float unit, Apply how, std::span<float> dst);
void unpack_signs(const uint8_t* codes, float mean, Apply how, std::span<float> dst);

}  // namespace onefold

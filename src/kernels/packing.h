// The loops of wire formats (comm/wire.h) over plain host memory. They run on the calling thread,
// allocate nothing, and have the same bits on every SIMD target: elements are computed one by one,
// and sums are in double, eight at a time, of every eighth element.
#pragma once

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
double sum_of_magnitudes(std::span<const float> values);
double sum_of_squares(std::span<const float> values);

// `first` and further, in order, of the places with at least this magnitude (from 1 on), until
// there is no more room: how many.
int64_t find_places(std::span<const float> values, uint32_t least, uint32_t first,
                    std::span<uint32_t> places);

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

// And back. A sign is that of `mean`, which is not negative.
void unpack_bf16(const uint16_t* codes, Apply how, std::span<float> dst);
void unpack_int8(const int8_t* codes, float unit, Apply how, std::span<float> dst);
void unpack_int4(const uint8_t* codes, float unit, Apply how, std::span<float> dst);
void unpack_signs(const uint8_t* codes, float mean, Apply how, std::span<float> dst);

}  // namespace onefold

// The types of GGUF files whose values come in blocks, as llama.cpp defines them. A block's values
// lie in one row.
//   Q8_0  32 values: d (f16), 32 whole numbers q of 8 bits; a value is d * q
//   Q4_K  256 values in 8 groups of 32: d and m (f16), for each group s and t of 6 bits, for each
//         value q of 4 bits; a value is d * s * q - m * t
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace onefold {

// Whether read_values knows the type: what to_f32 does (io/half.h), Q8_0 and Q4_K.
bool is_readable_dtype(const std::string& dtype);
// What is_readable_dtype accepts, for messages: "F64, F32, ... and Q4_K".
inline constexpr const char* kReadableDtypes = "F64, F32, F16, BF16, F8, Q8_0 and Q4_K";
// Bytes that `elems` values take, which are whole blocks; 0 for a type that cannot be read.
int64_t dtype_bytes(const std::string& dtype, int64_t elems);

// Values [first, first + dst.size()) of a tensor, given all of its bytes.
void read_values(const std::string& dtype, std::span<const std::byte> tensor, int64_t first,
                 std::span<float> dst);

// Whole blocks of Q8_0 or Q4_K. No value moves by more than quantized_error says. Returns how many
// values it cannot hold: those that are not finite, and blocks that are too large for an f16.
int64_t quantize(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst);
// The largest error of a block whose largest magnitude is this.
double quantized_error(const std::string& dtype, double largest);

}  // namespace onefold

// Bytes as text: the byte-level alphabet of GPT-2, in which every byte has one printable code point
// (so that a vocabulary of byte strings can be written as JSON), and the UTF-8 checks by which the
// tokenizer keeps arbitrary bytes as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onefold {

// "\n the" -> "ĊĠthe". The reverse returns false when `text` holds a code point outside the
// alphabet.
std::string to_byte_alphabet(std::string_view bytes);
bool from_byte_alphabet(std::string_view text, std::string& bytes);

// Length in bytes of the well-formed UTF-8 sequence at the start of `text` (1 to 4), or 0 if there
// is none. Overlong forms, surrogates and code points above 0x10FFFF are not well-formed.
size_t utf8_sequence(std::string_view text);

// Length of the longest prefix that is well-formed UTF-8.
size_t utf8_prefix(std::string_view text);

// The text with every ill-formed part (the longest start of a character, or one byte) as U+FFFD.
std::string utf8_lossy(std::string_view text);

// FNV-1a, 64 bits: names a tokenizer in the files made with it.
uint64_t fnv1a64(std::string_view bytes);

}  // namespace onefold

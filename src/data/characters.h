// What `tokenizers` knows of characters: classes and case by the Unicode version that each of its
// parts has, which are several. utf8proc has Unicode 15 and Debian's Oniguruma 14; what they lack
// or know too much of is in tables here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace onefold {

enum class CharacterClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// By \p{L}, \p{N} and \s of the patterns' engine (Unicode 16).
CharacterClass class_of_character(uint32_t code_point);

// Rust's, of Unicode 17, for the pre-tokenizer Digits.
bool is_numeric_character(uint32_t code_point);
// Rust's White_Space, which \s is too.
bool is_space_character(uint32_t code_point);
// \w of Rust's patterns: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word_character(uint32_t code_point);
// Of the pre-tokenizers Punctuation and Bert: ASCII's, and category P of an older Unicode.
bool is_punctuation_character(uint32_t code_point);
// A mark that StripAccents takes away.
bool is_accent(uint32_t code_point);
// A mark that BertNormalizer takes away.
bool is_nonspacing_mark(uint32_t code_point);
// Came after Unicode 9, the normalizers' version, and is one that a later version would map or
// reorder: to them it is a character like any other.
bool is_unknown_to_normalizers(uint32_t code_point);
// By Python's str.isprintable(): no control, format or private character, and no space but " ".
bool is_printable_character(uint32_t code_point);
// Of the normalizer Bert: what cleaning removes, and what it puts spaces around.
bool is_removed_by_cleaning(uint32_t code_point);
bool is_chinese_character(uint32_t code_point);
// Appends the lower case.
void append_lower(uint32_t code_point, std::string& text);

// The code point of the well-formed UTF-8 sequence that `text` begins with.
uint32_t code_point_of(std::string_view text);
void append_utf8(uint32_t code_point, std::string& text);

// Characters of Unicode 15 to 16, by range, with what patterns may ask for.
struct NewerCharacters {
  uint32_t first, last;
  std::string_view category, script;  // "Lo", "han": lower case, without underscores
  bool alphabetic, emoji;
};
std::span<const NewerCharacters> newer_characters();

}  // namespace onefold

#include "data/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

namespace onefold {
namespace {

struct Range {
  uint32_t first, last;
};

// The tables were made by asking `tokenizers` 0.23 about every code point.
constexpr std::array<NewerCharacters, 130> kNewer = {{
    {0x897, 0x897, "Mn", "arabic", true, false},
    {0xCF3, 0xCF3, "Mc", "kannada", true, false},
    {0xECE, 0xECE, "Mn", "lao", false, false},
    {0x1B4E, 0x1B4F, "Po", "balinese", false, false},
    {0x1B7F, 0x1B7F, "Po", "balinese", false, false},
    {0x1C89, 0x1C89, "Lu", "cyrillic", true, false},
    {0x1C8A, 0x1C8A, "Ll", "cyrillic", true, false},
    {0x2427, 0x2429, "So", "common", false, false},
    {0x2FFC, 0x2FFF, "So", "common", false, false},
    {0x31E4, 0x31E5, "So", "common", false, false},
    {0x31EF, 0x31EF, "So", "common", false, false},
    {0xA7CB, 0xA7CC, "Lu", "latin", true, false},
    {0xA7CD, 0xA7CD, "Ll", "latin", true, false},
    {0xA7DA, 0xA7DA, "Lu", "latin", true, false},
    {0xA7DB, 0xA7DB, "Ll", "latin", true, false},
    {0xA7DC, 0xA7DC, "Lu", "latin", true, false},
    {0x105C0, 0x105F3, "Lo", "todhri", true, false},
    {0x10D40, 0x10D49, "Nd", "garay", false, false},
    {0x10D4A, 0x10D4D, "Lo", "garay", true, false},
    {0x10D4E, 0x10D4E, "Lm", "garay", true, false},
    {0x10D4F, 0x10D4F, "Lo", "garay", true, false},
    {0x10D50, 0x10D65, "Lu", "garay", true, false},
    {0x10D69, 0x10D69, "Mn", "garay", true, false},
    {0x10D6A, 0x10D6D, "Mn", "garay", false, false},
    {0x10D6E, 0x10D6E, "Pd", "garay", false, false},
    {0x10D6F, 0x10D6F, "Lm", "garay", true, false},
    {0x10D70, 0x10D85, "Ll", "garay", true, false},
    {0x10D8E, 0x10D8F, "Sm", "garay", false, false},
    {0x10EC2, 0x10EC4, "Lo", "arabic", true, false},
    {0x10EFC, 0x10EFC, "Mn", "arabic", true, false},
    {0x10EFD, 0x10EFF, "Mn", "arabic", false, false},
    {0x1123F, 0x11240, "Lo", "khojki", true, false},
    {0x11241, 0x11241, "Mn", "khojki", true, false},
    {0x11380, 0x11389, "Lo", "tulutigalari", true, false},
    {0x1138B, 0x1138B, "Lo", "tulutigalari", true, false},
    {0x1138E, 0x1138E, "Lo", "tulutigalari", true, false},
    {0x11390, 0x113B5, "Lo", "tulutigalari", true, false},
    {0x113B7, 0x113B7, "Lo", "tulutigalari", true, false},
    {0x113B8, 0x113BA, "Mc", "tulutigalari", true, false},
    {0x113BB, 0x113C0, "Mn", "tulutigalari", true, false},
    {0x113C2, 0x113C2, "Mc", "tulutigalari", true, false},
    {0x113C5, 0x113C5, "Mc", "tulutigalari", true, false},
    {0x113C7, 0x113CA, "Mc", "tulutigalari", true, false},
    {0x113CC, 0x113CD, "Mc", "tulutigalari", true, false},
    {0x113CE, 0x113CE, "Mn", "tulutigalari", false, false},
    {0x113CF, 0x113CF, "Mc", "tulutigalari", false, false},
    {0x113D0, 0x113D0, "Mn", "tulutigalari", false, false},
    {0x113D1, 0x113D1, "Lo", "tulutigalari", true, false},
    {0x113D2, 0x113D2, "Mn", "tulutigalari", false, false},
    {0x113D3, 0x113D3, "Lo", "tulutigalari", true, false},
    {0x113D4, 0x113D5, "Po", "tulutigalari", false, false},
    {0x113D7, 0x113D8, "Po", "tulutigalari", false, false},
    {0x113E1, 0x113E2, "Mn", "tulutigalari", false, false},
    {0x116D0, 0x116E3, "Nd", "myanmar", false, false},
    {0x1171E, 0x1171E, "Mc", "ahom", true, false},
    {0x11B00, 0x11B09, "Po", "devanagari", false, false},
    {0x11BC0, 0x11BE0, "Lo", "sunuwar", true, false},
    {0x11BE1, 0x11BE1, "Po", "sunuwar", false, false},
    {0x11BF0, 0x11BF9, "Nd", "sunuwar", false, false},
    {0x11F00, 0x11F01, "Mn", "kawi", true, false},
    {0x11F02, 0x11F02, "Lo", "kawi", true, false},
    {0x11F03, 0x11F03, "Mc", "kawi", true, false},
    {0x11F04, 0x11F10, "Lo", "kawi", true, false},
    {0x11F12, 0x11F33, "Lo", "kawi", true, false},
    {0x11F34, 0x11F35, "Mc", "kawi", true, false},
    {0x11F36, 0x11F3A, "Mn", "kawi", true, false},
    {0x11F3E, 0x11F3F, "Mc", "kawi", true, false},
    {0x11F40, 0x11F40, "Mn", "kawi", true, false},
    {0x11F41, 0x11F41, "Mc", "kawi", false, false},
    {0x11F42, 0x11F42, "Mn", "kawi", false, false},
    {0x11F43, 0x11F4F, "Po", "kawi", false, false},
    {0x11F50, 0x11F59, "Nd", "kawi", false, false},
    {0x11F5A, 0x11F5A, "Mn", "kawi", false, false},
    {0x1342F, 0x1342F, "Lo", "egyptianhieroglyphs", true, false},
    {0x13439, 0x1343F, "Cf", "egyptianhieroglyphs", false, false},
    {0x13440, 0x13440, "Mn", "egyptianhieroglyphs", false, false},
    {0x13441, 0x13446, "Lo", "egyptianhieroglyphs", true, false},
    {0x13447, 0x13455, "Mn", "egyptianhieroglyphs", false, false},
    {0x13460, 0x143FA, "Lo", "egyptianhieroglyphs", true, false},
    {0x16100, 0x1611D, "Lo", "gurungkhema", true, false},
    {0x1611E, 0x16129, "Mn", "gurungkhema", true, false},
    {0x1612A, 0x1612C, "Mc", "gurungkhema", true, false},
    {0x1612D, 0x1612E, "Mn", "gurungkhema", true, false},
    {0x1612F, 0x1612F, "Mn", "gurungkhema", false, false},
    {0x16130, 0x16139, "Nd", "gurungkhema", false, false},
    {0x16D40, 0x16D42, "Lm", "kiratrai", true, false},
    {0x16D43, 0x16D6A, "Lo", "kiratrai", true, false},
    {0x16D6B, 0x16D6C, "Lm", "kiratrai", true, false},
    {0x16D6D, 0x16D6F, "Po", "kiratrai", false, false},
    {0x16D70, 0x16D79, "Nd", "kiratrai", false, false},
    {0x18CFF, 0x18CFF, "Lo", "khitansmallscript", true, false},
    {0x1B132, 0x1B132, "Lo", "hiragana", true, false},
    {0x1B155, 0x1B155, "Lo", "katakana", true, false},
    {0x1CC00, 0x1CCEF, "So", "common", false, false},
    {0x1CCF0, 0x1CCF9, "Nd", "common", false, false},
    {0x1CD00, 0x1CEB3, "So", "common", false, false},
    {0x1D2C0, 0x1D2D3, "No", "common", false, false},
    {0x1DF25, 0x1DF2A, "Ll", "latin", true, false},
    {0x1E030, 0x1E06D, "Lm", "cyrillic", true, false},
    {0x1E08F, 0x1E08F, "Mn", "cyrillic", true, false},
    {0x1E4D0, 0x1E4EA, "Lo", "nagmundari", true, false},
    {0x1E4EB, 0x1E4EB, "Lm", "nagmundari", true, false},
    {0x1E4EC, 0x1E4EF, "Mn", "nagmundari", false, false},
    {0x1E4F0, 0x1E4F9, "Nd", "nagmundari", false, false},
    {0x1E5D0, 0x1E5ED, "Lo", "olonal", true, false},
    {0x1E5EE, 0x1E5EF, "Mn", "olonal", false, false},
    {0x1E5F0, 0x1E5F0, "Lo", "olonal", true, false},
    {0x1E5F1, 0x1E5FA, "Nd", "olonal", false, false},
    {0x1E5FF, 0x1E5FF, "Po", "olonal", false, false},
    {0x1F6DC, 0x1F6DC, "So", "common", false, true},
    {0x1F774, 0x1F776, "So", "common", false, false},
    {0x1F77B, 0x1F77F, "So", "common", false, false},
    {0x1F7D9, 0x1F7D9, "So", "common", false, false},
    {0x1F8B2, 0x1F8BB, "So", "common", false, false},
    {0x1F8C0, 0x1F8C1, "So", "common", false, false},
    {0x1FA75, 0x1FA77, "So", "common", false, true},
    {0x1FA87, 0x1FA89, "So", "common", false, true},
    {0x1FA8F, 0x1FA8F, "So", "common", false, true},
    {0x1FAAD, 0x1FAAF, "So", "common", false, true},
    {0x1FABB, 0x1FABF, "So", "common", false, true},
    {0x1FAC6, 0x1FAC6, "So", "common", false, true},
    {0x1FACE, 0x1FACF, "So", "common", false, true},
    {0x1FADA, 0x1FADC, "So", "common", false, true},
    {0x1FADF, 0x1FADF, "So", "common", false, true},
    {0x1FAE8, 0x1FAE9, "So", "common", false, true},
    {0x1FAF7, 0x1FAF8, "So", "common", false, true},
    {0x1FBCB, 0x1FBEF, "So", "common", false, false},
    {0x2B739, 0x2B739, "Lo", "han", true, false},
    {0x2EBF0, 0x2EE5D, "Lo", "han", true, false},
    {0x31350, 0x323AF, "Lo", "han", true, false},
}};

// Those of them that have a combining class or a mapping.
constexpr std::array<Range, 96> kAfterUnicode9 = {
    {{0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
     {0xCF3, 0xCF3},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},
     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},
     {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
     {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0xAB69, 0xAB69},
     {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27},
     {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50},
     {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2},
     {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241},
     {0x1133B, 0x1133B}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
     {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
     {0x1145E, 0x1145E}, {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938},
     {0x1193B, 0x1193E}, {0x11940, 0x11940}, {0x11942, 0x11943}, {0x119D1, 0x119D7},
     {0x119DA, 0x119E0}, {0x119E4, 0x119E4}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A39},
     {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99},
     {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45},
     {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97},
     {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A},
     {0x11F3E, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13440, 0x13440}, {0x13447, 0x13455},
     {0x1611E, 0x1612F}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4},
     {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E030, 0x1E06D},
     {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
     {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}}};
// Marks of Unicode 9 that Bert's normalizer does not know.
constexpr std::array<Range, 22> kAfterUnicode8 = {
    {{0x8D4, 0x8E1},     {0x1885, 0x1886},   {0x1DFB, 0x1DFB},   {0xA8C5, 0xA8C5},
     {0xA9BD, 0xA9BD},   {0x1123E, 0x1123E}, {0x11438, 0x1143F}, {0x11442, 0x11444},
     {0x11446, 0x11446}, {0x11C30, 0x11C36}, {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F},
     {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3}, {0x11CB5, 0x11CB6},
     {0x1E000, 0x1E006}, {0x1E008, 0x1E018}, {0x1E01B, 0x1E021}, {0x1E023, 0x1E024},
     {0x1E026, 0x1E02A}, {0x1E944, 0x1E94A}}};
// Punctuation that came after the Unicode version of the pre-tokenizers.
constexpr std::array<Range, 39> kNewerPunctuation = {
    {{0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
     {0xC84, 0xC84},     {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},
     {0x2E52, 0x2E5D},   {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
     {0x10F86, 0x10F89}, {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x1144B, 0x1144F},
     {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
     {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
     {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1},
     {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F},
     {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A},
     {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F}}};
constexpr std::array<Range, 25> kCleaned = {
    {{0x0, 0x8},          {0xB, 0xC},         {0xE, 0x1F},        {0x7F, 0x9F},
     {0xAD, 0xAD},        {0x600, 0x605},     {0x61C, 0x61C},     {0x6DD, 0x6DD},
     {0x70F, 0x70F},      {0x180E, 0x180E},   {0x200B, 0x200F},   {0x202A, 0x202E},
     {0x2060, 0x2064},    {0x2066, 0x206F},   {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},
     {0xFFF9, 0xFFFB},    {0xFFFD, 0xFFFD},   {0x110BD, 0x110BD}, {0x1BCA0, 0x1BCA3},
     {0x1D173, 0x1D17A},  {0xE0001, 0xE0001}, {0xE0020, 0xE007F}, {0xF0000, 0xFFFFD},
     {0x100000, 0x10FFFD}}};
constexpr std::array<Range, 7> kChinese = {{{0x3400, 0x4DBF},
                                            {0x4E00, 0x9FFF},
                                            {0xF900, 0xFAFF},
                                            {0x20000, 0x2A6DF},
                                            {0x2A700, 0x2B81F},
                                            {0x2B920, 0x2CEAF},
                                            {0x2F800, 0x2FA1F}}};

template <size_t kCount>
bool holds(const std::array<Range, kCount>& ranges, uint32_t point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), point,
                       [](uint32_t p, const Range& range) { return p < range.first; });
  return after != ranges.begin() && point <= std::prev(after)->last;
}

const NewerCharacters* newer(uint32_t point) {
  const auto after =
      std::upper_bound(kNewer.begin(), kNewer.end(), point,
                       [](uint32_t p, const NewerCharacters& range) { return p < range.first; });
  return after != kNewer.begin() && point <= std::prev(after)->last ? &*std::prev(after) : nullptr;
}

// "Lu"
std::string_view category_of(uint32_t point) {
  if (const NewerCharacters* const found = newer(point)) return found->category;
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(point));
}

}  // namespace

CharacterClass class_of_character(uint32_t point) {
  // One byte for each code point, made when the first text that is not ASCII comes.
  static const std::vector<CharacterClass> kClasses = [] {
    std::vector<CharacterClass> classes(0x110000);
    for (uint32_t c = 0; c < classes.size(); ++c) {
      const char group = category_of(c)[0];
      if (group == 'L') classes[c] = CharacterClass::kLetter;
      if (group == 'N') classes[c] = CharacterClass::kNumber;
      if (is_space_character(c)) classes[c] = CharacterClass::kSpace;
    }
    return classes;
  }();
  return kClasses[point];
}

bool is_numeric_character(uint32_t c) {
  return class_of_character(c) == CharacterClass::kNumber || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);
}

bool is_space_character(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(uint32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // joiners
  const std::string_view category = category_of(c);
  if (category[0] == 'L' || category[0] == 'M') return true;
  if (category == "Nd" || category == "Nl" || category == "Pc") return true;
  // Letters in circles and squares are symbols by category, and alphabetic all the same.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool is_punctuation_character(uint32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && class_of_character(c) == CharacterClass::kOther;
  if (c == 0x166D || c == 0x111C9) return true;  // no longer
  return category_of(c)[0] == 'P' && !holds(kNewerPunctuation, c);
}

bool is_accent(uint32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // letters now
  return category_of(c)[0] == 'M' && !holds(kAfterUnicode9, c);
}

bool is_nonspacing_mark(uint32_t c) {
  if (c == 0x1734 || c == 0x1171E) return true;  // no longer
  return category_of(c) == "Mn" && !holds(kAfterUnicode9, c) && !holds(kAfterUnicode8, c);
}

bool is_printable_character(uint32_t c) {
  const std::string_view category = category_of(c);
  return c == ' ' || (category[0] != 'C' && category[0] != 'Z');
}

bool is_unknown_to_normalizers(uint32_t c) { return holds(kAfterUnicode9, c); }
bool is_removed_by_cleaning(uint32_t c) { return holds(kCleaned, c); }
bool is_chinese_character(uint32_t c) { return holds(kChinese, c); }

void append_lower(uint32_t c, std::string& text) {
  if (c == 0x130) return static_cast<void>(text += "i\u0307");
  constexpr std::array<std::pair<uint32_t, uint32_t>, 8> kPairs = {{{0x1C89, 0x1C8A},
                                                                    {0xA7CB, 0x264},
                                                                    {0xA7CC, 0xA7CD},
                                                                    {0xA7CE, 0xA7CF},
                                                                    {0xA7D2, 0xA7D3},
                                                                    {0xA7D4, 0xA7D5},
                                                                    {0xA7DA, 0xA7DB},
                                                                    {0xA7DC, 0x19B}}};
  for (const auto& [upper, lower] : kPairs)
    if (c == upper) return append_utf8(lower, text);
  if (c >= 0x10D50 && c <= 0x10D65) return append_utf8(c + 0x20, text);
  if (c >= 0x16EA0 && c <= 0x16EB8) return append_utf8(c + 0x1B, text);
  append_utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

uint32_t code_point_of(std::string_view text) {
  const auto at = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t c = at(0);
  if (c < 0x80) return c;
  if (c < 0xE0) return (c & 0x1F) << 6 | (at(1) & 0x3F);
  if (c < 0xF0) return (c & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
  return (c & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
}

void append_utf8(uint32_t c, std::string& text) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

std::span<const NewerCharacters> newer_characters() { return kNewer; }

}  // namespace onefold

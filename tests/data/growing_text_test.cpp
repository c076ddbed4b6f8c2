// Text that grows token by token.
#include "data/growing_text.h"

#include "data/scratch.h"

namespace onefold {
namespace {

// The pieces that come of bytes, and at the end of finish().
std::vector<std::string> pieces_of(std::string_view bytes, std::vector<std::string> stops = {}) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  GrowingText text(tokenizer, std::move(stops));
  std::vector<std::string> pieces;
  for (const char byte : bytes) pieces.push_back(text.add(static_cast<unsigned char>(byte)));
  pieces.push_back(text.finish());
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  EXPECT_EQ(all, text.text());
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(GrowingText, ShowsWholeCharactersOnly) {
  EXPECT_EQ(pieces_of("a\u00e9\u20ac\U0001F600"),
            (Pieces{"a", "", "\u00e9", "", "", "\u20ac", "", "", "", "\U0001F600", ""}));
}

// As Unicode recommends, and decoders do: one mark for as much as could have begun a character.
TEST(GrowingText, WhatIsNoCharacterBecomesAMark) {
  EXPECT_EQ(pieces_of("\xE2\x82"), (Pieces{"", "", "\uFFFD"}));        // cut off
  EXPECT_EQ(pieces_of("\xE2(x"), (Pieces{"", "\uFFFD(", "x", ""}));    // not continued
  EXPECT_EQ(pieces_of("\x80z"), (Pieces{"\uFFFD", "z", ""}));          // continues nothing
  EXPECT_EQ(pieces_of("\xC0\xAF"), (Pieces{"\uFFFD", "\uFFFD", ""}));  // a longer spelling
  EXPECT_EQ(pieces_of("\xED\xA0\x80"), (Pieces{"", "\uFFFD\uFFFD", "\uFFFD", ""}));  // a surrogate
  EXPECT_EQ(pieces_of("\xF4\x90"), (Pieces{"", "\uFFFD\uFFFD", ""}));  // beyond Unicode
}

TEST(GrowingText, ATokenThatTheTokenizerDoesNotHaveIsAMark) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  GrowingText text(tokenizer, {});
  EXPECT_EQ(text.add(262), "\uFFFD");
}

TEST(GrowingText, EndsBeforeAStopText) {
  EXPECT_EQ(pieces_of("ab\nUser: x", {"\nUser:"}),
            (Pieces{"a", "b", "", "", "", "", "", "", "", "", ""}));
  const Tokenizer tokenizer = Tokenizer::bytes();
  GrowingText text(tokenizer, {"zz", "END"});
  std::string shown;
  for (const char byte : std::string_view("xEENDzz")) shown += text.add(byte);
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(shown + text.finish(), "xE");
}

TEST(GrowingText, WhatOnlyBeganAStopTextIsShown) {
  EXPECT_EQ(pieces_of("aENxEN", {"END", ""}), (Pieces{"a", "", "", "ENx", "", "", "EN"}));
}

}  // namespace
}  // namespace onefold

#include "data/pretokenizer.h"

#include "error_text.h"

#include "data/scratch.h"

namespace onefold {
namespace {

std::vector<std::string> words_of(const PreTokenizer& pretokenizer, std::string_view text) {
  std::vector<std::string> words;
  pretokenizer.split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

PreTokenizer gpt2() {
  PreTokenizer pretokenizer;
  pretokenizer.add_gpt2();
  return pretokenizer;
}

PreTokenizer by_scanner(std::string_view pattern) {
  PreTokenizer pretokenizer;
  pretokenizer.add_split(pattern, SplitBehavior::kIsolated, false, "test");
  return pretokenizer;
}

// The group keeps a known pattern from being recognized.
PreTokenizer by_regex(std::string_view pattern) {
  PreTokenizer pretokenizer;
  pretokenizer.add_split("(?:" + std::string(pattern) + ")", SplitBehavior::kIsolated, false,
                         "test");
  return pretokenizer;
}

using Words = std::vector<std::string>;

TEST(PreTokenizer, CutsWordsAsGpt2Does) {
  const PreTokenizer words = gpt2();
  EXPECT_EQ(words_of(words, "Hello, world's 42!"),
            (Words{"Hello", ",", " world", "'s", " 42", "!"}));
  EXPECT_EQ(words_of(words, "a   b\n\n c \n"), (Words{"a", "  ", " b", "\n\n", " c", " \n"}));
  EXPECT_EQ(words_of(words, "x 's"), (Words{"x", " '", "s"}));
  EXPECT_EQ(words_of(words, ""), Words{});
}

TEST(PreTokenizer, CutsWordsAsLlama3AndQwenDo) {
  const std::string text = "I'LL pay $12345!!\n\n  (now)\t\tx \n";
  EXPECT_EQ(words_of(by_scanner(kLlama3Pattern), text),
            (Words{"I", "'LL", " pay", " $", "123", "45", "!!\n\n", " ", " (", "now", ")", "\t",
                   "\tx", " \n"}));
  EXPECT_EQ(words_of(by_scanner(kQwen2Pattern), "$12"), (Words{"$", "1", "2"}));
}

class Scanner : public testing::TestWithParam<std::string_view> {
 protected:
  void expect_same(std::string_view text) const {
    EXPECT_EQ(words_of(scanner_, text), words_of(regex_, text)) << testing::PrintToString(text);
  }
  const PreTokenizer scanner_ = by_scanner(GetParam()), regex_ = by_regex(GetParam());
};

TEST_P(Scanner, EqualsTheRegexOnATortureText) {
  const std::string text =
      "'s't're've'm'll'd'x' '''s 'S can't  we'll\t'll \n'l 'r 'v'' 1'2 a1b2 _x_ __ a-b...c?! "
      "'RE'Ll 12345 1 12\n\n!!\r\n\r .\n a\n\nb '\u017f 'l\u017f (a) \t(b "
      "\v\f\r\n \r\n\t x \x01\x7f "
      "\u00e9t\u00e9 a\u00e9 \u00e9a  \u00e9 \u4e2d\u6587 1\u00bd2 12\u00bd 123\u00bd \u00a0 "
      "\u00a0x \u3000\u3000y \u180e \u1680z "
      "\U0001F600\U0001F600!\U0001F600a '\u00e9 's\u00e9 \u2019s   \u2028 end  ";
  for (size_t at = 0; at < text.size(); ++at) {  // most of them begin or end mid-word
    expect_same(std::string_view(text).substr(at));
    expect_same(std::string_view(text).substr(0, at));
  }
}

TEST_P(Scanner, EqualsTheRegexOnRandomAscii) {
  std::mt19937 random(1);
  std::string all;
  for (int c = 0; c < 128; ++c) all.push_back(static_cast<char>(c));
  for (int i = 0; i < 3000; ++i) {
    expect_same(random_text(random, 40, " '\n\tslltredvma1 2  !\rLLS33"));
    expect_same(random_text(random, 40, all));
  }
}

TEST_P(Scanner, EqualsTheRegexOnRandomBytes) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i)
    expect_same(random_text(random, 30, "a '1 \n\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xff"));
}

INSTANTIATE_TEST_SUITE_P(Patterns, Scanner,
                         testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern));

TEST(PreTokenizer, KeepsEveryByteWhateverThePattern) {
  std::mt19937 random(3);
  for (const std::string_view pattern :
       {kGpt2Pattern, std::string_view(R"(\p{N})"), std::string_view("x*")}) {
    const PreTokenizer regex = by_regex(pattern);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_bytes(random, 50);
      std::string joined;
      for (const std::string& word : words_of(regex, text)) joined += word;
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, StagesCutThePiecesOfTheStageBefore) {
  PreTokenizer pretokenizer = by_regex(R"(\p{N})");
  pretokenizer.add_gpt2();
  EXPECT_EQ(words_of(pretokenizer, "in 2024!"), (Words{"in", " ", "2", "0", "2", "4", "!"}));
}

TEST(PreTokenizer, MarksBeginWords) {
  PreTokenizer pretokenizer;
  pretokenizer.add_before("▁");
  EXPECT_EQ(words_of(pretokenizer, "▁a▁▁b"), (Words{"▁a", "▁", "▁b"}));
  EXPECT_EQ(words_of(pretokenizer, "a▁"), (Words{"a", "▁"}));
}

TEST(PreTokenizer, WithoutStagesTheTextIsOneWord) {
  EXPECT_EQ(words_of(PreTokenizer(), "a b c"), Words{"a b c"});
}

TEST(PreTokenizer, SurvivesAMegabyteOfOneClass) {
  const PreTokenizer scanner = gpt2(), regex = by_regex(kGpt2Pattern);
  for (const std::string& unit :
       {std::string("\u00e9"), std::string("a"), std::string(" "), std::string("\u3000")}) {
    std::string text;
    for (int i = 0; i < 1 << 18; ++i) text += unit;
    EXPECT_EQ(words_of(scanner, text).size(), 1u);
    EXPECT_EQ(words_of(regex, text).size(), 1u);
  }
}

TEST(PreTokenizer, RefusesWhatDependsOnTheVersionOfUnicode) {
  for (const char* const pattern : {R"(a|\X)", R"(\yab)", R"([a]\Y)"})
    EXPECT_ERROR(by_regex(pattern), pattern, "version of Unicode");
  by_regex(R"(\\X|[x]y)");  // a backslash, and letters
}

// Ol Onal's letters came with Unicode 16, which Debian's library is older than.
TEST(PreTokenizer, WordsEndWhereNewerLettersDo) {
  const std::string word = "\U0001E5D0\U0001E5D1";
  EXPECT_EQ(words_of(by_regex("\\b"), word + " " + word), (Words{word, " ", word}));
  EXPECT_EQ(words_of(by_regex("\\B"), "a" + word), (Words{"a", "\U0001E5D0", "\U0001E5D1"}));
  // The library's own: fractions are letters of words, but not within a class.
  EXPECT_EQ(words_of(by_regex("\\b"), "\u00bdZ "), (Words{"\u00bdZ", " "}));
  EXPECT_EQ(words_of(by_regex("\\w+"), "\u00bdZ" + word), (Words{"\u00bdZ" + word}));
  EXPECT_EQ(words_of(by_regex("\\W+"), "\u00bd, " + word), (Words{"\u00bd", ", ", word}));
  EXPECT_EQ(words_of(by_regex("[\\w]+"), "\u00bdZ"), (Words{"\u00bd", "Z"}));
  EXPECT_EQ(words_of(by_regex("[\\b]"), "a\bb"), (Words{"a", "\b", "b"})) << "a backspace";
}

TEST(PreTokenizer, RefusesABrokenPatternByName) {
  expect_in(user_error_of([] { by_regex("(a"); }), {"test", "(a"});
}

}  // namespace
}  // namespace onefold

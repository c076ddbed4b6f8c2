#include "data/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <random>

#include "data/scratch.h"

namespace onefold {
namespace {

std::vector<std::string> learnt(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  for (int32_t id = 257; id < tokenizer.vocab_size(); ++id)
    tokens.push_back(tokenizer.token_text(id));
  return tokens;
}

Tokenizer train(std::initializer_list<std::string_view> documents, BpeOptions options) {
  BpeTrainer trainer;
  for (const std::string_view document : documents) trainer.add(document);
  return trainer.train(options);
}

using Tokens = std::vector<std::string>;

// Words: "ab" once, " ab" twice, " abc" once. Pairs: a+b 4, " "+a 3, b+c 1. After "ab": " "+"ab" 3,
// "ab"+c 1. After " ab": " ab"+c 1, which is too rare.
TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const Tokenizer tokenizer = train({"ab ab ab abc"}, {.vocab_size = 1000, .min_frequency = 2});
  EXPECT_EQ(learnt(tokenizer), (Tokens{"ab", " ab"}));
  EXPECT_EQ(tokenizer.encode(" abc"), (std::vector<int32_t>{258, 'c'}));
  EXPECT_EQ(tokenizer.end_of_text(), 256);
}

// Words: "cd", " ab" twice, " cd": " "+a, a+b and c+d occur twice each. " " < "a" < "c" as bytes;
// then " a"+b before c+d.
TEST(BpeTrainer, BreaksTiesByTheBytesOfThePair) {
  EXPECT_EQ(learnt(train({"cd ab cd ab"}, {.vocab_size = 1000, .min_frequency = 2})),
            (Tokens{" a", " ab", "cd"}));
}

TEST(BpeTrainer, OverlappingPairsMergeFromTheLeft) {
  const Tokenizer tokenizer = train({"aaaaa"}, {.vocab_size = 258, .min_frequency = 1});
  EXPECT_EQ(tokenizer.encode("aaaaa"), (std::vector<int32_t>{257, 257, 'a'}));
}

TEST(BpeTrainer, StopsAtTheVocabularyAskedFor) {
  int64_t last = 0;
  BpeOptions options{.vocab_size = 260, .min_frequency = 1};
  options.progress = [&](int64_t tokens, int64_t target) {
    EXPECT_EQ(target, 260);
    EXPECT_GT(tokens, last);
    last = tokens;
  };
  EXPECT_EQ(train({"several words make several pairs"}, options).vocab_size(), 260);
  EXPECT_EQ(last, 260);
}

// All pairs counted anew for each merge.
Tokens merged_naively(const std::map<std::string, int64_t>& words, size_t merges, int64_t least) {
  using Word = std::vector<std::string>;
  std::vector<std::pair<Word, int64_t>> state;
  for (const auto& [text, count] : words) {
    Word symbols;
    for (const char c : text) symbols.emplace_back(1, c);
    state.emplace_back(symbols, count);
  }
  Tokens learnt;
  while (learnt.size() < merges) {
    std::map<std::pair<std::string, std::string>, int64_t> pairs;
    for (const auto& [word, count] : state)
      for (size_t i = 0; i + 1 < word.size(); ++i) pairs[{word[i], word[i + 1]}] += count;
    auto best = pairs.begin();
    for (auto pair = pairs.begin(); pair != pairs.end(); ++pair)
      if (pair->second > best->second) best = pair;
    if (pairs.empty() || best->second < least) break;
    const auto [left, right] = best->first;
    for (auto& [word, count] : state) {
      Word merged;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        merged.push_back(here ? left + right : word[i]);
        i += here ? 1 : 0;
      }
      word = merged;
    }
    if (std::find(learnt.begin(), learnt.end(), left + right) == learnt.end())
      learnt.push_back(left + right);
  }
  return learnt;
}

// Few letters make overlapping pairs, tokens that two merges spell, and counts that tie; words of
// many lengths and counts; scripts whose characters have several bytes.
TEST(BpeTrainer, MergesAsCountingAnewForEachMergeWould) {
  std::mt19937 random(3);
  const std::vector<std::vector<std::string>> alphabets = {
      {"a"}, {"a", "b"}, {"a", "b", "c", "d"}, {"\u4e2d", "\u6587", "\u672c", "\u5b57", "\u0e01"}};
  for (const auto& letters : alphabets) {
    std::map<std::string, int64_t> words;
    BpeTrainer trainer(2);
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (size_t n = 1 + random() % 24; n > 0; --n) word += letters[random() % letters.size()];
      const int64_t count = 1 + static_cast<int64_t>(random() % 3);
      words[word] += count;
      for (int64_t n = 0; n < count; ++n) trainer.add(word);
    }
    for (const int64_t least : {1, 2}) {
      const Tokens learnt_here =
          learnt(trainer.train({.vocab_size = 257 + 60, .min_frequency = least}));
      EXPECT_EQ(learnt_here, merged_naively(words, 60, least)) << letters.size();
    }
  }
}

// A document that is counted in several pieces has the words of one that is not.
TEST(BpeTrainer, LongDocumentsAreCutWhereNoWordIs) {
  std::mt19937 random(4);
  const std::vector<std::string> pieces = {"word",         " ", "\n", "\n\n", " \n", "\u3000",
                                           "\u4e2d\u6587", "1", "'s", "!",    "\t",  "\xff",
                                           "\u00e9"};
  std::string text;
  while (text.size() < (size_t{1} << 20)) text += pieces[random() % pieces.size()];
  BpeTrainer trainer(2);
  trainer.add(text);
  std::map<std::string, int64_t> words;
  PreTokenizer gpt2;
  gpt2.add_gpt2();
  gpt2.split(text, [&](std::string_view word) { ++words[std::string(word)]; });
  EXPECT_EQ(trainer.distinct_words(), static_cast<int64_t>(words.size()));
  EXPECT_EQ(learnt(trainer.train({.vocab_size = 257 + 20, .min_frequency = 2})),
            merged_naively(words, 20, 2));
}

TEST(BpeTrainer, OrderOfDocumentsDoesNotMatter) {
  const BpeOptions options{.vocab_size = 400, .min_frequency = 1};
  const std::string_view a = "the quick brown fox", b = "jumps over the lazy dog",
                         c = "the end of the fox";
  EXPECT_EQ(train({a, b, c}, options).to_json(), train({c, a, b}, options).to_json());
}

// Counts everything anew for each merge.
std::vector<std::string> learnt_slowly(std::string_view text, int64_t merges) {
  PreTokenizer pretokenizer;
  pretokenizer.add_gpt2();
  std::vector<std::vector<std::string>> words;
  pretokenizer.split(text, [&](std::string_view word) {
    words.emplace_back();
    for (const char c : word) words.back().emplace_back(1, c);
  });
  const auto later = [](const auto& a, const auto& b) {
    return a.second < b.second;
  };  // map order: ties by bytes
  std::vector<std::string> tokens;
  while (static_cast<int64_t>(tokens.size()) < merges) {
    std::map<std::pair<std::string, std::string>, int64_t> counts;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    if (counts.empty()) break;
    const auto [left, right] = std::max_element(counts.begin(), counts.end(), later)->first;
    if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
      tokens.push_back(left + right);
    for (auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] += right;
        word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
  }
  return tokens;
}

TEST(BpeTrainer, IncrementalCountsEqualCountingAnew) {
  std::mt19937 random(5);
  for (int i = 0; i < 30; ++i) {
    const std::string text = random_text(random, 600, i % 2 ? "ab " : "abcde  \n'1");
    EXPECT_EQ(learnt(train({text}, {.vocab_size = 257 + 80, .min_frequency = 1})),
              learnt_slowly(text, 80))
        << text;
  }
}

TEST(BpeTrainer, EncodesItsOwnTextWithoutLoss) {
  std::mt19937 random(6);
  const std::string bytes = random_bytes(random, 5000);
  const Tokenizer tokenizer = train({bytes, "模型 模型 and words and words"}, {.vocab_size = 500});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
}

TEST(BpeTrainer, RefusesWhatItCannotDo) {
  expect_in(user_error_of([] { train({"text"}, {.vocab_size = 200}); }), {"200", "257"});
  expect_in(user_error_of([] { train({}, {.vocab_size = 300}); }), {"no text"});
}

}  // namespace
}  // namespace onefold

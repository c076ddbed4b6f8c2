#include "data/bpe_trainer.h"

#include <map>

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

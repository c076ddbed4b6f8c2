#include "data/tokenizer.h"

#include <thread>

#include "data/bpe_trainer.h"
#include "data/byte_level.h"
#include "data/scratch.h"

namespace onefold {
namespace {

Tokenizer small() {
  return Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Tokenizer, BytesAreTheirOwnIds) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  EXPECT_EQ(tokenizer.encode("Aa\n"), (std::vector<int32_t>{65, 97, 10}));
  EXPECT_EQ(tokenizer.token_text(256), "<|endoftext|>");
}

TEST(Tokenizer, RoundTripsText) {
  for (const Tokenizer& tokenizer : {Tokenizer::bytes(), small()}) {
    for (const std::string text :
         {"", " ", "plain text", "line\r\nline\r\n\r\n", "tab\tand  spaces   ",
          "emoji 😀👩‍👩‍👧🇫🇷", "模型比机器的内存大。", "Größe naïve e\u0301",
          "\xff\xfe not UTF-8", "cut short \xe4\xb8", "\xc0\x80 overlong", "\xed\xa0\x80 surrogate",
          "\xf4\x90\x80\x80 beyond", "<|endoftext|>"}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << testing::PrintToString(text);
    }
    const std::string zeros("a\0b\0\0", 5);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(zeros)), zeros);
  }
}

TEST(Tokenizer, RoundTripsRandomBytes) {
  std::mt19937 random(4);
  const Tokenizer tokenizer = small();
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_bytes(random, static_cast<size_t>(i));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Tokenizer::Specials::kMatch)), text);
  }
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  // One word far beyond the length where the heap takes over, of pieces that never merge across
  // their edges.
  const Tokenizer tokenizer = Tokenizer::parse(
      replaced(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json"),
               "\"use_regex\": true", "\"use_regex\": false"),
      "test");
  const std::vector<int32_t> one = tokenizer.encode("Größe der\x01");
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 1000; ++i) {
    text += "Größe der\x01";
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
  EXPECT_LT(tokenizer.encode(std::string(1 << 20, 'a')).size(),
            size_t{1 << 20} + 1);  // in time, too
}

TEST(Tokenizer, SpecialTokensAreTextUnlessAskedFor) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 13u);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>b", Tokenizer::Specials::kMatch),
            (std::vector<int32_t>{'a', 256, 'b'}));
}

TEST(Tokenizer, AddedTokensThatAreNotSpecialAreAlwaysFound) {
  const Tokenizer tokenizer = small();
  const std::vector<int32_t> ids = tokenizer.encode("<tool><|pad|>");
  EXPECT_EQ(ids[0], 700);
  EXPECT_GT(ids.size(), 2u);
}

TEST(Tokenizer, CutsThatCannotBeSeenInTheTokens) {
  const Tokenizer tokenizer = small();
  const std::string text = "It's one  word, two words\n\n three 4 words ümläut words ";
  for (size_t at = 0; at <= text.size(); ++at) {
    const size_t cut = tokenizer.safe_cut(text, at);
    ASSERT_GE(cut, std::min(at, text.size()));
    std::vector<int32_t> ids = tokenizer.encode(text.substr(0, cut));
    const std::vector<int32_t> rest = tokenizer.encode(text.substr(cut));
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, tokenizer.encode(text)) << cut;
  }
}

TEST(Tokenizer, ThreadsAndTokenizersShareNothingTheyShouldNot) {
  const Tokenizer a = small(), b = Tokenizer::bytes();
  const std::string text =
      "A training step is a program. The program gathers what it needs, and 模型.";
  const std::vector<int32_t> of_a = a.encode(text), of_b = b.encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        ASSERT_EQ(a.encode(text), of_a);
        ASSERT_EQ(b.encode(text), of_b);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, SavesWhatItLoads) {
  const ScratchFolder folder;
  for (const Tokenizer& tokenizer : {Tokenizer::bytes(), small()}) {
    tokenizer.save(folder.path("tokenizer.json"));
    const Tokenizer again = Tokenizer::load(folder.path("tokenizer.json"));
    EXPECT_EQ(again.to_json(), tokenizer.to_json());
    EXPECT_EQ(again.hash(), tokenizer.hash());
    EXPECT_EQ(again.end_of_text(), tokenizer.end_of_text());
    const std::string text = "The program's <tool> gathers 模型 in 2024.\n";
    EXPECT_EQ(again.encode(text), tokenizer.encode(text));
  }
  EXPECT_NE(Tokenizer::bytes().hash(), small().hash());
}

TEST(Tokenizer, ReadsMergesAsPairsAndAsStrings) {
  const std::string pairs = read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
  const std::string strings = small().to_json();
  EXPECT_NE(strings.find("\"e r\""), std::string::npos);
  const std::string text = "Die Größe des Modells";
  EXPECT_EQ(Tokenizer::parse(pairs, "a").encode(text), Tokenizer::parse(strings, "b").encode(text));
}

TEST(Tokenizer, SaysWhatIsWrongWithAFile) {
  const std::string good = small().to_json();
  const auto error = [](const std::string& json) {
    return user_error_of([&] { Tokenizer::parse(json, "dir/tokenizer.json"); });
  };
  expect_in(error("{"), {"dir/tokenizer.json", "line 1"});
  expect_in(error("[]"), {"dir/tokenizer.json"});
  expect_in(error("{}"), {"\"model\" is missing"});
  expect_in(error(replaced(good, "\"type\": \"BPE\"", "\"type\": \"Unigram\"")),
            {"Unigram", "byte-level BPE"});
  expect_in(error(replaced(good, "\"byte_fallback\": false", "\"byte_fallback\": true")),
            {"byte_fallback"});
  expect_in(error(replaced(good, "\"type\":\"ByteLevel\",\"use_regex\":true}",
                           "\"type\":\"Metaspace\"}")),
            {"Metaspace"});
  expect_in(error(replaced(good, "\"normalizer\": null", R"("normalizer": {"type": "Lowercase"})")),
            {"Lowercase"});
  expect_in(error(replaced(good, "\"e r\"", "\"e nothing\"")), {"merges[", "nothing"});
  expect_in(error(replaced(good, "\"merges\": [", "\"merges\": [ 7,")), {"merges[0]"});
  expect_in(error(replaced(good, "\"Ġ\": ", "\"Ġmissing\": ")), {"merges["});
  expect_in(user_error_of([] { Tokenizer::load("/nowhere/tokenizer.json"); }),
            {"/nowhere/tokenizer.json"});
}

TEST(Tokenizer, RefusesAVocabularyWithoutAllBytes) {
  std::string json = Tokenizer::bytes().to_json();
  expect_in(user_error_of([&] { Tokenizer::parse(replaced(json, "\"a\": 97,\n", ""), "t.json"); }),
            {"t.json", "0x61", "256 bytes"});
}

TEST(Tokenizer, RemarksThatNfcIsNotApplied) {
  const std::string json =
      replaced(small().to_json(), "\"normalizer\": null", R"("normalizer": {"type": "NFC"})");
  const Tokenizer tokenizer = Tokenizer::parse(json, "t.json");
  ASSERT_EQ(tokenizer.remarks().size(), 1u);
  expect_in(tokenizer.remarks()[0], {"t.json", "NFC"});
  EXPECT_TRUE(small().remarks().empty());
}

TEST(Tokenizer, RefusesToDecodeAnIdItDoesNotHave) {
  const std::vector<int32_t> ids = {1, 257};
  expect_in(user_error_of([&] { Tokenizer::bytes().decode(ids); }), {"257"});
}

TEST(ByteLevel, AlphabetRoundTripsEveryByte) {
  std::string all, back;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_TRUE(from_byte_alphabet(to_byte_alphabet(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_byte_alphabet("\n the"), "ĊĠthe");
  EXPECT_FALSE(from_byte_alphabet("▁the", back));
  EXPECT_FALSE(from_byte_alphabet(" ", back));
}

TEST(ByteLevel, HashIsFnv1a) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);  // from the authors' test vectors
}

}  // namespace
}  // namespace onefold

#include "data/tokenizer.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
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

// small() with one more token, 701.
Tokenizer with_added(const char* content, const Json& options, const Json& normalizer = Json()) {
  Json file = Json::parse(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json"));
  Json token = {{"id", 701},       {"content", content},   {"special", false},   {"lstrip", false},
                {"rstrip", false}, {"single_word", false}, {"normalized", false}};
  token.update(options);
  file["added_tokens"].push_back(token);
  file["normalizer"] = normalizer;
  return Tokenizer::parse(file.dump(), "added");
}

// The ids are those of `tokenizers`: white space that one occurrence takes is not another.
TEST(Tokenizer, AddedWhiteSpaceIsTakenOnce) {
  const Tokenizer both = with_added("\n", {{"lstrip", true}, {"rstrip", true}});
  EXPECT_EQ(both.encode("\n"), (std::vector<int32_t>{701}));
  EXPECT_EQ(both.encode("a\n\nb"), (std::vector<int32_t>{66, 701, 67}));
  EXPECT_EQ(both.encode("a \n \n b"), (std::vector<int32_t>{66, 701, 67}));
  const Tokenizer left = with_added("\n", {{"lstrip", true}});
  EXPECT_EQ(left.encode("a\n \n\n"), (std::vector<int32_t>{66, 701, 701, 701}));
  const Tokenizer right = with_added("\n", {{"rstrip", true}});
  EXPECT_EQ(right.encode("a\n \n\n"), (std::vector<int32_t>{66, 701, 701, 701}));
}

// `tokenizers` knows a special token by the text that it decodes.
TEST(Tokenizer, ASpecialTokenThatTheNormalizerChangesIsNotSkipped) {
  const Json lower = {{"type", "Lowercase"}};
  const auto decoded = [&](const Json& options) {
    return with_added("<END>", options, lower).decode_text(std::vector<int32_t>{66, 701}, true);
  };
  EXPECT_EQ(decoded({{"special", true}, {"normalized", true}}), "a<end>");
  EXPECT_EQ(decoded({{"special", true}, {"normalized", false}}), "a");
  EXPECT_EQ(decoded({{"special", false}, {"normalized", true}}), "a<end>");
}

// A word of its own is looked for with the space that the normalizer puts before it, so that what
// is before that space matters.
TEST(Tokenizer, IsNotCutBeforeAnAddedWord) {
  const Json prepend = {{"type", "Prepend"}, {"prepend", " "}};
  const Tokenizer tokenizer =
      with_added("the", {{"single_word", true}, {"normalized", true}}, prepend);
  const std::string text = "program the program";
  const size_t cut = tokenizer.safe_cut(text, 1);
  std::vector<int32_t> ids = tokenizer.encode(text.substr(0, cut));
  WordCache cache;
  tokenizer.encode(text.substr(cut), Tokenizer::Specials::kAsText, cache, ids,
                   Tokenizer::Place::kContinue);
  EXPECT_EQ(ids, tokenizer.encode(text)) << cut;
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

TEST(Tokenizer, MergesWithSpacesAreSavedAsPairs) {
  nlohmann::json file =
      nlohmann::json::parse(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json"));
  const size_t next = file["model"]["vocab"].size();
  for (const char* token : {" ", " e"})
    file["model"]["vocab"][token] = file["model"]["vocab"].size();
  file["model"]["merges"].push_back({" ", "e"});
  file["normalizer"] = nullptr;
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t.json");
  EXPECT_EQ(tokenizer.encode(" e"), std::vector<int32_t>{static_cast<int32_t>(next + 1)});
  const Tokenizer again = Tokenizer::parse(tokenizer.to_json(), "again");
  EXPECT_EQ(again.encode(" e"), tokenizer.encode(" e"));
  const nlohmann::json saved = nlohmann::json::parse(tokenizer.to_json());
  ASSERT_EQ(saved["model"]["merges"].size(), file["model"]["merges"].size());
  for (const auto& merge : saved["model"]["merges"])
    ASSERT_TRUE(merge.is_array());  // `tokenizers` reads no mixture
}

TEST(Tokenizer, SaysWhatIsWrongWithAFile) {
  const std::string good = small().to_json();
  const auto error = [](const std::string& json) {
    return user_error_of([&] { Tokenizer::parse(json, "dir/tokenizer.json"); });
  };
  expect_in(error("{"), {"dir/tokenizer.json", "line 1"});
  expect_in(error("[]"), {"dir/tokenizer.json"});
  expect_in(error("{}"), {"model is missing"});
  expect_in(error(replaced(good, "\"type\": \"BPE\"", "\"type\": \"Trigram\"")),
            {"model.type is \"Trigram\"", "BPE"});
  expect_in(error(replaced(good, "\"e r\"", "\"e nothing\"")), {"model.merges[", "nothing"});
  expect_in(error(replaced(good, "\"merges\": [", "\"merges\": [ 7,")), {"model.merges[0]"});
  expect_in(error(replaced(good, "\"Ġ\": ", "\"Ġmissing\": ")), {"model.merges["});
  expect_in(user_error_of([] { Tokenizer::load("/nowhere/tokenizer.json"); }),
            {"/nowhere/tokenizer.json"});
}

TEST(Tokenizer, BytesOfWhatIsAddedToACharacterAreNoFallback) {
  Json file = Json::parse(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    Json other = file;
    other["model"][key] = "@@";
    expect_in(user_error_of([&] { Tokenizer::parse(other.dump(), "t.json"); }),
              {"t.json", "model.byte_fallback is true beside"});
  }
}

TEST(Tokenizer, NamesThePathOfEveryPartItCannotRead) {
  struct Case {
    const char* path;   // JSON pointer to set
    const char* value;  // what to
    std::vector<std::string_view> message;
  };
  const Case kCases[] = {
      {"/truncation", R"({"max_length": 8})", {"truncation is set", "null"}},
      {"/padding", R"({"pad_id": 0})", {"padding is set"}},
      {"/surprise", "1", {"surprise is a key that Onefold does not know"}},
      {"/model/surprise", "1", {"model.surprise is a key"}},
      {"/model/dropout", "0.1", {"model.dropout is 0.1"}},
      {"/model/end_of_word_suffix", R"("</w>")", {"model.vocab has no token for byte 0x00"}},
      {"/model",
       R"({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
           "max_input_chars_per_word": 9, "vocab": {"a": 0}})",
       {"model.type is \"WordPiece\" with a ByteLevel"}},
      {"/model/ignore_merges", "1", {"model.ignore_merges is 1", "true or false"}},
      {"/normalizer", R"({"type": "Uppercase"})", {"normalizer.type is \"Uppercase\"", "NFC"}},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFZ"}]})",
       {"normalizer.normalizers[1].type is \"NFZ\""}},
      {"/normalizer",
       R"({"type": "Replace", "pattern": {"Regex": " +("}, "content": "_"})",
       {"the pattern  +(", "Oniguruma"}},
      {"/normalizer",
       R"({"type": "Precompiled", "precompiled_charsmap": "/v///w=="})",
       {"precompiled_charsmap is not a map"}},
      {"/normalizer",
       R"({"type": "Precompiled", "precompiled_charsmap": "!"})",
       {"normalizer.precompiled_charsmap is not base64"}},
      {"/normalizer", R"({"type": "NFC", "form": 1})", {"normalizer.form is a key"}},
      {"/pre_tokenizer",
       R"({"type": "UnicodeScripts"})",
       {"pre_tokenizer.type is \"UnicodeScripts\""}},
      {"/pre_tokenizer/trim", "1", {"pre_tokenizer.trim is a key"}},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       {"pre_tokenizer.pretokenizers[0] is ByteLevel before another"}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Gone", "invert": false})",
       {"pre_tokenizer.behavior is \"Gone\"", "Isolated"}},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})",
       {"pre_tokenizer.add_prefix_space is false", "never"}},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "ab"})",
       {"pre_tokenizer.replacement must be one character"}},
      {"/decoder", R"({"type": "CTC"})", {"decoder.type is \"CTC\""}},
      {"/decoder",
       R"({"type": "Strip", "content": " ", "start": "x", "stop": 0})",
       {"decoder.start is \"x\"", "an integer"}},
      {"/post_processor",
       R"({"type": "OtherProcessing"})",
       {"post_processor.type is \"OtherProcessing\"", "TemplateProcessing"}},
      {"/post_processor",
       R"({"type": "BertProcessing", "sep": ["x", 9000], "cls": ["x", 0]})",
       {"post_processor.sep has the id 9000"}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}],
           "pair": [], "special_tokens": {}})",
       {"post_processor.single[0].SpecialToken.id is not among"}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}})",
       {"post_processor.single has no Sequence"}},
      {"/added_tokens/0/id", "9", {"added_tokens[0].id is 9", "model.vocab says so"}},
      {"/added_tokens/2/id", "800", {"added_tokens[2].id is 800", "one by one"}},
      {"/added_tokens/1/shape", "1", {"added_tokens[1].shape is a key"}},
      {"/added_tokens/1/content", "null", {"added_tokens[1].content is missing"}},
      {"/model/vocab/new", "4000000000", {"model.vocab has the id 4000000000 for \"new\""}},
      {"/model/vocab/new", "9000", {"model.vocab has the id 9000", "[0, 3840) for 704 tokens"}},
      {"/model/vocab/new", "5", {"model.vocab gives the id 5"}},
      {"/model/vocab/new", "1.5", {"model.vocab has 1.5"}},
  };
  const nlohmann::json good = nlohmann::json::parse(small().to_json());
  for (const Case& c : kCases) {
    nlohmann::json file = good;
    file[nlohmann::json::json_pointer(c.path)] = nlohmann::json::parse(c.value);
    SCOPED_TRACE(c.path);
    const std::string message =
        user_error_of([&] { Tokenizer::parse(file.dump(), "dir/tokenizer.json"); });
    expect_in(message, {"dir/tokenizer.json: "});
    for (const std::string_view part : c.message) expect_in(message, {part});
  }
}

TEST(Tokenizer, RefusesASentencePieceVocabularyThatWouldLoseText) {
  nlohmann::json file =
      nlohmann::json::parse(read_file(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json"));
  const auto error = [&] {
    return user_error_of([&] { Tokenizer::parse(file.dump(), "t.json"); });
  };
  file["model"]["unk_token"] = "<none>";
  expect_in(error(), {"t.json: model.unk_token is \"<none>\"", "model.vocab"});
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Tokenizer::parse(file.dump(), "t.json").encode("\u2603").size(), 4u);  // and a space
  file["model"]["byte_fallback"] = false;
  expect_in(error(), {"model.byte_fallback is false and unk_token is null"});
  file["model"]["byte_fallback"] = true;
  file["model"]["vocab"].erase("<0x41>");
  file["model"]["vocab"]["filler"] = 3 + 0x41;
  expect_in(error(), {"model.vocab has no token for byte 0x41"});
}

// `tokenizers` takes text that is UTF-8; bytes that are none are ours to define.
TEST(Tokenizer, BytesThatAreNotUtf8KeepTheirValue) {
  const Tokenizer llama =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json");
  const auto byte = [](int b) { return 3 + b; };
  const std::vector<int32_t> ids = llama.encode("\xff\xc3");
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(llama.token_text(ids[0]), " ");
  EXPECT_EQ(ids[1], byte(0xFF));
  EXPECT_EQ(ids[2], byte(0xC3));
  const std::vector<int32_t> around = llama.encode("the\xff program");
  EXPECT_EQ(std::count(around.begin(), around.end(), byte(0xFF)), 1);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::string text = "x" + random_bytes(random, static_cast<size_t>(i));
    EXPECT_EQ(llama.decode(llama.encode(text)), " " + text);
  }
}

TEST(Tokenizer, NfcLeavesBytesThatAreNotUtf8) {
  nlohmann::json file = nlohmann::json::parse(small().to_json());
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t.json");
  const std::string decomposed = "e\u0301", composed = "\u00e9";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(decomposed + "\xff" + decomposed + " \xcc")),
            composed + "\xff" + composed + " \xcc");
}

TEST(Tokenizer, DecodesBytesAndText) {
  const Tokenizer llama =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json");
  const std::vector<int32_t> ids = llama.encode("the program");
  EXPECT_EQ(llama.decode(ids), " the program");  // pieces of a text can be put together
  EXPECT_EQ(llama.decode_text(ids), "the program");
  const std::vector<int32_t> broken = {1, 3 + 0xE4, 3 + 0xB8, 2};
  EXPECT_EQ(llama.decode(broken), "<s>\xe4\xb8</s>");
  EXPECT_EQ(llama.decode_text(broken), "<s>\uFFFD\uFFFD</s>");
  EXPECT_EQ(llama.decode_text(broken, true), "\uFFFD\uFFFD");
}

TEST(Tokenizer, RefusesAFileThatIsCutShortByItsLine) {
  expect_in(user_error_of([] { Tokenizer::parse("{\n\"model\": {", "t.json"); }),
            {"t.json is not a tokenizer.json: parse error at line 2, column 11"});
}

TEST(Tokenizer, RefusesAVocabularyWithoutAllBytes) {
  std::string json = Tokenizer::bytes().to_json();
  expect_in(user_error_of([&] { Tokenizer::parse(replaced(json, "\"a\": 97,\n", ""), "t.json"); }),
            {"t.json", "0x61", "256 bytes"});
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

TEST(ByteLevel, LossyTextReplacesMaximalIllFormedParts) {
  const std::string r = "\uFFFD";
  // The example of the Unicode Standard (chapter 3, table 3-8), and ends of text.
  EXPECT_EQ(utf8_lossy("a\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(utf8_lossy("\xF0\x80\x80\xE4\xB8"), r + r + r + r);
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80 \u00e9"), r + r + r + " \u00e9");
}

TEST(ByteLevel, HashIsFnv1a) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);  // from the authors' test vectors
}

// As `tokenizers` (0.23) decodes them: a run of byte tokens that is not UTF-8 as a whole is one
// U+FFFD a byte.
TEST(ByteFallback, RunsOfByteTokensDecodeAsTheReferenceDoes) {
  const Tokenizer llama =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json");
  const auto decoded = [&](std::vector<int32_t> ids) { return llama.decode_text(ids); };
  EXPECT_EQ(decoded({231, 192, 163}), "\u4f60");
  EXPECT_EQ(decoded({231, 192}), "\ufffd\ufffd");
  EXPECT_EQ(decoded({231, 192, 163, 258}), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(decoded({100, 101, 198}), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(decoded({231, 192, 565, 163}), "\ufffd\ufffda\ufffd");
  EXPECT_EQ(decoded({13, 198, 172}), "\n\u00e9");
  EXPECT_EQ(decoded({636, 258}), "\ufffd");
}

}  // namespace
}  // namespace onefold

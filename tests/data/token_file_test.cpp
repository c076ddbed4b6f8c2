#include "data/token_file.h"

#include <cstring>

#include "base/broken_files.h"
#include "data/byte_level.h"
#include "data/dataset.h"
#include "data/scratch.h"
#include "data/tokenize.h"

namespace onefold {
namespace {

DataSource tokens_at(const std::string& path) {
  return {.paths = {path}, .format = DataFormat::kTokens};
}

std::vector<int32_t> all_tokens(const Dataset& dataset) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, tokens);
  return tokens;
}

// Three documents; `vocab_size` decides the width.
std::string write_small(const ScratchFolder& folder, int64_t vocab_size, int32_t end_of_text) {
  TokenFileWriter writer(folder.path("small.tokens"), vocab_size, end_of_text, 77);
  writer.add(std::vector<int32_t>{1, 2});
  writer.add(std::vector<int32_t>{3});
  writer.end_document();
  writer.end_document();  // an empty one, left out
  writer.add(std::vector<int32_t>{4, 5});
  writer.end_document();
  writer.add(std::vector<int32_t>{6});
  writer.finish();
  return folder.path("small.tokens");
}

TEST(TokenFile, ReadsWhatWasWritten) {
  ThreadPool pool(1);
  const ScratchFolder folder;
  for (const int64_t vocab_size : {int64_t{300}, int64_t{65536}, int64_t{65537}}) {
    const std::string path = write_small(folder, vocab_size, 9);
    const TokenFile file(path);
    EXPECT_EQ(file.info().token_bytes, vocab_size > 65536 ? 4 : 2);
    EXPECT_EQ(file.info().documents, 3);
    EXPECT_EQ(file.info().tokens, 9);
    EXPECT_EQ(file.info().end_of_text, 9);
    EXPECT_EQ(file.info().tokenizer_hash, 77u);
    EXPECT_EQ(file.info().vocab_size, vocab_size);
    const Dataset dataset = Dataset::open(tokens_at(path), nullptr, pool);
    EXPECT_EQ(all_tokens(dataset), (std::vector<int32_t>{1, 2, 3, 9, 4, 5, 9, 6, 9}));
    EXPECT_EQ(dataset.document_start(1), 4);
    EXPECT_EQ(dataset.document_start(2), 7);
    EXPECT_EQ(dataset.document_start(3), 9);
  }
  EXPECT_EQ(folder.files(), 1) << "temporary files are left behind";
}

TEST(TokenFile, AFullDiskKeepsTheOldOneAndShortWritesAreNoFault) {
  const ScratchFolder folder;
  const std::string whole = read_file(write_small(folder, 300, 9));
  const auto size = static_cast<int64_t>(whole.size());
  // The header comes a second time, at the end.
  for (const int64_t room : {int64_t{0}, int64_t{70}, size - 1, size, size + 1, size + 63}) {
    test::BrokenFiles files;
    files.fill_up_after(room);
    expect_in(user_error_of([&] { write_small(folder, 70000, 9); }),
              {"cannot write", folder.path("small.tokens"), "No space left on device"});
    EXPECT_EQ(read_file(folder.path("small.tokens")), whole);
    EXPECT_EQ(folder.files(), 1);
  }
  test::BrokenFiles files;
  files.cut_writes(5);
  EXPECT_EQ(read_file(write_small(folder, 300, 9)), whole);
}

TEST(TokenFile, HasTheBytesThatItsDocumentationGives) {
  const ScratchFolder folder;
  const std::string bytes = read_file(write_small(folder, 300, -1));
  const auto u32 = [&](size_t at) {
    uint32_t v;
    std::memcpy(&v, bytes.data() + at, 4);
    return v;
  };
  const auto u64 = [&](size_t at) {
    uint64_t v;
    std::memcpy(&v, bytes.data() + at, 8);
    return v;
  };
  ASSERT_EQ(bytes.size(), 64 + 16 + 3 * 8u);  // six tokens of two bytes, padded to eight
  EXPECT_EQ(bytes.substr(0, 8), std::string("ONEFTOK\0", 8));
  EXPECT_EQ(u32(8), 1u);
  EXPECT_EQ(u32(12), 2u);
  EXPECT_EQ(u64(16), 300u);
  EXPECT_EQ(u64(24), 6u);
  EXPECT_EQ(u64(32), 3u);
  EXPECT_EQ(u64(40), UINT64_MAX);  // -1
  EXPECT_EQ(u64(48), 77u);
  EXPECT_EQ(u64(56), fnv1a64(bytes.substr(0, 56)));
  EXPECT_EQ(bytes.substr(64, 4), std::string("\x01\0\x02\0", 4));
  EXPECT_EQ(u64(80), 0u);
  EXPECT_EQ(u64(88), 3u);
  EXPECT_EQ(u64(96), 5u);
}

TEST(TokenFile, LeavesNothingBehindIfNotFinished) {
  const ScratchFolder folder;
  {
    TokenFileWriter writer(folder.path("x.tokens"), 300, -1, 0);
    writer.add(std::vector<int32_t>{1});
  }
  EXPECT_EQ(folder.files(), 0);
  {
    TokenFileWriter writer(folder.path("x.tokens"), 300, -1, 0);
    expect_in(user_error_of([&] { writer.finish(); }), {"x.tokens", "no tokens"});
  }
  EXPECT_EQ(folder.files(), 0);
  expect_in(user_error_of([] { TokenFileWriter writer("/nowhere/x.tokens", 300, -1, 0); }),
            {"/nowhere/x.tokens"});
}

TEST(TokenFile, RefusesToWriteATokenOutsideTheVocabulary) {
  const ScratchFolder folder;
  TokenFileWriter writer(folder.path("x.tokens"), 300, -1, 0);
  expect_in(user_error_of([&] { writer.add(std::vector<int32_t>{300}); }), {"300"});
  expect_in(user_error_of([&] { writer.add(std::vector<int32_t>{-1}); }), {"-1"});
}

// One case for each field and section of the file that can be damaged.
class DamagedTokenFile : public testing::Test {
 protected:
  std::string error_with(const std::string& bytes) {
    const std::string path = folder_.write("damaged.tokens", bytes);
    const std::string message = user_error_of([&] { TokenFile file(path); });
    expect_in(message, {path});
    return message;
  }
  // The good file with eight bytes changed, and a header checksum that fits.
  std::string with_u64(size_t at, uint64_t value) {
    std::string bytes = good_;
    std::memcpy(bytes.data() + at, &value, 8);
    const uint64_t checksum = fnv1a64(std::string_view(bytes).substr(0, 56));
    std::memcpy(bytes.data() + 56, &checksum, 8);
    return bytes;
  }

  ScratchFolder folder_;
  std::string good_ = read_file(write_small(folder_, 300, -1));
};

TEST_F(DamagedTokenFile, CutShortAnywhere) {
  for (size_t length = 0; length < good_.size(); ++length) error_with(good_.substr(0, length));
  expect_in(error_with(good_.substr(0, good_.size() - 1)), {"cut short", "tokenize"});
  expect_in(error_with(good_ + "x"), {"too long"});
  expect_in(error_with(""), {"not a token file"});
}

TEST_F(DamagedTokenFile, AnyByteOfTheHeader) {
  for (size_t at = 0; at < 64; ++at) {
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    error_with(bytes);
  }
  expect_in(
      error_with("just some text that is long enough to be a header, but is not one, of course"),
      {"not a token file", "format"});
  std::string version = good_;
  version[8] = 9;
  expect_in(error_with(version), {"version 9", "versions 1 and 2"});
}

TEST_F(DamagedTokenFile, NumbersThatMakeNoSense) {
  error_with(with_u64(16, 0));                        // no vocabulary
  error_with(with_u64(24, UINT64_MAX / 2));           // tokens: the size in bytes would overflow
  error_with(with_u64(24, 0));                        // no tokens
  error_with(with_u64(32, UINT64_MAX / 8));           // documents
  error_with(with_u64(32, 0));                        // no documents
  error_with(with_u64(40, 300));                      // end-of-text outside the vocabulary
  error_with(with_u64(12, uint64_t{300} << 32 | 3));  // three bytes for each token
}

TEST_F(DamagedTokenFile, DocumentsOutOfOrder) {
  expect_in(error_with(with_u64(80, 1)), {"first document"});
  expect_in(error_with(with_u64(88, 0)), {"document 1"});
  expect_in(error_with(with_u64(96, 3)), {"document 2"});
  expect_in(error_with(with_u64(96, 6)), {"document 2"});
}

TEST_F(DamagedTokenFile, ATokenOutsideTheVocabularyIsFoundWhenRead) {
  std::string bytes = good_;
  bytes[64 + 2 * 3 + 1] = 1;  // token 3, which was 4, is now 260: still inside
  ThreadPool pool(1);
  const std::string path = folder_.write("damaged.tokens", bytes);
  const Dataset fine = Dataset::open(tokens_at(path), nullptr, pool);
  EXPECT_EQ(all_tokens(fine)[3], 260);
  bytes[64 + 2 * 3 + 1] = 2;
  folder_.write("damaged.tokens", bytes);
  const Dataset damaged = Dataset::open(tokens_at(path), nullptr, pool);
  expect_in(user_error_of([&] { all_tokens(damaged); }), {path, "token 3", "516", "300"});
}

std::string words_of_lines() {
  std::mt19937 random(8);
  std::string text;
  for (int i = 0; i < 30000; ++i)
    text += random_text(random, 1 + random() % 12, "abcdefgh") + (i % 10 ? " " : ".\n");
  for (int i = 0; i < 7; ++i)
    text += text.substr(0, 200000);  // long enough for several rounds of several chunks
  return text;
}

TEST(TokenizeToFile, GivesTheTokensOfTheTextForAnyNumberOfThreads) {
  const ScratchFolder folder;
  const std::string text = words_of_lines(), path = folder.write("text.txt", text);
  for (const char* name : {"tokenizer_small.json", "tokenizer_llama.json"}) {
    const Tokenizer tokenizer = Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/" + name);
    EXPECT_LT(tokenizer.safe_cut(text, 1000), 2000u);  // else there is one chunk only
    std::vector<int32_t> expected = tokenizer.encode(text);
    expected.push_back(tokenizer.end_of_text());
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto info =
          tokenize_to_file({.paths = {path}}, tokenizer, pool, folder.path("text.tokens"));
      EXPECT_EQ(info->documents, 1);
      const Dataset dataset =
          Dataset::open(tokens_at(folder.path("text.tokens")), &tokenizer, pool);
      EXPECT_EQ(all_tokens(dataset), expected);
      EXPECT_EQ(all_tokens(Dataset::open({.paths = {path}}, &tokenizer, pool)), expected);
    }
  }
}

TEST(TokenizeToFile, PutsTheTemplateAroundEachDocument) {
  const ScratchFolder folder;
  const Tokenizer llama =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_llama.json");
  ThreadPool pool(2);
  const DataSource source{.paths = {folder.write("t.txt", "the program\nthe\n")},
                          .text_documents = TextDocuments::kLine};
  tokenize_to_file(source, llama, pool, folder.path("t.tokens"), {.add_template = true});
  std::vector<int32_t> expected;
  for (const char* line : {"the program", "the"}) {
    expected.push_back(1);
    const std::vector<int32_t> ids = llama.encode(line);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(2);
  }
  EXPECT_EQ(all_tokens(Dataset::open(tokens_at(folder.path("t.tokens")), &llama, pool)), expected);
}

TEST(TokenizeToFile, TellsHowFarItIsAndStopsWithoutAFile) {
  const ScratchFolder folder;
  const DataSource source{
      .paths = {folder.write("a.txt", words_of_lines()), folder.write("b.txt", words_of_lines())}};
  ThreadPool pool(1);
  std::vector<int64_t> seen;
  int64_t all = 0;
  const auto count = [&](int64_t done, int64_t total) {
    seen.push_back(done);
    all = total;
    return true;
  };
  ASSERT_TRUE(tokenize_to_file(source, Tokenizer::bytes(), pool, folder.path("t.tokens"),
                               {.progress = count}));
  EXPECT_EQ(all, static_cast<int64_t>(2 * words_of_lines().size()));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GE(seen.size(), 3u);
  EXPECT_LT(seen.front(), all / 2);
  EXPECT_EQ(seen.back(), all);

  EXPECT_FALSE(tokenize_to_file(source, Tokenizer::bytes(), pool, folder.path("stopped.tokens"),
                                {.progress = [](int64_t, int64_t) { return false; }}));
  EXPECT_EQ(folder.files(), 3);  // the two texts and the first token file
}

}  // namespace
}  // namespace onefold

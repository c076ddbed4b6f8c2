// What data may be beside plain files of text: compressed, pipes, patterns, files with weights,
// token files of other trainers, and conversations with the loss on their answers.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "data/batch.h"
#include "data/byte_input.h"
#include "data/chat.h"
#include "data/scratch.h"
#include "data/tokenize.h"

namespace onefold {
namespace {

std::string gzipped(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstandard(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the program zstd does
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string all_of(const std::string& path) {
  ByteInput input(path);
  std::string text, block(1000, '\0');
  while (const size_t count = input.read(block)) text.append(block, 0, count);
  EXPECT_EQ(input.taken_bytes(), file_bytes(path));
  return text;
}

std::vector<std::string> documents_of(const DataSource& source, DocumentReport* report = nullptr) {
  std::vector<std::string> documents;
  const DocumentReport found = for_each_document(source, [&](const Document& document) {
    if (document.begins) documents.emplace_back();
    documents.back() += document.text;
  });
  if (report) *report = found;
  return documents;
}

std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) text += fmt::format("line {} of it\n", i * i);
  return text;
}

TEST(ByteInput, GivesWhatWasCompressed) {
  const ScratchFolder folder;
  const std::string text = long_text();
  EXPECT_EQ(all_of(folder.write("a.txt", text)), text);
  EXPECT_EQ(all_of(folder.write("a.gz", gzipped(text))), text);
  EXPECT_EQ(all_of(folder.write("a.zst", zstandard(text))), text);
  // Several members or frames, zeros after the last, and any name.
  EXPECT_EQ(all_of(folder.write("b.gz", gzipped("one ") + gzipped(text) + std::string(9, '\0'))),
            "one " + text);
  EXPECT_EQ(all_of(folder.write("b", zstandard("one ") + zstandard(text))), "one " + text);
}

TEST(ByteInput, NamesTheFileThatIsDamagedOrCutShort) {
  const ScratchFolder folder;
  const std::string text = long_text();
  for (const bool gzip : {true, false}) {
    const std::string name = gzip ? "a.gz" : "a.zst",
                      whole = gzip ? gzipped(text) : zstandard(text);
    const auto error = [&](const std::string& content) {
      folder.write(name, content);
      return user_error_of([&] { all_of(folder.path(name)); });
    };
    for (const size_t size : {whole.size() - 1, whole.size() - 9, whole.size() / 2, size_t{12}})
      expect_in(error(whole.substr(0, size)), {folder.path(name) + " is cut short"});
    std::string damaged = whole;
    for (size_t i = 5000; i < 5064; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    expect_in(error(damaged), {folder.path(name), gzip ? "gzip data is damaged" : "zstd data"});
    expect_in(error(whole + "rest"), {folder.path(name)});
    expect_in(error("plain"), {folder.path(name), gzip ? "no gzip data" : "no zstd data"});
    expect_in(error(""), {folder.path(name)});
  }
}

TEST(ByteInput, ReadsAPipe) {
  const ScratchFolder folder;
  const std::string path = folder.path("pipe"), text = long_text();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(is_read_once(path));
  EXPECT_TRUE(is_read_once("-"));
  EXPECT_FALSE(is_read_once(folder.write("file", "x")));
  std::thread writer([&] { write_file(path, text); });
  ByteInput input(path);
  std::string read(text.size() + 1, '\0');
  EXPECT_EQ(input.read(read), text.size());
  writer.join();
  read.resize(text.size());
  EXPECT_EQ(read, text);
}

TEST(ByteInput, APointerOfGitLfsIsNoText) {
  const ScratchFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  expect_in(user_error_of([&] { ByteInput input(folder.write("book.txt", pointer)); }),
            {"book.txt is a pointer of Git LFS", "git lfs pull"});
  EXPECT_EQ(all_of(folder.write("long.txt", pointer + long_text())), pointer + long_text());
}

TEST(LineReader, KeepsEndsAndPositionsApart) {
  const ScratchFolder folder;
  ByteInput input(folder.write("a", "one\r\n\ntwo\nthree\r"));
  LineReader lines(input);
  std::vector<std::string> seen;
  while (lines.next())
    seen.push_back(fmt::format("{}@{}#{}+{}", lines.line(), lines.position(), lines.number(),
                               lines.end().size()));
  EXPECT_EQ(seen, (std::vector<std::string>{"one@0#1+2", "@5#2+1", "two@6#3+1", "three@10#4+0"}));
}

TEST(LineReader, RefusesALineWithoutEnd) {
  const ScratchFolder folder;
  ByteInput input(folder.write("a", "one\n" + std::string(900'000, 'x')));
  LineReader lines(input, 300'000);
  EXPECT_TRUE(lines.next());
  expect_in(user_error_of([&] { lines.next(); }), {"a:2: this line is longer than"});
}

TEST(Documents, AreTheSameCompressedAndInPieces) {
  const ScratchFolder folder;
  const std::string text = long_text() + "\n \n" + long_text() + "\n\nlast\r\n";
  const std::string plain = folder.write("a.txt", text), gz = folder.write("a.gz", gzipped(text));
  for (const auto unit : {TextDocuments::kFile, TextDocuments::kLine, TextDocuments::kBlankLine}) {
    const auto documents = documents_of({.paths = {plain}, .text_documents = unit});
    EXPECT_EQ(documents_of({.paths = {gz}, .text_documents = unit}), documents);
    if (unit == TextDocuments::kFile) {
      EXPECT_EQ(documents, std::vector<std::string>{text});
    }
    if (unit == TextDocuments::kBlankLine) {
      const std::string paragraph = long_text().substr(0, long_text().size() - 1);
      EXPECT_EQ(documents, (std::vector<std::string>{paragraph, paragraph, "last"}));
    }
  }
  const Tokenizer tokenizer = Tokenizer::bytes();
  ThreadPool pool(2);
  std::vector<int32_t> ids;
  int ends = 0;
  tokenize({.paths = {gz}}, tokenizer, pool,
           {[&](std::span<const int32_t> tokens, bool) {
              ids.insert(ids.end(), tokens.begin(), tokens.end());
            },
            [&](bool) { ++ends; }});
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(ends, 1);
}

TEST(Documents, PatternsAreFilesInOrderOfTheirNames) {
  const ScratchFolder folder;
  make_folders(folder.path("d1"));
  make_folders(folder.path("d2"));
  for (const char* name :
       {"b2.txt", "b1.txt", "c.txt", "[x].txt", ".b3.txt", "d1/e.txt", "d2/e.txt"})
    folder.write(name, name);
  const auto found = [&](const std::string& pattern) {
    return documents_of({.paths = {folder.path(pattern)}});
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(found("b*.txt"), (Names{"b1.txt", "b2.txt"}));
  EXPECT_EQ(found("[bc]?.txt"), (Names{"b1.txt", "b2.txt"}));
  EXPECT_EQ(found("d*/e.txt"), (Names{"d1/e.txt", "d2/e.txt"}));
  EXPECT_EQ(found("[x].txt"), Names{"[x].txt"});  // a file of that name is there
  expect_in(user_error_of([&] { found("z*"); }), {"no file matches", "z*"});
  EXPECT_EQ(input_bytes({.paths = {folder.path("b*.txt")}}), 12);
}

TEST(Documents, FormatsAreToldByNames) {
  EXPECT_EQ(format_by_name("a.jsonl.gz"), DataFormat::kJsonl);
  EXPECT_EQ(format_by_name("a.txt.zst"), DataFormat::kText);
  EXPECT_EQ(format_by_name("a*.ndjson"), DataFormat::kJsonl);
  EXPECT_EQ(format_by_name("train.bin"), DataFormat::kTokens);
  EXPECT_EQ(format_by_name("-"), DataFormat::kText);
  EXPECT_EQ(format_by_name("a.parquet"), std::nullopt);
  EXPECT_EQ(format_by_name("a.json.gz"), std::nullopt);
}

TEST(Documents, BadLinesStopOrAreCounted) {
  const ScratchFolder folder;
  DataSource source{.paths = {folder.write("a.jsonl",
                                           "{\"text\": \"one\"}\n{\"text\": \"\\ud800\"}\n[1]\n"
                                           "{\"text\": 5}\n{\"other\": 1}\n{\"text\": \"two\"}\n")},
                    .format = DataFormat::kJsonl};
  expect_in(user_error_of([&] { documents_of(source); }), {"a.jsonl:2", "surrogate"});
  source.skip_bad = true;
  DocumentReport report;
  EXPECT_EQ(documents_of(source, &report), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(report.skipped, 4);
  expect_in(report.first_skipped, {"a.jsonl:2"});
  // An error of whoever visits is not a bad line.
  EXPECT_THROW(for_each_document(source, [](const Document&) { user_error("full"); }), UserError);
}

// --- token files of other trainers ---

template <typename Word>
std::string as_bytes_of(const std::vector<Word>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(Word)};
}

std::string llmc(int32_t magic, int32_t tokens, const std::string& body) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = 1;
  header[2] = tokens;
  return as_bytes_of(header) + body;
}

struct Opened {
  std::vector<int32_t> tokens;
  std::vector<int64_t> starts;
  int32_t end_of_text;
};

Opened open_tokens(const std::string& path, const Tokenizer* tokenizer, int64_t vocab_size = 0) {
  ThreadPool pool(1);
  const Dataset data = Dataset::open(
      {.paths = {path}, .format = DataFormat::kTokens, .vocab_size = vocab_size}, tokenizer, pool);
  Opened opened{std::vector<int32_t>(static_cast<size_t>(data.tokens())), {}, data.end_of_text()};
  data.read(0, opened.tokens);
  for (int64_t d = 0; d < data.documents(); ++d) opened.starts.push_back(data.document_start(d));
  return opened;
}

TEST(ForeignTokens, NanoGptAndLlmcFilesAreRead) {
  const ScratchFolder folder;
  const Tokenizer bytes = Tokenizer::bytes();  // end-of-text 256
  const std::vector<uint16_t> ids = {1, 2, 256, 3, 256, 4, 5};
  const std::vector<int32_t> same(ids.begin(), ids.end());
  const Opened nano = open_tokens(folder.write("train.bin", as_bytes_of(ids)), &bytes);
  EXPECT_EQ(nano.tokens, same);
  EXPECT_EQ(nano.starts, (std::vector<int64_t>{0, 3, 5}));  // after each end-of-text
  EXPECT_EQ(nano.end_of_text, 256);

  const std::vector<uint16_t> led = {256, 1, 2, 256, 3};
  const Opened gpt2 =
      open_tokens(folder.write("gpt2.bin", llmc(20240520, 5, as_bytes_of(led))), &bytes);
  EXPECT_EQ(gpt2.tokens, (std::vector<int32_t>{256, 1, 2, 256, 3}));
  EXPECT_EQ(gpt2.starts, (std::vector<int64_t>{0, 3}));  // with each
  EXPECT_EQ(gpt2.end_of_text, -1);

  const std::vector<uint32_t> wide = {70000, 1, 2};
  const Opened llama =
      open_tokens(folder.write("llama.bin", llmc(20240801, 3, as_bytes_of(wide))), nullptr, 70001);
  EXPECT_EQ(llama.tokens, (std::vector<int32_t>{70000, 1, 2}));
  EXPECT_EQ(llama.starts, std::vector<int64_t>{0});
}

TEST(ForeignTokens, SizesAndIdsAreChecked) {
  const ScratchFolder folder;
  const Tokenizer bytes = Tokenizer::bytes();
  const auto error = [&](const std::string& name, const std::string& content,
                         const Tokenizer* tokenizer) {
    folder.write(name, content);
    return user_error_of([&] { open_tokens(folder.path(name), tokenizer); });
  };
  expect_in(error("a.bin", "123", &bytes), {"no multiple of 2"});
  expect_in(error("a.bin", "", &bytes), {"holds no tokens"});
  expect_in(error("a.bin", "\xff\xff", &bytes), {"token 0 is 65535", "vocabulary of 257"});
  expect_in(error("a.bin", "ab", nullptr), {"data.tokenizer", "model.vocab_size"});
  expect_in(error("a.tokens", "ab", &bytes), {"is not a token file"});
  expect_in(error("b.bin", llmc(20240520, 3, "abcd"), &bytes), {"2 tokens", "says 3"});
  expect_in(error("b.bin", llmc(20240520, -1, "abcd"), &bytes), {"says -1"});
  expect_in(error("b.bin", llmc(20240801, 1, "abc"), &bytes), {"no multiple of 4"});
  expect_in(error("b.bin", llmc(20240801, 1, "abc").substr(0, 500), &bytes), {"cut short"});
  expect_in(error("b.bin", llmc(20240801, 0, ""), &bytes), {"holds no tokens"});
}

// --- conversations ---

Tokenizer chat_tokenizer() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  int32_t id = 256;
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    parts.tokens.emplace_back(text);
    parts.added.push_back({.id = id++, .text = text});
  }
  parts.pretokenizer.add_gpt2();
  parts.decoder.add_byte_level();
  return Tokenizer(std::move(parts));
}

// Text in which tokens that are trained on are in braces.
std::string marked(const Tokenizer& tokenizer, const ChatTokens& chat) {
  std::string text;
  bool open = false;
  for (size_t i = 0; i < chat.tokens.size(); ++i) {
    if (chat.counted[i] != open) text += open ? "}" : "{";
    open = chat.counted[i];
    text += tokenizer.token_text(chat.tokens[i]);
  }
  return text + (open ? "}" : "");
}

TEST(Chat, AnswersAndTheirEndsAreTrainedOn) {
  const Tokenizer tokenizer = chat_tokenizer();
  const ChatFormat chat(tokenizer, std::nullopt);
  Conversation talk = {.messages = {{"system", "Be kind."},
                                    {"user", "Hi <|im_end|>"},
                                    {"assistant", "Hello!"},
                                    {"user", "?"},
                                    {"assistant", "!", false}}};
  const ChatTokens tokens = chat.render(talk, "here");
  EXPECT_EQ(marked(tokenizer, tokens),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n"
            "<|im_start|>assistant\n{Hello!<|im_end|>}\n<|im_start|>user\n?<|im_end|>\n"
            "<|im_start|>assistant\n!<|im_end|>");
  // The markers are special tokens, and a message that spells one is not.
  EXPECT_EQ(std::count(tokens.tokens.begin(), tokens.tokens.end(), 258), 5);
  EXPECT_EQ(chat.end_of_answer(), 258);
  talk.messages.resize(2);
  EXPECT_EQ(tokenizer.decode(chat.prompt(talk)),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(Chat, MarkersMayBeOthers) {
  const Tokenizer bytes = Tokenizer::bytes();
  expect_in(user_error_of([&] { ChatFormat(bytes, std::nullopt); }), {"<|im_start|>", "data.chat"});
  ChatMarkers markers;
  markers.roles = {{"user", {"Q: ", "\n"}}, {"assistant", {"A: ", "<|endoftext|>"}}};
  const ChatFormat chat(bytes, markers);
  const ChatTokens tokens = chat.render({.messages = {{"user", "1+1"}, {"assistant", "2"}}}, "");
  EXPECT_EQ(marked(bytes, tokens), "Q: 1+1\nA: {2<|endoftext|>}");
  EXPECT_EQ(tokens.tokens.back(), 256);
  expect_in(user_error_of([&] {
              chat.render({.messages = {{"tool", "x"}}}, "f:3");
            }),
            {"f:3: the role \"tool\"", "assistant, user"});
}

TEST(Chat, BothSpellingsOfConversationsAreRead) {
  const auto parse = [](const char* json) {
    std::string text;
    for (const ChatMessage& message : parse_conversation(parse_json_line(json), "f:1").messages)
      text += message.role + (message.counted ? "=" : "-") + message.content + ";";
    return text;
  };
  EXPECT_EQ(parse(R"({"messages": [{"role": "user", "content": "a"},
                      {"role": "assistant", "content": [{"type": "text", "text": "b"},
                                                        {"type": "text", "text": "c"}]},
                      {"role": "assistant", "content": "", "weight": 0}]})"),
            "user=a;assistant=bc;assistant-;");
  EXPECT_EQ(parse(R"({"conversations": [{"from": "human", "value": "a"},
                      {"from": "gpt", "value": "b"}, {"from": "system", "value": "c"}]})"),
            "user=a;assistant=b;system=c;");
  const auto error = [&](const char* json) { return user_error_of([&] { parse(json); }); };
  expect_in(error(R"({"text": "x"})"), {"f:1", "neither \"messages\" nor \"conversations\""});
  expect_in(error(R"({"messages": []})"), {"at least one message"});
  expect_in(error(R"({"messages": [1]})"), {"message 1 is a number"});
  expect_in(error(R"({"messages": [{"role": "user"}]})"), {"message 1 has no \"content\""});
  expect_in(error(R"({"messages": [{"role": "user", "content": null}]})"),
            {"message 1 has no \"content\""});
  expect_in(error(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
            {"not text"});
  expect_in(error(R"({"messages": [{"role": "user", "content": "a", "weight": 0.5}]})"),
            {"must be 0 or 1"});
}

class Masked : public testing::Test {
 protected:
  // 16 conversations, each with an answer of one letter.
  Masked() {
    std::string lines;
    for (int i = 0; i < 16; ++i)
      lines += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}]}})"
          "\n",
          std::string(static_cast<size_t>(i), 'x'), static_cast<char>('a' + i));
    source_ = {.paths = {folder_.write("chat.jsonl", lines)}, .format = DataFormat::kChat};
  }
  Dataset open() { return Dataset::open(source_, &tokenizer_, pool_); }
  // Targets of all sequences, as text.
  std::string targets_of(const SequenceSet& set) const {
    std::string text;
    std::vector<int32_t> tokens(static_cast<size_t>(set.length())), targets = tokens;
    for (int64_t i = 0; i < set.count(); ++i) {
      set.get(i, tokens, targets);
      for (size_t t = 0; t < targets.size(); ++t) {
        if (targets[t] == kIgnoredTarget) continue;
        text += tokenizer_.token_text(targets[t]);
        if (t + 1 < tokens.size()) {
          EXPECT_EQ(tokens[t + 1], targets[t]);  // aligned
        }
      }
    }
    return text;
  }

  ScratchFolder folder_;
  const Tokenizer tokenizer_ = chat_tokenizer();
  ThreadPool pool_{2};
  DataSource source_;
};

TEST_F(Masked, SequencesKeepMaskAndTokensAlignedInEveryMode) {
  const Dataset data = open();
  EXPECT_TRUE(data.masked());
  EXPECT_EQ(data.documents(), 16);
  std::string answers;
  for (char c = 'a'; c < 'a' + 16; ++c) answers += std::string(1, c) + "<|im_end|>";
  for (const auto mode :
       {DocumentMode::kPacked, DocumentMode::kIsolated, DocumentMode::kSeparated}) {
    for (const int64_t length : {int64_t{7}, int64_t{64}}) {
      const SequenceSet set(data, {0, data.tokens()}, length, mode, "training data");
      std::string wanted = answers;
      if (mode != DocumentMode::kSeparated && set.unused_tokens() > 1)
        wanted = wanted.substr(0, targets_of(set).size());  // the end fills no sequence
      EXPECT_EQ(targets_of(set), wanted) << document_mode_name(mode) << " " << length;
      EXPECT_GE(targets_of(set).size(), answers.size() - 11);
      const auto found = static_cast<int64_t>(targets_of(set).size()) / 11 * 2;
      EXPECT_NEAR(static_cast<double>(set.targets()), static_cast<double>(found), 1);
      std::vector<int32_t> tokens(static_cast<size_t>(length)), targets = tokens;
      for (int64_t i = 0; i < set.count(); ++i) {
        set.get(i, tokens, targets);
        EXPECT_TRUE(std::any_of(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
      }
    }
  }
  const SequenceSet packed(data, {0, data.tokens()}, 7, DocumentMode::kPacked, "training data");
  EXPECT_LT(packed.count(), (data.tokens() - 1) / 7);
}

TEST_F(Masked, TokenFilesKeepTheMask) {
  const Dataset data = open();
  const std::string path = folder_.path("chat.tokens");
  const auto info = tokenize_to_file(source_, tokenizer_, pool_, path);
  ASSERT_TRUE(info);
  EXPECT_TRUE(info->masked);
  const Dataset file =
      Dataset::open({.paths = {path}, .format = DataFormat::kTokens}, &tokenizer_, pool_);
  ASSERT_EQ(file.tokens(), data.tokens());
  std::vector<int32_t> a(static_cast<size_t>(data.tokens())), b = a;
  data.read_targets(0, a);
  file.read_targets(0, b);
  EXPECT_EQ(a, b);
  EXPECT_GT(std::count(a.begin(), a.end(), -1), 0);
  EXPECT_EQ(file.count_targets({0, file.tokens()}), 32);
  // Documents end with end-of-text, which is not trained on: <|im_end|> is the answer's end.
  EXPECT_EQ(file.end_of_text(), 256);
  EXPECT_FALSE(file.is_target(file.tokens() - 1));
  EXPECT_TRUE(file.is_target(file.tokens() - 2));

  std::string bytes = read_file(path);
  EXPECT_EQ(bytes[8], 2);  // version
  folder_.write("short.tokens", bytes.substr(0, bytes.size() - 8));
  expect_in(user_error_of([&] { TokenFile(folder_.path("short.tokens")); }), {"is cut short"});
  // Text alone has no mask, and its files are of the first version.
  tokenize_to_file({.paths = {folder_.write("a.txt", "plain")}}, tokenizer_, pool_,
                   folder_.path("plain.tokens"));
  EXPECT_EQ(read_file(folder_.path("plain.tokens"))[8], 1);
}

TEST_F(Masked, AnEndThatIsThereIsNotRepeated) {
  Tokenizer instruct = tokenizer_;
  instruct.set_end_of_text(258, "a test");
  const Dataset data = Dataset::open(source_, &instruct, pool_);
  EXPECT_EQ(data.tokens(), open().tokens() - 16);
  EXPECT_TRUE(data.is_target(data.tokens() - 1));
  // Without a marker after answers, end-of-text is what ends them.
  ChatMarkers markers;
  markers.roles = {{"user", {"Q", ""}}, {"assistant", {"A", ""}}};
  source_.chat = markers;
  const Dataset bare = open();
  EXPECT_TRUE(bare.is_target(bare.tokens() - 1));
}

TEST_F(Masked, DataWithoutAnswersIsRefused) {
  source_.paths = {folder_.write(
      "asked.jsonl", R"({"messages": [{"role": "user", "content": "is there anyone?"}]})")};
  const Dataset data = open();
  expect_in(user_error_of([&] {
              SequenceSet(data, {0, data.tokens()}, 4, DocumentMode::kPacked, "training data");
            }),
            {"training data has nothing to train on"});
}

TEST(TargetMask, HasABitForEachToken) {
  TargetMask mask;
  std::vector<bool> wanted;
  for (int i = 0; i < 60; ++i) {
    const bool counted = i % 3 != 2;
    mask.add(i % 7, i < 5 || counted);
    wanted.insert(wanted.end(), static_cast<size_t>(i % 7), i < 5 || counted);
  }
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(TargetMask::counts(mask.bits().data(), static_cast<int64_t>(i)), wanted[i]) << i;
  TargetMask all;
  all.add(1000, true);
  EXPECT_TRUE(all.empty());
}

// --- special tokens in text ---

TEST(SpecialTokens, InTextAreMatchedWhereAskedFor) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = chat_tokenizer();
  ThreadPool pool(1);
  DataSource source{.paths = {folder.write("a.txt", "one<|im_end|>two<|endoftext|>")}};
  EXPECT_EQ(Dataset::open(source, &tokenizer, pool).tokens(), 30);
  source.special_tokens = true;
  const Dataset matched = Dataset::open(source, &tokenizer, pool);
  std::vector<int32_t> ids(static_cast<size_t>(matched.tokens()));
  matched.read(0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'o', 'n', 'e', 258, 't', 'w', 'o', 256}));
}

// --- weights ---

TEST(WeightedSampler, DrawsEachGroupAsOftenAsItsWeightSays) {
  for (const bool shuffle : {true, false}) {
    const Sampler sampler({{10, 2.0}, {8, 0.5}, {5, 1.0}}, 7, shuffle);
    EXPECT_EQ(sampler.count(), 20 + 4 + 5);
    std::map<int64_t, int> drawn;
    for (int64_t epoch = 0; epoch < 6; ++epoch) {
      std::map<int64_t, int> here;
      for (int64_t i = 0; i < sampler.count(); ++i) {
        const Sampler::Sample sample = sampler.sample(epoch * sampler.count() + i);
        EXPECT_EQ(sample.epoch, epoch);
        ++drawn[sample.index];
        ++here[sample.index];
      }
      for (int64_t s = 0; s < 10; ++s) EXPECT_EQ(here[s], 2);
      for (int64_t s = 18; s < 23; ++s) EXPECT_EQ(here[s], 1);
    }
    // Half of the second group in each epoch, and another half in the next.
    for (int64_t s = 10; s < 18; ++s) EXPECT_EQ(drawn[s], 3) << s;
    EXPECT_EQ(drawn.size(), 23u);
  }
}

TEST(WeightedSampler, WeightsOfOneChangeNothing) {
  const Sampler plain(23, 7, true), grouped({{10, 1.0}, {13, 1.0}}, 7, true);
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(plain.sample(i).index, grouped.sample(i).index);
}

TEST(WeightedSampler, OrdersAreOtherInEachPass) {
  const Sampler sampler({{50, 2.0}, {3, 1.0}}, 1, true);
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < sampler.count(); ++i) {
    first.push_back(sampler.sample(i).index);
    second.push_back(sampler.sample(sampler.count() + i).index);
    EXPECT_EQ(sampler.sample(i).index, first.back());  // a function of the position alone
  }
  EXPECT_NE(first, second);
}

TEST(WeightedData, GroupsAreSetsOfTheirOwn) {
  const ScratchFolder folder;
  folder.write("a1.txt", std::string(100, 'a'));
  folder.write("a2.txt", std::string(50, 'a'));
  folder.write("b.txt", std::string(80, 'b'));
  const Tokenizer bytes = Tokenizer::bytes();
  ThreadPool pool(1);
  const Dataset data = Dataset::open(
      {.paths = {folder.path("a*.txt"), folder.path("b.txt")}, .weights = {1, 3}}, &bytes, pool);
  ASSERT_EQ(data.groups().size(), 2u);
  EXPECT_EQ(data.groups()[0].range.tokens(), 152);
  EXPECT_EQ(data.groups()[1].range.tokens(), 81);
  std::vector<SequenceSet> sets;
  for (const Dataset::Group& group : data.groups())
    sets.emplace_back(data, group.range, 20, DocumentMode::kPacked, "training data");
  const BatchLoader loader(SequenceMix(std::move(sets)), 1, true, {}, {1, 3});
  EXPECT_EQ(loader.sequences().count(), 7 + 4);
  EXPECT_EQ(loader.sampler().count(), 7 + 12);
  std::map<int32_t, int> sequences;
  for (int64_t step = 0; step < 19; ++step) {
    const Batch batch = loader.get(step, 0, 0);
    const std::set<int32_t> letters(batch.tokens.begin(), batch.tokens.end());
    EXPECT_FALSE(letters.contains('a') && letters.contains('b'));
    ++sequences[letters.contains('a') ? 'a' : 'b'];
  }
  EXPECT_EQ(sequences['a'], 7);
  EXPECT_EQ(sequences['b'], 12);
}

}  // namespace
}  // namespace onefold

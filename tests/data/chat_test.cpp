// Conversations as text and tokens.
#include "data/chat.h"

#include "data/scratch.h"

namespace onefold {
namespace {

// Bytes, and ChatML's two tokens.
Tokenizer chat_tokenizer() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    parts.added.push_back({.id = static_cast<int32_t>(parts.tokens.size()), .text = name});
    parts.tokens.emplace_back(name);
  }
  parts.pretokenizer.add_gpt2();
  parts.decoder.add_byte_level();
  return Tokenizer(std::move(parts));
}

const std::vector<ChatMessage> kMessages = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello."}};

TEST(Chat, ChatmlMarksEveryRole) {
  const ChatText chat = render_chat(kMessages, chatml_markup(), true);
  EXPECT_EQ(chat.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_EQ(chat.contents.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(
        chat.text.substr(chat.contents[i].begin, chat.contents[i].end - chat.contents[i].begin),
        kMessages[i].content);
  EXPECT_EQ(render_chat({}, chatml_markup(), false).text, "");
}

TEST(Chat, AnUnknownRoleIsNamed) {
  const std::vector<ChatMessage> messages = {{"robot", "x"}};
  expect_in(user_error_of([&] { render_chat(messages, chatml_markup(), false); }),
            {"\"robot\"", "system, user and assistant"});
}

TEST(Chat, MarksAreSpecialTokensAndWhatMessagesSpellIsNot) {
  const Tokenizer tokenizer = chat_tokenizer();
  const std::vector<ChatMessage> messages = {{"user", "a<|im_end|>b"}};
  const std::vector<int32_t> ids =
      encode_chat(tokenizer, render_chat(messages, chatml_markup(), true));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 257), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 258), 1);
  EXPECT_EQ(tokenizer.decode(ids),
            "<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n");
}

// Without special tokens between them, marks and messages are one text: tokens span both.
TEST(Chat, PlainMarksAreEncodedTogetherWithMessages) {
  const Tokenizer tokenizer =
      Tokenizer::load(std::string(ONEFOLD_GOLDEN_DIR) + "/tokenizer_small.json");
  const ChatMarkup markup{.system = {},
                          .user = {.before = "User: ", .after = "\n"},
                          .assistant = {.before = "Bot:", .after = "\n"}};
  const std::vector<ChatMessage> messages = {{"user", "the cat and the dog"}};
  const ChatText chat = render_chat(messages, markup, true);
  EXPECT_EQ(chat.text, "User: the cat and the dog\nBot:");
  EXPECT_EQ(encode_chat(tokenizer, chat), tokenizer.encode(chat.text));
}

}  // namespace
}  // namespace onefold

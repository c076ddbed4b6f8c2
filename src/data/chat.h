// Conversations as text: messages between the marks of their roles.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace onefold {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatMarks {
  std::string before, after;
};
struct ChatMarkup {
  ChatMarks system, user, assistant;
  const ChatMarks& of(std::string_view role) const;
};
// <|im_start|>user\n ... <|im_end|>\n
ChatMarkup chatml_markup();

struct ChatText {
  struct Span {
    size_t begin, end;
  };
  std::string text;
  std::vector<Span> contents;  // what each message itself says
};
// With `reply`, what the assistant would write comes next.
ChatText render_chat(std::span<const ChatMessage> messages, const ChatMarkup& markup, bool reply);

// Special tokens that the marks spell are those tokens; those that messages spell are plain text.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat);

}  // namespace onefold

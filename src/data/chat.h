// Conversations as tokens, and for each token whether it is trained on, which the answers and their
// end markers are. Either each message stands between markers that say whose it is, which become
// special tokens, and a message that merely spells one stays plain text; or the template of the
// model's folder renders the conversation (chat_template.h), and its tokens are those of
// transformers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace onefold {

struct ChatMessage {
  std::string role, content;
  bool counted = true;  // false: not trained on, even if it is an answer
};
using Conversation = std::vector<ChatMessage>;

inline constexpr const char* kChatSystem = "system";
inline constexpr const char* kChatUser = "user";
inline constexpr const char* kChatAssistant = "assistant";

// {"messages": [{"role": "user", "content": "..."}, ...]}, where content may be a list of
// {"type": "text", "text": "..."}, and "weight": 0 takes an answer out of the loss; or ShareGPT's
// {"conversations": [{"from": "human", "value": "..."}, ...]}, with human and gpt for user and
// assistant. UserError, which begins with `where`, if it is neither.
Conversation parse_conversation(const nlohmann::json& object, const std::string& where);

// What is put around messages.
struct ChatMarkers {
  struct Around {
    std::string before, after;
  };
  std::map<std::string, Around> roles;
  std::string between;  // two messages

  // <|im_start|>user\n ... <|im_end|>, with a newline between messages, for system, user and
  // assistant.
  static ChatMarkers chatml();
};

struct ChatTokens {
  std::vector<int32_t> tokens;
  std::vector<bool> counted;  // for each token: whether it is trained on
};

class ChatTemplate;

class ChatFormat {
 public:
  // Without markers: the template that came with the tokenizer; else ChatML, if the tokenizer has
  // <|im_start|> and <|im_end|>; else a UserError. The tokenizer must outlive it.
  ChatFormat(const Tokenizer& tokenizer, const std::optional<ChatMarkers>& markers);
  ~ChatFormat();

  // Trained on: the content of each answer, and the marker after it. UserError that begins with
  // `where` for a role without markers.
  ChatTokens render(std::span<const ChatMessage> messages, const std::string& where) const;
  // The messages, and the marker that begins an answer: what generation continues.
  std::vector<int32_t> prompt(std::span<const ChatMessage> messages) const;
  // Whether a template renders conversations, with all that begins and ends a text.
  bool has_template() const { return template_ != nullptr; }
  // Whether no marker ends an answer.
  bool ends_bare() const;
  // The token that ends an answer, or -1 if its end marker does not begin with a special token.
  int32_t end_of_answer() const;

 private:
  struct Encoded {
    std::vector<int32_t> before, after;
  };
  ChatTokens render_template(std::span<const ChatMessage> messages, const std::string& where) const;
  int32_t end_of_short_answer() const;
  const Encoded& markers_of(const std::string& role, const std::string& where) const;

  const Tokenizer& tokenizer_;
  std::map<std::string, Encoded> roles_;
  std::vector<int32_t> between_;
  std::unique_ptr<const ChatTemplate> template_;
};

}  // namespace onefold

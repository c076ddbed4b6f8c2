// Conversations as tokens, and for each token whether it is trained on, which the answers and their
// end markers are. Either each message stands between markers that say whose it is, which become
// special tokens, and a message that merely spells one stays plain text; or the template of the
// model's folder renders the conversation (chat_template.h), and its tokens are those of
// transformers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/tokenizer.h"

namespace onefold {

struct ChatMessage {
  std::string role, content;
  bool counted = true;  // false: not trained on, even if it is an answer
  // What a template gets instead of role and content: the message with all of its keys.
  Json fields = nullptr;
};

struct Conversation {
  std::vector<ChatMessage> messages;
  // Lists of objects that a template gets beside the messages, or null.
  Json tools = nullptr, documents = nullptr;
};

inline constexpr const char* kChatSystem = "system";
inline constexpr const char* kChatUser = "user";
inline constexpr const char* kChatAssistant = "assistant";
inline constexpr const char* kChatTool = "tool";  // what a tool that the assistant called returns

// {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}, where content may be a
// list of {"type": "text", "text": "..."}, and "weight": 0 takes an answer out of the loss; or
// ShareGPT's {"conversations": [{"from": "human", "value": "..."}, ...]}, with human and gpt for
// user and assistant. A message may have "tool_calls"; then its content may be missing or null.
// UserError, which begins with `where`, if it is neither.
Conversation parse_conversation(const Json& object, const std::string& where);

// The names of what was thought before an answer. A template gets the first that a message has by
// each of the first two.
inline constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking",
                                                          "reasoning"};
// What a message says beside its content: "tool_calls", "reasoning_content", ...
std::vector<std::string_view> beside_content(const ChatMessage& message);

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

  // UserError, which begins with `where`, for what markers cannot show: another role, calls of
  // tools, what is thought beside the content.
  void require_shown(const Conversation& conversation, const std::string& where) const;
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

  // Trained on: the content of each answer, its calls of tools, and the marker after it. UserError
  // that begins with `where` for what markers, or the template, do not show.
  ChatTokens render(const Conversation& conversation, const std::string& where) const;
  // The conversation, and the marker that begins an answer: what generation continues.
  std::vector<int32_t> prompt(const Conversation& conversation) const;
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
  ChatTokens render_template(const Conversation& conversation, const std::string& where) const;
  ChatTokens render_markers(const Conversation& conversation) const;
  int32_t end_of_short_answer() const;

  const Tokenizer& tokenizer_;
  ChatMarkers markers_;
  std::map<std::string, Encoded> roles_;
  std::vector<int32_t> between_;
  std::unique_ptr<const ChatTemplate> template_;
};

}  // namespace onefold

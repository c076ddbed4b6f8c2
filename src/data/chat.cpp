#include "data/chat.h"

#include <algorithm>

#include "base/error.h"

namespace onefold {
namespace {

// The longest special token that the text begins with; null if there is none.
const AddedToken* special_at(const Tokenizer& tokenizer, std::string_view text) {
  const AddedToken* longest = nullptr;
  for (const AddedToken& token : tokenizer.added_tokens())
    if (token.special && !token.text.empty() && text.starts_with(token.text) &&
        (longest == nullptr || token.text.size() > longest->text.size()))
      longest = &token;
  return longest;
}

}  // namespace

const ChatMarks& ChatMarkup::of(std::string_view role) const {
  if (role == "system") return system;
  if (role == "user") return user;
  if (role == "assistant") return assistant;
  user_error("a message has the role \"{}\"; roles are system, user and assistant", role);
}

ChatMarkup chatml_markup() {
  const auto marks = [](const char* role) {
    return ChatMarks{std::string("<|im_start|>") + role + "\n", "<|im_end|>\n"};
  };
  return {.system = marks("system"), .user = marks("user"), .assistant = marks("assistant")};
}

ChatText render_chat(std::span<const ChatMessage> messages, const ChatMarkup& markup, bool reply) {
  ChatText chat;
  for (const ChatMessage& message : messages) {
    const ChatMarks& marks = markup.of(message.role);
    chat.text += marks.before;
    chat.contents.push_back({chat.text.size(), chat.text.size() + message.content.size()});
    chat.text += message.content + marks.after;
  }
  if (reply) chat.text += markup.assistant.before;
  return chat;
}

// Marks and contents are encoded together, because tokens depend on their neighbours: the text is
// cut at special tokens alone.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat) {
  std::vector<int32_t> ids;
  WordCache cache;
  size_t begin = 0, at = 0;  // of what is not encoded yet, and what is looked at
  const auto encode_to = [&](size_t end) {
    tokenizer.encode(std::string_view(chat.text).substr(begin, end - begin),
                     Tokenizer::Specials::kAsText, cache, ids,
                     begin == 0 ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
  };
  auto content = chat.contents.begin();
  while (at < chat.text.size()) {
    if (content != chat.contents.end() && at == content->begin) {
      at = (content++)->end;
      continue;
    }
    const size_t end = content == chat.contents.end() ? chat.text.size() : content->begin;
    const std::string_view marks = std::string_view(chat.text).substr(at, end - at);
    const AddedToken* token = special_at(tokenizer, marks);
    if (token == nullptr) {
      ++at;
      continue;
    }
    encode_to(at);
    ids.push_back(token->id);
    begin = at += token->text.size();
  }
  encode_to(chat.text.size());
  return ids;
}

}  // namespace onefold

#include "data/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace onefold {
namespace {

using nlohmann::json;

constexpr const char* kImStart = "<|im_start|>";
constexpr const char* kImEnd = "<|im_end|>";

const std::string& text_at(const json& message, const char* key, const std::string& where) {
  const auto found = message.find(key);
  if (found == message.end()) user_error("{} has no \"{}\"", where, key);
  if (!found->is_string())
    user_error("{}: \"{}\" is {} where a string is needed", where, key, found->type_name());
  return found->get_ref<const std::string&>();
}

// A string, or a list of parts that are all text.
std::string content_of(const json& message, const std::string& where) {
  const auto found = message.find("content");
  if (found == message.end() || !found->is_array()) return text_at(message, "content", where);
  std::string content;
  for (const json& part : *found) {
    if (!part.is_object() || part.value("type", json()) != json("text"))
      user_error("{} has a part of its content that is not text", where);
    content += text_at(part, "text", where);
  }
  return content;
}

// "weight" of OpenAI's format: 0 or 1.
bool counts(const json& message, const std::string& where) {
  const auto found = message.find("weight");
  if (found == message.end() || found->is_null() || *found == 1) return true;
  if (*found != 0) user_error("{}: \"weight\" must be 0 or 1", where);
  return false;
}

std::string share_gpt_role(const std::string& from) {
  if (from == "human") return kChatUser;
  if (from == "gpt" || from == "chatgpt") return kChatAssistant;
  return from;
}

bool is_special(const Tokenizer& tokenizer, const char* text) {
  const auto& added = tokenizer.added_tokens();
  return std::any_of(added.begin(), added.end(),
                     [&](const AddedToken& token) { return token.text == text; });
}

std::vector<int32_t> encode_marker(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  WordCache cache;
  if (!text.empty())
    tokenizer.encode(text, Tokenizer::Specials::kMatch, cache, ids, Tokenizer::Place::kContinue);
  return ids;
}

}  // namespace

Conversation parse_conversation(const json& object, const std::string& where) {
  const bool share_gpt = object.contains("conversations") && !object.contains("messages");
  const char* const key = share_gpt ? "conversations" : "messages";
  const auto list = object.find(key);
  if (list == object.end())
    user_error("{}: there is neither \"messages\" nor \"conversations\" on this line", where);
  if (!list->is_array() || list->empty())
    user_error("{}: \"{}\" must be a list with at least one message", where, key);
  Conversation conversation;
  for (const json& message : *list) {
    const std::string at = fmt::format("{}: message {}", where, conversation.size() + 1);
    if (!message.is_object()) user_error("{} is {}, not an object", at, message.type_name());
    if (share_gpt)
      conversation.push_back(
          {share_gpt_role(text_at(message, "from", at)), text_at(message, "value", at)});
    else
      conversation.push_back(
          {text_at(message, "role", at), content_of(message, at), counts(message, at)});
  }
  return conversation;
}

ChatMarkers ChatMarkers::chatml() {
  ChatMarkers markers;
  for (const char* role : {kChatSystem, kChatUser, kChatAssistant})
    markers.roles[role] = {fmt::format("{}{}\n", kImStart, role), kImEnd};
  markers.between = "\n";
  return markers;
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const std::optional<ChatMarkers>& markers)
    : tokenizer_(tokenizer) {
  if (!markers && (!is_special(tokenizer, kImStart) || !is_special(tokenizer, kImEnd)))
    user_error(
        "the tokenizer has no {} and {}, which mark messages unless told otherwise; set data.chat "
        "to the markers that the model knows, like {{\"user\": [\"User: \", \"\\n\"], "
        "\"assistant\": [\"Assistant: \", \"</s>\"]}}",
        kImStart, kImEnd);
  const ChatMarkers chosen = markers ? *markers : ChatMarkers::chatml();
  for (const auto& [role, around] : chosen.roles)
    roles_[role] = {encode_marker(tokenizer, around.before),
                    encode_marker(tokenizer, around.after)};
  between_ = encode_marker(tokenizer, chosen.between);
}

const ChatFormat::Encoded& ChatFormat::markers_of(const std::string& role,
                                                  const std::string& where) const {
  const auto found = roles_.find(role);
  if (found != roles_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, encoded] : roles_) names.push_back(name);
  user_error("{}: the role \"{}\" has no markers; those that have are {}", where, role,
             join(names, ", "));
}

ChatTokens ChatFormat::render(std::span<const ChatMessage> messages,
                              const std::string& where) const {
  ChatTokens out;
  const auto add = [&](std::span<const int32_t> ids, bool counted) {
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
    out.counted.resize(out.tokens.size(), counted);
  };
  thread_local WordCache cache;
  std::vector<int32_t> content;
  for (const ChatMessage& message : messages) {
    const Encoded& markers = markers_of(message.role, where);
    const bool answer = message.role == kChatAssistant && message.counted;
    if (!out.tokens.empty()) add(between_, false);
    add(markers.before, false);
    content.clear();
    if (!message.content.empty())
      tokenizer_.encode(
          message.content, Tokenizer::Specials::kAsText, cache, content,
          out.tokens.empty() ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
    add(content, answer);
    add(markers.after, answer);
  }
  return out;
}

std::vector<int32_t> ChatFormat::prompt(std::span<const ChatMessage> messages) const {
  std::vector<int32_t> tokens = render(messages, "the conversation").tokens;
  const Encoded& answer = markers_of(kChatAssistant, "the answer");
  if (!tokens.empty()) tokens.insert(tokens.end(), between_.begin(), between_.end());
  tokens.insert(tokens.end(), answer.before.begin(), answer.before.end());
  return tokens;
}

bool ChatFormat::ends_bare() const {
  const auto found = roles_.find(kChatAssistant);
  return found != roles_.end() && found->second.after.empty();
}

int32_t ChatFormat::end_of_answer() const {
  const auto found = roles_.find(kChatAssistant);
  if (found == roles_.end() || found->second.after.empty()) return -1;
  const int32_t first = found->second.after.front();
  const auto& added = tokenizer_.added_tokens();
  const bool special = std::any_of(added.begin(), added.end(),
                                   [&](const AddedToken& token) { return token.id == first; });
  return special ? first : -1;
}

}  // namespace onefold

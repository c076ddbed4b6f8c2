#include "data/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/chat_template.h"

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

// What a template of transformers' would show and is not read here: left out, a conversation would
// teach something else.
void refuse_unread(const json& object, std::initializer_list<const char*> keys,
                   const std::string& where) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !found->is_null() &&
                                             !found->empty() && *found != json("") &&
                                             *found != json(false))
      user_error(
          "{} has \"{}\", which is not rendered here; render such conversations before, as the "
          "field of JSON lines, or remove the key",
          where, key);
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

bool is_special(const Tokenizer& tokenizer, int32_t id) {
  const auto& added = tokenizer.added_tokens();
  return std::any_of(added.begin(), added.end(),
                     [&](const AddedToken& token) { return token.id == id; });
}

// With the special tokens that it spells.
std::vector<int32_t> encode_marker(const Tokenizer& tokenizer, const std::string& text,
                                   Tokenizer::Place place = Tokenizer::Place::kContinue) {
  std::vector<int32_t> ids;
  thread_local WordCache cache;
  if (!text.empty()) tokenizer.encode(text, Tokenizer::Specials::kMatch, cache, ids, place);
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
  refuse_unread(object, {"tools", "functions"}, where);
  Conversation conversation;
  for (const json& message : *list) {
    const std::string at = fmt::format("{}: message {}", where, conversation.size() + 1);
    if (!message.is_object()) user_error("{} is {}, not an object", at, message.type_name());
    refuse_unread(message, {"tool_calls", "function_call", "reasoning_content", "thinking"}, at);
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
  if (!markers && tokenizer.chat_template()) {
    template_ = std::make_unique<const ChatTemplate>(*tokenizer.chat_template());
    return;
  }
  if (!markers && (!is_special(tokenizer, kImStart) || !is_special(tokenizer, kImEnd)))
    user_error(
        "the tokenizer comes with no chat template, and has no {} and {}, which mark messages "
        "then; set data.chat "
        "to the markers that the model knows, like {{\"user\": [\"User: \", \"\\n\"], "
        "\"assistant\": [\"Assistant: \", \"</s>\"]}}",
        kImStart, kImEnd);
  const ChatMarkers chosen = markers ? *markers : ChatMarkers::chatml();
  for (const auto& [role, around] : chosen.roles)
    roles_[role] = {encode_marker(tokenizer, around.before),
                    encode_marker(tokenizer, around.after)};
  between_ = encode_marker(tokenizer, chosen.between);
}

ChatFormat::~ChatFormat() = default;

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
  if (template_) return render_template(messages, where);
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

// The tokens of the whole text, as transformers has them. Where each begins is known if they stand
// for the text's bytes; a space that encoding puts in front is not the text's. Else the text is
// encoded in pieces, cut where answers begin and end.
ChatTokens ChatFormat::render_template(std::span<const ChatMessage> messages,
                                       const std::string& where) const {
  const ChatTemplate::Answers answers = template_->render_answers(messages, tokenizer_, where);
  const std::string_view text = answers.text;
  ChatTokens out;
  out.tokens = encode_marker(tokenizer_, answers.text, Tokenizer::Place::kBegin);
  out.counted.resize(out.tokens.size(), false);
  const std::string decoded = tokenizer_.decode(out.tokens);
  const size_t added = decoded.size() - std::min(decoded.size(), text.size());
  if (added <= 1 && std::string_view(decoded).substr(added) == text) {
    size_t at = 0, span = 0;
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      const size_t place = at - std::min(at, added);
      while (span < answers.spans.size() && place >= answers.spans[span].end) ++span;
      out.counted[i] = span < answers.spans.size() && place >= answers.spans[span].begin;
      at += tokenizer_.decode({&out.tokens[i], 1}).size();
    }
    return out;
  }
  out = {};
  size_t at = 0;
  const auto add = [&](size_t end, bool counted) {
    const std::vector<int32_t> ids =
        encode_marker(tokenizer_, std::string(text.substr(at, end - at)),
                      at == 0 ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
    out.counted.resize(out.tokens.size(), counted);
    at = end;
  };
  for (const JinjaTemplate::Span& span : answers.spans) {
    add(span.begin, false);
    add(span.end, true);
  }
  add(text.size(), false);
  return out;
}

std::vector<int32_t> ChatFormat::prompt(std::span<const ChatMessage> messages) const {
  if (template_)
    return encode_marker(tokenizer_, template_->render(messages, true), Tokenizer::Place::kBegin);
  std::vector<int32_t> tokens = render(messages, "the conversation").tokens;
  const Encoded& answer = markers_of(kChatAssistant, "the answer");
  if (!tokens.empty()) tokens.insert(tokens.end(), between_.begin(), between_.end());
  tokens.insert(tokens.end(), answer.before.begin(), answer.before.end());
  return tokens;
}

bool ChatFormat::ends_bare() const {
  if (template_) return end_of_answer() < 0;
  const auto found = roles_.find(kChatAssistant);
  return found != roles_.end() && found->second.after.empty();
}

// Of what is trained on, the last token. Where a template lets no answer be found (one whose prompt
// begins to think, say), it still ends a text: the last special token of all.
int32_t ChatFormat::end_of_short_answer() const {
  const Conversation probe = {{kChatUser, "a"}, {kChatAssistant, "b"}};
  try {
    const ChatTokens tokens = render_template(probe, "a short conversation");
    for (size_t i = tokens.tokens.size(); i-- > 0;)
      if (tokens.counted[i])
        return is_special(tokenizer_, tokens.tokens[i]) ? tokens.tokens[i] : -1;
  } catch (const UserError&) {
  }
  try {
    const std::vector<int32_t> ids = encode_marker(tokenizer_, template_->render(probe, false));
    for (size_t i = ids.size(); i-- > 0;)
      if (is_special(tokenizer_, ids[i])) return ids[i];
  } catch (const UserError&) {  // who holds such a conversation is told
  }
  return -1;
}

int32_t ChatFormat::end_of_answer() const {
  if (template_) return end_of_short_answer();
  const auto found = roles_.find(kChatAssistant);
  if (found == roles_.end() || found->second.after.empty()) return -1;
  const int32_t first = found->second.after.front();
  return is_special(tokenizer_, first) ? first : -1;
}

}  // namespace onefold

#include "data/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/chat_template.h"

namespace onefold {
namespace {

constexpr const char* kImStart = "<|im_start|>";
constexpr const char* kImEnd = "<|im_end|>";
constexpr const char* kToolCalls = "tool_calls";

std::string text_at(const Json& message, const char* key, const std::string& where) {
  const auto found = message.find(key);
  if (found == message.end()) user_error("{} has no \"{}\"", where, key);
  if (!found->is_string())
    user_error("{}: \"{}\" is {} where a string is needed", where, key, json_kind(*found));
  return found->get<std::string>();
}

// "weight" of OpenAI's format: 0 or 1.
bool counts(const Json& message, const std::string& where) {
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

void require_objects(const Json& list, const char* key, const std::string& where) {
  if (!list.is_array())
    user_error("{}: \"{}\" is {} where a list is needed", where, key, json_kind(list));
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_object())
      user_error("{}: entry {} of \"{}\" is {} where an object is needed", where, i + 1, key,
                 json_kind(list[i]));
}

// A list of objects, or null. Datasets whose columns have one type each hold it as a text.
Json tools_of(const Json& object, const std::string& where) {
  const auto found = object.find("tools");
  if (found == object.end() || *found == Json("")) return nullptr;
  Json tools = *found;
  if (found->is_string()) {
    try {
      tools = parse_json_line(found->get_ref<const std::string&>());
    } catch (const UserError& error) {
      user_error("{}: \"tools\" is a text that is not JSON ({})", where, error.what());
    }
  }
  if (!tools.is_null()) require_objects(tools, "tools", where);
  return tools;
}

// Other keys of the line are passed over, and this one is if it means something else.
Json documents_of(const Json& object) {
  const auto found = object.find("documents");
  const bool given = found != object.end() && found->is_array() && !found->empty() &&
                     std::ranges::all_of(*found, [](const Json& one) { return one.is_object(); });
  return given ? *found : Json();
}

// Whether a message says something with this key.
bool says(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && !found->empty() && *found != Json("") && *found != Json(false);
}

bool is_text_part(const Json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  return type != part.end() && *type == Json("text");
}

// A string, or a list of parts that are all text, which become one. What a tool returns may be
// anything, and a message that calls tools needs no content.
void take_content(ChatMessage& message, const std::string& where) {
  const auto found = message.fields.find("content");
  const bool given = found != message.fields.end();
  if (!given && says(message.fields, kToolCalls)) return;
  const bool tool = message.role == kChatTool;
  if (given && found->is_array() && (!tool || std::ranges::all_of(*found, is_text_part))) {
    for (const Json& part : *found) {
      if (!is_text_part(part)) user_error("{} has a part of its content that is not text", where);
      message.content += text_at(part, "text", where);
    }
    *found = message.content;
  } else if (!given || !tool || found->is_string()) {
    message.content = text_at(message.fields, "content", where);
  }
}

// The keys of a message as a template gets them, by the rules of transformers: none that is null,
// and what was thought by both of its names.
Json fields_of(const Json& object, bool share_gpt, const std::string& where) {
  const auto given = [&](const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  };
  const Json* thought = nullptr;
  for (const char* key : kReasoning)
    if (!thought) thought = given(key);
  const auto shown = [&](const std::string& key, const Json& value) {
    if (share_gpt && (key == "role" || key == "content" || key == "from" || key == "value"))
      return false;
    return !value.is_null();
  };
  Json fields = Json::object();
  if (thought && !given("thinking")) fields["thinking"] = *thought;
  if (share_gpt) {
    fields["role"] = share_gpt_role(text_at(object, "from", where));
    fields["content"] = text_at(object, "value", where);
  }
  auto& list = fields.get_ref<Json::object_t&>();  // a key is there once: none is looked for
  for (const auto& [key, value] : object.get_ref<const Json::object_t&>())
    if (shown(key, value)) list.emplace_back(key, value);
  if (thought) fields["reasoning_content"] = *thought;
  return fields;
}

ChatMessage message_of(const Json& object, bool share_gpt, const std::string& where) {
  ChatMessage message;
  message.fields = fields_of(object, share_gpt, where);
  message.role = text_at(message.fields, "role", where);
  message.counted = counts(message.fields, where);
  take_content(message, where);
  if (says(message.fields, kToolCalls)) {
    require_objects(message.fields[kToolCalls], kToolCalls, where);
    if (message.role != kChatAssistant)
      user_error("{} has \"{}\", and its role is \"{}\"; only an {} calls tools", where, kToolCalls,
                 message.role, kChatAssistant);
  }
  const auto is_plain = [](const auto& field) {
    return field.first == "role" || field.first == "weight" ||
           (field.first == "content" && field.second.is_string());
  };
  if (std::ranges::all_of(message.fields.get_ref<const Json::object_t&>(), is_plain))
    message.fields = nullptr;
  return message;
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

Conversation parse_conversation(const Json& object, const std::string& where) {
  const bool share_gpt = object.contains("conversations") && !object.contains("messages");
  const char* const key = share_gpt ? "conversations" : "messages";
  const auto list = object.find(key);
  if (list == object.end())
    user_error("{}: there is neither \"messages\" nor \"conversations\" on this line", where);
  if (!list->is_array() || list->empty())
    user_error("{}: \"{}\" must be a list with at least one message", where, key);
  if (says(object, "functions"))
    user_error(
        "{} has \"functions\", which templates do not get; write them as \"tools\": "
        "[{{\"type\": \"function\", \"function\": {{...}}}}], or remove the key",
        where);
  Conversation conversation;
  conversation.tools = tools_of(object, where);
  conversation.documents = documents_of(object);
  for (const Json& message : *list) {
    const std::string at = fmt::format("{}: message {}", where, conversation.messages.size() + 1);
    if (!message.is_object()) user_error("{} is {}, not an object", at, json_kind(message));
    conversation.messages.push_back(message_of(message, share_gpt, at));
  }
  return conversation;
}

std::vector<std::string_view> beside_content(const ChatMessage& message) {
  std::vector<std::string_view> keys;
  if (message.fields.is_object())
    for (const char* key : {kToolCalls, "function_call", kReasoning[0]})
      if (says(message.fields, key)) keys.emplace_back(key);
  return keys;
}

void ChatMarkers::require_shown(const Conversation& conversation, const std::string& where) const {
  constexpr const char* kHow =
      "which only a template renders, and markers are set or the model has no template; remove the "
      "key";
  if (conversation.tools.is_array() && !conversation.tools.empty())
    user_error("{} has \"tools\", {}", where, kHow);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const ChatMessage& message = conversation.messages[i];
    if (!roles.contains(message.role)) {
      std::vector<std::string> names;
      for (const auto& [name, around] : roles) names.push_back(name);
      user_error("{}: the role \"{}\" has no markers; those that have are {}", where, message.role,
                 join(names, ", "));
    }
    for (const std::string_view key : beside_content(message))
      user_error("{}: message {} has \"{}\", {}", where, i + 1, key, kHow);
    const auto content =
        message.fields.is_object() ? message.fields.find("content") : message.fields.end();
    if (content != message.fields.end() && !content->is_string())
      user_error("{}: the content of message {} is {} where a string is needed", where, i + 1,
                 json_kind(*content));
  }
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
  markers_ = markers ? *markers : ChatMarkers::chatml();
  for (const auto& [role, around] : markers_.roles)
    roles_[role] = {encode_marker(tokenizer, around.before),
                    encode_marker(tokenizer, around.after)};
  between_ = encode_marker(tokenizer, markers_.between);
}

ChatFormat::~ChatFormat() = default;

ChatTokens ChatFormat::render(const Conversation& conversation, const std::string& where) const {
  if (template_) return render_template(conversation, where);
  markers_.require_shown(conversation, where);
  return render_markers(conversation);
}

ChatTokens ChatFormat::render_markers(const Conversation& conversation) const {
  ChatTokens out;
  const auto add = [&](std::span<const int32_t> ids, bool counted) {
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
    out.counted.resize(out.tokens.size(), counted);
  };
  thread_local WordCache cache;
  std::vector<int32_t> content;
  for (const ChatMessage& message : conversation.messages) {
    const Encoded& markers = roles_.at(message.role);
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
ChatTokens ChatFormat::render_template(const Conversation& conversation,
                                       const std::string& where) const {
  const ChatTemplate::Answers answers = template_->render_answers(conversation, tokenizer_, where);
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

std::vector<int32_t> ChatFormat::prompt(const Conversation& conversation) const {
  if (template_)
    return encode_marker(tokenizer_, template_->render(conversation, true),
                         Tokenizer::Place::kBegin);
  std::vector<int32_t> tokens = render(conversation, "the conversation").tokens;
  const Encoded& answer = roles_.at(kChatAssistant);
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
  const Conversation probe = {.messages = {{kChatUser, "a"}, {kChatAssistant, "b"}}};
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

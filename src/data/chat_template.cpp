#include "data/chat_template.h"

#include <algorithm>

#include "base/error.h"

namespace onefold {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// The special token that a text begins with, or ends with; "" if it does with none.
std::string_view special_at(const Tokenizer& tokenizer, std::string_view text, bool front) {
  std::string_view longest;
  for (const AddedToken& token : tokenizer.added_tokens()) {
    const bool found = front ? text.starts_with(token.text) : text.ends_with(token.text);
    if (token.special && found && token.text.size() > longest.size()) longest = token.text;
  }
  return longest;
}

// Spaces and line breaks behind a special token belong to the next message.
size_t without_gap(std::string_view text, size_t begin, size_t end, const Tokenizer& tokenizer) {
  size_t last = end;
  while (last > begin && kSpaces.find(text[last - 1]) != kSpaces.npos) --last;
  const bool marked = !special_at(tokenizer, text.substr(begin, last - begin), false).empty();
  return marked ? last : end;
}

// Where an answer ends that the template has changed since it was the last message: behind its
// content, and the special token that follows.
size_t end_of_content(std::string_view text, size_t begin, std::string_view content,
                      const Tokenizer& tokenizer) {
  const size_t found = text.find(trimmed(content), begin);
  if (found == text.npos) return text.npos;
  const size_t end = found + trimmed(content).size();
  const size_t mark = std::min(text.find_first_not_of(kSpaces, end), text.size());
  const std::string_view special = special_at(tokenizer, text.substr(mark), true);
  return special.empty() ? end : mark + special.size();
}

// What is left of an answer that the template has changed since it was the last message, if it has
// left out one stretch of it: what was thought before it, say. It ends with the special token that
// ended it.
size_t end_of_rest(std::string_view text, size_t begin, std::string_view answer,
                   const Tokenizer& tokenizer) {
  const std::string_view special = special_at(
      tokenizer, answer.substr(0, without_gap(answer, 0, answer.size(), tokenizer)), false);
  if (special.empty()) return text.npos;
  text.remove_prefix(begin);
  const auto [differs, other] = std::ranges::mismatch(answer, text);
  const auto same = static_cast<size_t>(differs - answer.begin());
  const size_t last = answer.rfind(special);
  if (same >= last + special.size()) return begin + last + special.size();
  for (size_t rest = same; rest <= last; ++rest)
    if (text.substr(same).starts_with(answer.substr(rest)))
      return begin + same + answer.size() - rest;
  return text.npos;
}

bool has_special(const Tokenizer& tokenizer, std::string_view text) {
  return std::ranges::any_of(tokenizer.added_tokens(), [&](const AddedToken& token) {
    return token.special && text.find(token.text) != text.npos;
  });
}

// Another answer, from its first character on.
void change(ChatMessage& answer) {
  constexpr const char* kOther = "\uE000";  // a character for private use
  answer.content = kOther + answer.content;
  if (!answer.fields.is_object()) return;
  answer.fields["content"] = answer.content;
  for (const char* key : kReasoning)
    if (const auto thought = answer.fields.find(key);
        thought != answer.fields.end() && thought->is_string())
      *thought = kOther + thought->get<std::string>();
  const auto calls = answer.fields.find("tool_calls");
  if (calls == answer.fields.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    const auto function = call.find("function");
    Json& called = function == call.end() ? call : *function;
    if (!called.is_object()) continue;
    if (const auto name = called.find("name"); name != called.end() && name->is_string())
      *name = kOther + name->get<std::string>();
  }
}

bool is_answer(const ChatMessage& message) { return message.role == kChatAssistant; }

// A template may mark more than once in an answer: then it cannot be said which answer a mark
// belongs to, and all must count.
std::vector<JinjaTemplate::Span> marked_answers(const Conversation& conversation,
                                                const std::vector<JinjaTemplate::Span>& marks) {
  std::vector<const ChatMessage*> answers;
  for (const ChatMessage& message : conversation.messages)
    if (is_answer(message)) answers.push_back(&message);
  if (marks.size() < answers.size())
    user_error("the template marks {} of {} answers with {{% generation %}}", marks.size(),
               answers.size());
  if (std::ranges::all_of(answers, &ChatMessage::counted)) return marks;
  if (marks.size() > answers.size())
    user_error(
        "the template marks {} stretches of {} answers with {{% generation %}}, so those with "
        "\"weight\": 0 cannot be told from the others",
        marks.size(), answers.size());
  std::vector<JinjaTemplate::Span> counted;
  for (size_t i = 0; i < answers.size(); ++i)
    if (answers[i]->counted) counted.push_back(marks[i]);
  return counted;
}

// Lists that are not empty, as tools are.
bool is_given(const Json& list) { return list.is_array() && !list.empty(); }

void require_tools_read(const JinjaTemplate& chat, const Conversation& conversation) {
  constexpr const char* kHow =
      "left out, it would teach something else; remove the key, or use a template that reads it";
  if (is_given(conversation.tools) && !chat.reads("tools"))
    user_error("the template {} does not read \"tools\", which the conversation has; {}",
               chat.source(), kHow);
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    for (const std::string_view key : beside_content(conversation.messages[i]))
      if (!(key == kReasoning[0] ? chat.reads(kReasoning[0]) || chat.reads(kReasoning[1])
                                 : chat.reads(key)))
        user_error("message {} has \"{}\", which the template {} does not read; {}", i + 1, key,
                   chat.source(), kHow);
}

// A role that is misspelt would pass through many a template.
void require_roles_known(const JinjaTemplate& chat, const Conversation& conversation) {
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::string& role = conversation.messages[i].role;
    const bool common = role == kChatSystem || role == kChatUser || role == kChatAssistant ||
                        role == kChatTool || role == "developer";
    if (!common && !chat.reads(role))
      user_error("message {}: the role \"{}\" is none that the template {} names", i + 1, role,
                 chat.source());
  }
}

// Many a template passes over the messages of a role that it does not name.
void require_roles_shown(const JinjaTemplate& chat, const Conversation& conversation,
                         std::string_view text) {
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const ChatMessage& message = conversation.messages[i];
    const bool checked = message.role != kChatSystem && message.role != kChatUser &&
                         message.role != kChatAssistant && !chat.reads(message.role);
    if (checked && text.find(trimmed(message.content)) == text.npos)
      user_error("message {}: the template {} leaves out what the role \"{}\" says", i + 1,
                 chat.source(), message.role);
  }
}

}  // namespace

ChatTemplate::ChatTemplate(const ChatTemplateText& text)
    : template_(text.text, text.source),
      tools_problem_(text.tools_problem),
      variables_(text.variables) {
  if (text.tools_text.empty()) return;
  try {
    tools_template_.emplace(text.tools_text, text.source + " (tool_use)");
  } catch (const UserError& error) {  // plain conversations do without
    tools_problem_ = error.what();
  }
}

const JinjaTemplate& ChatTemplate::template_for(const Conversation& conversation) const {
  if (conversation.tools.is_null()) return template_;
  if (!tools_problem_.empty()) user_error("{}", tools_problem_);
  return tools_template_ ? *tools_template_ : template_;
}

JinjaTemplate::Rendered ChatTemplate::rendered(const Part& part) const {
  const Conversation& conversation = part.conversation;
  Json variables = variables_;
  Json list = Json::array();
  for (size_t i = 0; i < part.messages; ++i) {
    const ChatMessage& message = conversation.messages[i];
    if (message.fields.is_object())
      list.push_back(message.fields);
    else
      list.push_back({{"role", message.role}, {"content", message.content}});
  }
  variables["messages"] = std::move(list);
  variables["add_generation_prompt"] = part.prompt;
  variables["tools"] = part.tools ? conversation.tools : Json();
  variables["documents"] = conversation.documents;
  return template_for(conversation).render(std::move(variables));
}

JinjaTemplate::Rendered ChatTemplate::whole(const Conversation& conversation, bool prompt) const {
  const JinjaTemplate& chat = template_for(conversation);
  require_tools_read(chat, conversation);
  require_roles_known(chat, conversation);
  JinjaTemplate::Rendered result = rendered({conversation, conversation.messages.size(), prompt});
  require_roles_shown(chat, conversation, result.text);
  return result;
}

std::string ChatTemplate::render(const Conversation& conversation, bool prompt) const {
  return whole(conversation, prompt).text;
}

// Where the answer begins that another text in its place would change: behind the last mark of the
// beginning of an answer before that change. The mark is what a prompt has and a conversation of
// the same messages has not.
size_t ChatTemplate::begin_by_change(const Conversation& conversation, size_t message,
                                     std::string_view text, const Tokenizer& tokenizer) const {
  const std::string prompt = rendered({conversation, message, true}).text;
  const std::string before = rendered({conversation, message}).text;
  if (!prompt.starts_with(before)) return text.npos;
  const std::string_view mark = std::string_view(prompt).substr(before.size());
  if (!has_special(tokenizer, mark)) return text.npos;  // it may be anywhere
  Conversation changed = conversation;
  change(changed.messages[message]);
  const std::string other = rendered({changed, changed.messages.size()}).text;
  const auto same = static_cast<size_t>(std::ranges::mismatch(text, other).in1 - text.begin());
  if (same < mark.size() || same == text.size()) return text.npos;
  const size_t found = text.rfind(mark, same - mark.size());
  if (found == text.npos) return found;
  // Another message ends between an earlier answer's mark and this one.
  const size_t begin = found + mark.size();
  return has_special(tokenizer, text.substr(begin, same - begin)) ? text.npos : begin;
}

JinjaTemplate::Span ChatTemplate::find_answer(const Conversation& conversation, size_t message,
                                              std::string_view text,
                                              const Tokenizer& tokenizer) const {
  // A template that shows tools before the last question has shown none before an earlier one.
  bool tools = true;
  std::string prompt = rendered({conversation, message, true}).text;
  if (!text.starts_with(prompt) && is_given(conversation.tools)) {
    std::string other = rendered({conversation, message, true, false}).text;
    tools = !text.starts_with(other);
    if (!tools) prompt = std::move(other);
  }
  // One that shows what was thought until the next question renders earlier answers in another way.
  const bool stays = text.starts_with(prompt);
  const size_t begin =
      stays ? prompt.size() : begin_by_change(conversation, message, text, tokenizer);
  if (begin == text.npos)
    user_error(
        "message {}: the template renders what comes before an answer in another way once the "
        "answer is there, so it cannot be found; mark answers in the template with "
        "{{% generation %}}, or set data.chat",
        message + 1);
  const std::string ended = rendered({conversation, message + 1, false, tools}).text;
  const auto found = [&](size_t end) {
    return JinjaTemplate::Span{begin, without_gap(text, begin, end, tokenizer)};
  };
  if (text.starts_with(ended) && ended.size() >= begin) return found(ended.size());
  const ChatMessage& answer = conversation.messages[message];
  size_t end = text.npos;
  if (beside_content(answer).empty()) end = end_of_content(text, begin, answer.content, tokenizer);
  if (end == text.npos && ended.starts_with(prompt)) {
    std::string_view rest = std::string_view(ended).substr(prompt.size());
    end = end_of_rest(text, begin, rest, tokenizer);
    // Or what ends a conversation followed it.
    rest = rest.substr(0, without_gap(rest, 0, rest.size(), tokenizer));
    rest.remove_suffix(special_at(tokenizer, rest, false).size());
    if (end == text.npos) end = end_of_rest(text, begin, rest, tokenizer);
  }
  if (end == text.npos)
    user_error("message {}: the template changes the answer, so it cannot be found", message + 1);
  return found(end);
}

ChatTemplate::Answers ChatTemplate::render_answers(const Conversation& conversation,
                                                   const Tokenizer& tokenizer,
                                                   const std::string& where) const {
  try {
    JinjaTemplate::Rendered rendered = whole(conversation, false);
    Answers answers{std::move(rendered.text), {}};
    if (template_for(conversation).marks_generation()) {
      answers.spans = marked_answers(conversation, rendered.generated);
      return answers;
    }
    for (size_t i = 0; i < conversation.messages.size(); ++i)
      if (is_answer(conversation.messages[i]) && conversation.messages[i].counted)
        answers.spans.push_back(find_answer(conversation, i, answers.text, tokenizer));
    return answers;
  } catch (const UserError& error) {
    user_error("{}: {}", where, error.what());
  }
}

}  // namespace onefold

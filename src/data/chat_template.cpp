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

}  // namespace

ChatTemplate::ChatTemplate(const ChatTemplateText& text)
    : template_(text.text, text.source), variables_(text.variables) {}

JinjaTemplate::Rendered ChatTemplate::rendered(std::span<const ChatMessage> messages,
                                               bool prompt) const {
  Json variables = variables_;
  Json list = Json::array();
  for (const ChatMessage& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  variables["messages"] = std::move(list);
  variables["add_generation_prompt"] = prompt;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  return template_.render(variables);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool prompt) const {
  return rendered(messages, prompt).text;
}

ChatTemplate::Answers ChatTemplate::render_answers(std::span<const ChatMessage> messages,
                                                   const Tokenizer& tokenizer,
                                                   const std::string& where) const {
  try {
    JinjaTemplate::Rendered whole = rendered(messages, false);
    Answers answers{std::move(whole.text), {}};
    const std::string_view text = answers.text;
    size_t marked = 0;  // answers so far: generation marks follow each other as they do
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != kChatAssistant) continue;
      if (template_.marks_generation()) {
        if (marked >= whole.generated.size())
          user_error("message {} is an answer, and the template marks none there", i + 1);
        if (messages[i].counted) answers.spans.push_back(whole.generated[marked]);
        ++marked;
        continue;
      }
      if (!messages[i].counted) continue;
      const std::string prompt = render(messages.first(i), true);
      if (!text.starts_with(prompt))
        user_error(
            "message {}: the template renders what comes before an answer in another way once the "
            "answer is there, so it cannot be found; mark answers in the template with "
            "{{% generation %}}, or set data.chat",
            i + 1);
      const std::string ended = render(messages.first(i + 1), false);
      const size_t begin = prompt.size();
      const bool grows = text.starts_with(ended) && ended.size() >= begin;
      const size_t end =
          grows ? ended.size() : end_of_content(text, begin, messages[i].content, tokenizer);
      if (end == text.npos)
        user_error("message {}: the template changes the answer, so it cannot be found", i + 1);
      answers.spans.push_back({begin, without_gap(text, begin, end, tokenizer)});
    }
    return answers;
  } catch (const UserError& error) {
    user_error("{}: {}", where, error.what());
  }
}

}  // namespace onefold

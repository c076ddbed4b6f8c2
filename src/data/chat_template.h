// Conversations as the template of a model's folder renders them, the way transformers does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/chat.h"
#include "data/jinja.h"

namespace onefold {

class ChatTemplate {
 public:
  explicit ChatTemplate(const ChatTemplateText& text);

  // The conversation; with `prompt` also what begins an answer. UserError if the template does not
  // look at something that the conversation says: tools, calls of them, a role.
  std::string render(const Conversation& conversation, bool prompt) const;

  // The conversation, and where the answers are in it that are trained on, each with the special
  // token that ends it: what {% generation %} marks; else what follows the text that would have
  // been the answer's prompt. UserError, which begins with `where`, if the template renders that
  // prompt in another way once the answer is there.
  struct Answers {
    std::string text;
    std::vector<JinjaTemplate::Span> spans;
  };
  Answers render_answers(const Conversation& conversation, const Tokenizer& tokenizer,
                         const std::string& where) const;

 private:
  // Of a conversation its first messages, perhaps without its tools.
  struct Part {
    const Conversation& conversation;
    size_t messages;
    bool prompt = false, tools = true;
  };
  const JinjaTemplate& template_for(const Conversation& conversation) const;
  JinjaTemplate::Rendered rendered(const Part& part) const;
  JinjaTemplate::Rendered whole(const Conversation& conversation, bool prompt) const;
  size_t begin_by_change(const Conversation& conversation, size_t message, std::string_view text,
                         const Tokenizer& tokenizer) const;
  JinjaTemplate::Span find_answer(const Conversation& conversation, size_t message,
                                  std::string_view text, const Tokenizer& tokenizer) const;

  const JinjaTemplate template_;
  std::optional<const JinjaTemplate> tools_template_;
  std::string tools_problem_;  // why there is none for tools
  const Json variables_;
};

}  // namespace onefold

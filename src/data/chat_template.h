// Conversations as the template of a model's folder renders them, the way transformers does.
#pragma once

#include <span>
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

  // The messages; with `prompt` also what begins an answer.
  std::string render(std::span<const ChatMessage> messages, bool prompt) const;

  // The messages, and where the answers are in them that are trained on, each with the special
  // token that ends it: what {% generation %} marks; else what follows the text that would have
  // been the answer's prompt. UserError, which begins with `where`, if the template renders that
  // prompt in another way once the answer is there.
  struct Answers {
    std::string text;
    std::vector<JinjaTemplate::Span> spans;
  };
  Answers render_answers(std::span<const ChatMessage> messages, const Tokenizer& tokenizer,
                         const std::string& where) const;

 private:
  JinjaTemplate::Rendered rendered(std::span<const ChatMessage> messages, bool prompt) const;

  const JinjaTemplate template_;
  const Json variables_;
};

}  // namespace onefold

// Templates of conversations, which are written in Jinja: as transformers renders them, with its
// settings (trim_blocks, lstrip_blocks, lenient undefined names) and nothing that could touch
// anything outside: no imports, files, attributes of Python objects or changes of what is passed
// in. A template is bounded in steps, depth and output. What is not interpreted is an error that
// names line and construct.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace onefold {

namespace jinja {
struct Node;
}

class JinjaTemplate {
 public:
  // `source` names the template in errors.
  JinjaTemplate(std::string_view text, std::string source);
  ~JinjaTemplate();
  JinjaTemplate(const JinjaTemplate&) = delete;
  JinjaTemplate& operator=(const JinjaTemplate&) = delete;

  // A stretch of the text that {% generation %} marks.
  struct Span {
    size_t begin, end;
  };
  struct Rendered {
    std::string text;
    std::vector<Span> generated;
  };
  // `variables` is an object. Any number of threads may render at a time.
  Rendered render(Json variables) const;
  // Whether the template marks what the model generates.
  bool marks_generation() const { return marks_generation_; }
  // Whether an expression has it, as a name, an attribute or a string: if not, no variable or entry
  // of that name is looked at, and no value compared with it.
  bool reads(std::string_view name) const { return read_.contains(name); }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::set<std::string, std::less<>> read_;
  bool marks_generation_ = false;  // set while root_ is made
  std::unique_ptr<const jinja::Node> root_;
};

}  // namespace onefold

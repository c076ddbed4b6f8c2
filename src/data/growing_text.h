// A text that grows token by token and is handed on in pieces: whole characters of valid UTF-8, and
// nothing that may turn out to begin a stop text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace onefold {

class GrowingText {
 public:
  // The text ends before any of `stops`. The tokenizer must outlive this.
  GrowingText(const Tokenizer& tokenizer, std::vector<std::string> stops);

  // What can be shown after this token; "" if more must come first. A token that the tokenizer does
  // not have, and bytes that are not UTF-8, are U+FFFD.
  std::string add(int32_t token);
  // The rest: what waited for more.
  std::string finish();

  bool stopped() const { return stopped_; }           // a stop text has come
  const std::string& text() const { return shown_; }  // all that was handed on

 private:
  void take_characters(bool all);
  std::string show(size_t bytes);

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  std::string bytes_;    // that are no whole character yet
  std::string waiting_;  // characters that may begin a stop text
  std::string shown_;
  bool stopped_ = false;
};

}  // namespace onefold

// The message of the UserError that a piece of code throws; "" if it throws none. Tests check
// messages by the words a user needs in them (key, value, what to do), not whole sentences.
#pragma once

#include <string>

#include "base/error.h"

namespace onefold {

template <typename Code>
std::string error_text(Code&& code) {
  try {
    code();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace onefold

// EXPECT_ERROR(code, "words", "more words"): throws a UserError whose message has all of them.
#define EXPECT_ERROR(code, ...)                                                      \
  do {                                                                               \
    const std::string message_ = ::onefold::error_text([&] { (void)(code); });       \
    for (const std::string& part_ : std::initializer_list<std::string>{__VA_ARGS__}) \
      EXPECT_TRUE(::onefold::contains(message_, part_))                              \
          << "message: \"" << message_ << "\"\nlacks: " << part_;                    \
  } while (false)

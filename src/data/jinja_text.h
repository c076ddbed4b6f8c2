// Texts the way Python and Jinja treat them, and arguments of filters and methods. Private to the
// files that interpret templates (jinja*.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/jinja_values.h"

namespace onefold::jinja {

// Whether a character is white space, of ASCII or beyond; `length` is its bytes.
bool is_space_at(std::string_view text, size_t at, size_t& length);
// Without white space, or the given characters, at its ends.
std::string stripped(std::string_view text, const Value* characters, bool left, bool right,
                     const Place& at);
// Lower case of all letters; upper case of ASCII's, and others are an error.
std::string lowered(std::string_view text);
std::string uppered(std::string_view text, const Place& at);
std::string capitalized(std::string_view text, const Place& at);
// Every word's first letter in upper case. Words begin after what is no letter (the method of
// Python), or only after a space, a dash or a bracket (the filter of Jinja).
std::string titled(std::string_view text, bool filter, const Place& at);
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t count, const Place& at);
// At runs of white space, or at every separator, at most so many times from one side.
Json split_text(std::string_view text, const Value* separator, int64_t most, bool from_right,
                const Place& at);
Json lines_of(std::string_view text);
std::string joined(const Json& list, std::string_view separator, const Place& at);
// {"a": 1} as [["a", 1]].
Json pairs_of(const Json& object);

// Arguments by position or name; errors name what is missing.
const Value& needed(const Arguments& arguments, size_t position, const std::string& name,
                    const Place& at);
const std::string& needed_text(const Arguments& arguments, size_t position, const std::string& name,
                               const Place& at);
int64_t integer_argument(const Arguments& arguments, size_t position, const std::string& name,
                         int64_t otherwise, const Place& at);
bool truth_argument(const Arguments& arguments, size_t position, const std::string& name);

}  // namespace onefold::jinja

// DeepSpeed's keys that change nothing here or ask for what is not there, as tables: the parser,
// the tests and docs/config.md are compared with them.
#pragma once

#include <span>
#include <string_view>

#include "config/config.h"

namespace onefold {

// A key with one value. `passes` is "boolean", "integer" or "number" for any such value, or a list
// of values as JSON; everything else is refused with the reason. null always passes.
struct PlainKey {
  std::string_view name;
  const char* passes;
  std::string_view reason;
};

// A section. Its keys must be among `keys`, separated by blanks; what they say is not looked into.
// It asks for something if one of `asks` is true or has another value than `off`, a list as JSON.
struct SectionKey {
  std::string_view name;
  std::string_view keys;
  std::string_view asks;
  std::string_view reason;
  const char* off = "[false]";
  bool asks_if_absent = false;  // the first of `asks` is on unless it is switched off
  std::string_view works = {};  // a key that has an effect where it is true
};

std::span<const PlainKey> plain_root_keys();
std::span<const PlainKey> plain_zero_keys();
std::span<const SectionKey> root_sections();

// Reads one key by its row, if it is there: it becomes idle, or a problem.
void read_plain(JsonObject& in, const PlainKey& row);
void read_section(JsonObject& in, const SectionKey& row);

}  // namespace onefold

// A value of a tokenizer.json with its place in the file. Every key is either understood or refused
// by its path: a part that was ignored would change the ids. Private to the files that read it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/tokenizer.h"

namespace onefold::tokenizer_json {

using nlohmann::json;

inline std::string brief(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = utf8_lossy(std::string_view(text).substr(0, 57)) + "...";
  return text;
}

class Node {
 public:
  Node(const json& value, std::string path, const std::string& source)
      : value_(&value), path_(std::move(path)), source_(&source) {}

  const json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void fail(std::string_view message) const {
    user_error("{}: {} {}", *source_, path_.empty() ? "the file" : path_, message);
  }
  [[noreturn]] void unsupported(std::string_view accepted) const {
    fail(fmt::format("is {}, which is not supported; Onefold reads {}", brief(*value_), accepted));
  }

  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }
  Node operator[](const char* key) const {
    static const json kNull;
    return {has(key) ? (*value_)[key] : kNull, path_.empty() ? key : path_ + "." + key, *source_};
  }
  Node operator[](size_t index) const {
    return {(*value_)[index], fmt::format("{}[{}]", path_, index), *source_};
  }
  size_t size() const { return value_->size(); }

  // The object must have no other keys.
  void only(std::initializer_list<const char*> keys) const {
    if (!value_->is_object()) fail("must be an object");
    for (const auto& item : value_->items()) {
      const std::string& key = item.key();
      if (std::none_of(keys.begin(), keys.end(), [&](const char* k) { return key == k; }))
        (*this)[key.c_str()].fail("is a key that Onefold does not know");
    }
  }
  const Node& object() const { return typed(value_->is_object(), "an object"); }
  const Node& array() const { return typed(value_->is_array(), "a list"); }
  const std::string& text() const {
    return typed(value_->is_string(), "a string").value_->get_ref<const std::string&>();
  }
  int64_t integer() const {
    return typed(value_->is_number_integer(), "an integer").value_->get<int64_t>();
  }
  double number() const { return typed(value_->is_number(), "a number").value_->get<double>(); }
  bool flag(bool otherwise) const {
    if (is_null()) return otherwise;
    return typed(value_->is_boolean(), "true or false").value_->get<bool>();
  }
  std::string type() const { return object()["type"].text(); }
  // A string that is one character.
  const std::string& character() const {
    const std::string& content = text();
    if (content.empty() || utf8_sequence(content) != content.size()) fail("must be one character");
    return content;
  }

 private:
  const Node& typed(bool matches, std::string_view wanted) const {
    if (is_null()) fail("is missing; is this a whole tokenizer.json?");
    if (!matches) fail(fmt::format("is {} and must be {}", brief(*value_), wanted));
    return *this;
  }

  const json* value_;
  std::string path_;
  const std::string* source_;
};

// Normalizer, pre-tokenizer and decoder, into parts of the same names.
void read_normalizer(const Node& normalizer, const std::string& source, TokenizerParts& parts);
void read_pretokenizer(const Node& pretokenizer, const std::string& source, TokenizerParts& parts);
void read_decoder(const Node& decoder, const std::string& source, TokenizerParts& parts);

}  // namespace onefold::tokenizer_json

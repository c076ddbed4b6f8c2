// Values while a template is rendered, with Python's rules for printing, comparing and computing.
// Private to the files that interpret templates (jinja*.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/jinja_syntax.h"

namespace onefold::jinja {

inline constexpr size_t kMostBytes = size_t{64} << 20;  // of one text, and of the output
inline constexpr size_t kMostListed = size_t{1} << 20;  // bytes of a text, as a list of characters
inline constexpr int64_t kLongestRange = 100'000;       // Jinja's own limit

struct Loop {
  int64_t index0 = 0, length = 0;
  std::shared_ptr<const Json> items;
};

struct Macro;
struct Value;
using Namespace = std::map<std::string, Value>;

// JSON, or what only a template has.
struct Value {
  enum class Kind { undefined, data, space, macro, function, loop };
  Kind kind = Kind::undefined;
  std::shared_ptr<const Json> data;
  std::string name;  // of what is undefined, or a function
  std::shared_ptr<Namespace> space;
  std::shared_ptr<const Macro> macro;
  std::shared_ptr<Loop> loop;

  static Value undefined(std::string name) {
    Value value;
    value.name = std::move(name);
    return value;
  }
  // Within a list, what is undefined is a discarded value of JSON.
  static Value of(Json json) {
    if (json.is_discarded()) return undefined("an entry");
    Value value;
    value.kind = Kind::data;
    value.data = std::make_shared<const Json>(std::move(json));
    return value;
  }
  // A part of a value that stays alive with it.
  static Value part(const Value& whole, const Json& json) {
    if (json.is_discarded()) return undefined("an entry");
    Value value;
    value.kind = Kind::data;
    value.data = std::shared_ptr<const Json>(whole.data, &json);
    return value;
  }
  bool is_data() const { return kind == Kind::data; }
  bool is_undefined() const { return kind == Kind::undefined; }
  bool is_string() const { return is_data() && data->is_string(); }
  const std::string& text() const { return data->get_ref<const std::string&>(); }
};

struct Macro {
  const Node* node;
  Value caller;
};

// Where an error is: a source and a line.
struct Place {
  const std::string* source;
  int line;
  [[noreturn]] void fail(std::string_view message) const { fail_at(*source, line, message); }
  // A text that is about to be made, of so many bytes.
  void require_room(size_t bytes) const {
    if (bytes > kMostBytes) fail("a text becomes too long");
  }
};

struct Arguments {
  std::vector<Value> plain;
  std::map<std::string, Value> named;

  // By position or by name; null if it is neither.
  const Value* find(size_t position, const std::string& name) const {
    if (position < plain.size()) return &plain[position];
    const auto found = named.find(name);
    return found == named.end() ? nullptr : &found->second;
  }
};

bool is_true(const Value& value);
// What {{ value }} writes, and what repr() gives.
std::string printed(const Value& value, const Place& at);
std::string represented(const Json& json);
// As json.dumps does.
struct DumpStyle {
  bool ascii = false;  // escapes for all other characters
  int indent = -1;     // below 0: one line
  std::string comma = ", ", colon = ": ";
  bool sorted = false;
};
std::string dumped(const Json& json, const DumpStyle& style, const Place& at);
bool equal(const Json& a, const Json& b);
// Below 0, 0 or above 0; values of kinds that have no order are an error.
int ordered(const Json& a, const Json& b, const Place& at);
bool contains(const Value& whole, const Value& part, const Place& at);
Value operated(const std::string& op, const Value& left, const Value& right, const Place& at);
// What a value is, for errors: "a string", "undefined (x)".
std::string kind_of(const Value& value);
// JSON, or an error: for what goes into lists and filters.
const Json& data_of(const Value& value, const Place& at);
// What {% for %} goes through, as a list: entries, keys, characters.
Json entries_of(const Value& value, const Place& at);
int64_t integer_of(const Value& value, const Place& at);
// The characters of a text, which must outlive it. It remembers where every 64th is: a place for
// each would take eight times the text's memory.
class Characters {
 public:
  explicit Characters(std::string_view text);
  size_t size() const { return size_; }
  size_t place(size_t i) const;  // of size(): the text's end
  std::string_view operator[](size_t i) const;

 private:
  const std::string_view text_;
  size_t size_ = 0;
  std::vector<size_t> marks_;  // none if every character is one byte
};
Value sliced(const Value& value, const Value* first, const Value* last, const Value* step,
             const Place& at);

// Applies a filter or a test by its name: what map(), select() and others are given.
using Apply =
    std::function<Value(const std::string& name, const Value& value, const Arguments& arguments)>;
// Whether a filter goes through a list; of a text, its characters.
bool goes_through(std::string_view filter);
Value filtered(const std::string& name, const Value& value, const Arguments& arguments,
               const Apply& filter, const Apply& test, const Place& at);
bool tested(const std::string& name, const Value& value, const Arguments& arguments,
            const Place& at);
// A method of a text, list or dictionary; false if it has none of that name.
bool called(const std::string& method, const Value& object, const Arguments& arguments,
            const Place& at, Value& result);
// value.name. Of a dictionary first its methods, then its entries, as Python has them.
Value member(const Value& value, const std::string& name, const Place& at);
Value entry(const Value& value, const Value& key, const Place& at);

}  // namespace onefold::jinja

// JSON with positions in errors, and a reader that requires every key of an object to be read with
// the right type; otherwise it throws a UserError that names the JSON path and the nearest known
// key. With a JsonReport it goes on, and all that is wrong is told at once.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace onefold {

using Json = nlohmann::ordered_json;

// Parses a document; the error names `source`, line and column. Comments (// and /* */) are
// allowed, a key that appears twice in one object is not. Objects keep their order. Reading one and
// walking through it takes time in proportion to its size, but looking for a key searches all of
// it: not for tables of many keys.
Json parse_json(std::string_view text, const std::string& source);
Json read_json(const std::string& path);
Json read_plain_json(const std::string& path);  // of what must be a file: read_plain_file

// A line of a data file, by the rules of Python's json module: of a key that appears twice the last
// value counts, at the place of the first, and there are no comments. A whole number that 64 bits
// do not hold becomes big_integer(); the error for what is no JSON, or too deep, is the reason
// alone.
Json parse_json_line(std::string_view text);

// A whole number of any size: a value of kind binary, which holds its digits.
Json big_integer(std::string_view digits);
std::string big_integer_digits(const Json& value);

// The parser does not recurse, but copying, comparing and printing a value do, once for each level:
// a deeper document would end the process. No file that Onefold reads has ten levels.
inline constexpr int kDeepestJson = 256;

// The parser's message without its prefix and position, for messages that give a position
// themselves.
std::string json_reason(std::string_view what);
// A value as it appears in an error: its JSON text, shortened if long.
std::string brief_json(const Json& value);
// "a number", "a string", ...: what a value is, for people.
std::string_view json_kind(const Json& value);

// What is wrong with a document, all of it, in the order in which it was found.
class JsonReport {
 public:
  enum class Group : uint8_t { unknown, missing, conflict };

  void add(Group group, std::string problem);
  // Runs it. A UserError that leaves it becomes a problem.
  void collect(const std::function<void()>& read);
  bool empty() const { return problems_.empty(); }
  // Throws one UserError with all problems; nothing if there are none. One is a plain sentence,
  // several are listed by group.
  void raise() const;

  std::vector<std::string> autos;  // paths at which "auto" stood and was allowed
  std::vector<std::string> idle;   // paths that change nothing

 private:
  struct Problem {
    Group group;
    std::string text;
  };
  std::vector<Problem> problems_;
};

// One object of a configuration, read key by key. Usage: take everything that is understood, then
// finish(). A key counts as known once it has been asked for, and as read once its value has been
// taken. A value of null counts as absent.
class JsonObject {
 public:
  // `path` is where the object is in its document: "" for the root, else like "optimizer.params".
  // With a report, problems go there, and what is read instead is the fallback.
  JsonObject(Json value, std::string path, JsonReport* report = nullptr);

  const std::string& path() const { return path_; }
  std::string path(std::string_view key) const;  // "optimizer.params.lr"
  const Json& value() const { return value_; }

  // For the keys named, the string "auto" (DeepSpeed configurations filled in by a trainer) means:
  // as if absent.
  void allow_auto(std::initializer_list<std::string_view> keys);
  void allow_auto();  // for all keys

  bool has(std::string_view key);  // present (and neither null nor an allowed "auto")
  bool is_auto(std::string_view key) const;

  // T: bool, int64_t, double, float, std::string, Json, std::vector<std::string>,
  // std::vector<double>. Integers may be written 1000, 1e3 or 1000.0; a list of strings may be one
  // string.
  template <typename T>
  T require(std::string_view key);
  template <typename T>
  T get(std::string_view key, T fallback) {
    return read(key, fallback, [](const T&) { return std::string(); });
  }

  // Values with a range; the fallback is not checked.
  int64_t at_least(std::string_view key, int64_t minimum, int64_t fallback);
  double positive(std::string_view key, double fallback);
  double non_negative(std::string_view key, double fallback);
  double fraction(std::string_view key, double fallback);  // [0, 1)
  double ratio(std::string_view key, double fallback);     // [0, 1]

  // One of `names`, else an error that lists them.
  std::string choice(std::string_view key, std::initializer_list<std::string_view> names,
                     std::string_view fallback);
  // The object under `key`, empty if absent. The caller finishes it.
  JsonObject object(std::string_view key);

  // If the key is present: an error that says why it would change nothing here.
  void no_effect(std::string_view key, std::string_view why);
  // Notes for the report that the key, if it is present, changes nothing.
  void idle(std::string_view key);
  // A problem with this key: into the report if there is one, else thrown.
  void refuse(JsonReport::Group group, std::string_view key, std::string_view message) const;
  // What has not been read, as an object at the same path: for telling misplaced keys from unknown
  // ones.
  JsonObject unread() const;
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

  // An error if a key was not read: it is unknown, or a misspelling of one that was asked for.
  void finish() const;

 private:
  const Json& take(std::string_view key);
  void problem(JsonReport::Group group, std::string text) const;

  // The value, unless `wrong` has something to say about it.
  template <typename T, typename Wrong>
  T read(std::string_view key, T fallback, Wrong wrong) {
    if (!has(key)) return fallback;
    try {
      T value = require<T>(key);
      const std::string message = wrong(value);
      if (message.empty()) return value;
      refuse(JsonReport::Group::conflict, key, message);
    } catch (const UserError& error) {
      if (!report_) throw;
      problem(JsonReport::Group::conflict, error.what());
    }
    return fallback;
  }

  Json value_;
  std::string path_;
  JsonReport* report_;
  bool auto_everywhere_ = false;
  std::set<std::string, std::less<>> known_, read_, auto_;
};

}  // namespace onefold

#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace onefold {
namespace {

// "3:14" for the byte at which the parser stopped (counted from 1; one past the end for a cut-off
// document).
std::string position(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = start == std::string_view::npos ? before.size() + 1 : before.size() - start;
  return fmt::format("{}:{}", line, column);
}

// Builds the document, event by event. The library's own builder looks through an ordered object
// for each key that it adds: seconds for the names of a large model's tensors. Here the map that
// finds repeated keys, of which the library would silently keep one, has already shown that a key
// is new.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& source) : text_(text), source_(&source) {}
  explicit Builder(std::string_view line) : text_(line) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const std::string& written) override {
    const bool whole = !source_ && written.find_first_of(".eE") == std::string::npos;
    return add(whole ? big_integer(written) : Json(value));
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t& value) override { return add(std::move(value)); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }

  bool key(std::string& key) override {
    Open& inner = open_.back();
    auto& object = inner.value->get_ref<Json::object_t&>();
    const auto [found, is_new] = inner.keys.try_emplace(key, object.size());
    if (!is_new && source_)
      user_error("{}: the key \"{}\" appears twice in one object; keep one", *source_, key);
    inner.current = found->second;
    if (is_new) object.emplace_back(std::move(key), Json());
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    if (!source_) user_error("{}", json_reason(error.what()));
    const auto* syntax = dynamic_cast<const Json::parse_error*>(&error);
    const std::string where =  // nowhere: a number that no double can hold
        syntax ? fmt::format("{}:{}", *source_, position(text_, syntax->byte)) : *source_;
    user_error("{}: not valid JSON: {}", where, json_reason(error.what()));
  }

 private:
  struct Open {
    Json* value;
    std::map<std::string, size_t> keys;  // and where they are
    size_t current = 0;                  // the last key's place
  };

  // Where the next value belongs: the last key's, the list's end, or the document.
  Json& place() {
    if (open_.empty()) return root_;
    Json& parent = *open_.back().value;
    if (parent.is_object())
      return (parent.get_ref<Json::object_t&>().begin() +
              static_cast<ptrdiff_t>(open_.back().current))
          ->second;
    return parent.emplace_back();
  }
  bool add(Json value) {
    place() = std::move(value);
    return true;
  }
  // Only the innermost grows, so that the pointers to the others hold.
  bool open(Json empty) {
    if (open_.size() == kDeepestJson)
      user_error("{}lists and objects are nested more than {} levels deep",
                 source_ ? *source_ + ": " : "", kDeepestJson);
    Json& value = place();
    value = std::move(empty);
    open_.push_back({.value = &value});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string_view text_;
  const std::string* const source_ = nullptr;  // none: a line of data
  Json root_;
  std::vector<Open> open_;
};

[[noreturn]] void wrong_type(const Json& value, const std::string& path,
                             std::string_view expected) {
  std::string hint;
  if (value == "auto")
    hint = "; \"auto\" is for a trainer that fills it in, which nothing does here: write the value";
  user_error("{} must be {}, not {} ({}){}", path, expected, json_kind(value), brief_json(value),
             hint);
}

template <typename T>
T convert(const Json& value, const std::string& path);

template <>
Json convert<Json>(const Json& value, const std::string&) {
  return value;
}

template <>
bool convert<bool>(const Json& value, const std::string& path) {
  if (!value.is_boolean()) wrong_type(value, path, "true or false");
  return value.get<bool>();
}

template <>
int64_t convert<int64_t>(const Json& value, const std::string& path) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    user_error("{} is too large ({})", path, brief_json(value));
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number()) wrong_type(value, path, "an integer");
  const auto number = value.get<double>();
  if (std::floor(number) != number)
    user_error("{} must be an integer, not {}", path, brief_json(value));
  // Beyond 2^53 a double no longer says which integer was meant.
  if (std::abs(number) > 0x1p53)
    user_error("{} is {}; with a point or an exponent the largest is 2^53, write its digits", path,
               brief_json(value));
  return static_cast<int64_t>(number);
}

template <>
double convert<double>(const Json& value, const std::string& path) {
  if (!value.is_number()) wrong_type(value, path, "a number");
  return value.get<double>();
}

template <>
float convert<float>(const Json& value, const std::string& path) {
  const auto number = convert<double>(value, path);
  if (std::abs(number) > 3.4e38) user_error("{} is too large ({})", path, brief_json(value));
  return static_cast<float>(number);
}

template <>
std::string convert<std::string>(const Json& value, const std::string& path) {
  if (!value.is_string()) wrong_type(value, path, "a string");
  return value.get<std::string>();
}

template <>
std::vector<std::string> convert<std::vector<std::string>>(const Json& value,
                                                           const std::string& path) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) wrong_type(value, path, "a string or a list of strings");
  std::vector<std::string> strings;
  for (const Json& item : value)
    strings.push_back(convert<std::string>(item, fmt::format("{}[{}]", path, strings.size())));
  return strings;
}

template <>
std::vector<double> convert<std::vector<double>>(const Json& value, const std::string& path) {
  if (!value.is_array()) wrong_type(value, path, "a list of numbers");
  std::vector<double> numbers;
  for (const Json& item : value)
    numbers.push_back(convert<double>(item, fmt::format("{}[{}]", path, numbers.size())));
  return numbers;
}

template <>
std::vector<int64_t> convert<std::vector<int64_t>>(const Json& value, const std::string& path) {
  if (!value.is_array()) wrong_type(value, path, "a list of integers");
  std::vector<int64_t> numbers;
  for (const Json& item : value)
    numbers.push_back(convert<int64_t>(item, fmt::format("{}[{}]", path, numbers.size())));
  return numbers;
}

}  // namespace

std::string json_reason(std::string_view what) {
  const size_t colon = what.find(": ");
  if (what.find("parse error at line") != std::string_view::npos && colon != std::string_view::npos)
    what.remove_prefix(colon + 2);
  else if (const size_t bracket = what.find("] "); bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  return std::string(what);
}

Json parse_json(std::string_view text, const std::string& source) {
  Builder builder(text, source);
  Json::sax_parse(text, &builder, Json::input_format_t::json, /*strict=*/true,
                  /*ignore_comments=*/true);
  return builder.take();
}

Json parse_json_line(std::string_view text) {
  Builder builder(text);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Json big_integer(std::string_view digits) { return Json::binary({digits.begin(), digits.end()}); }
std::string big_integer_digits(const Json& value) {
  const Json::binary_t& digits = value.get_binary();
  return {digits.begin(), digits.end()};
}

Json read_json(const std::string& path) { return parse_json(read_file(path), path); }
Json read_plain_json(const std::string& path) { return parse_json(read_plain_file(path), path); }

std::string brief_json(const Json& value) {
  constexpr size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kLongest) return text;
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // whole characters
  return text.substr(0, end) + "...";
}

std::string_view json_kind(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number() || value.is_binary()) return "a number";
  return "null";
}

void JsonReport::add(Group group, std::string problem) {
  problems_.push_back({group, std::move(problem)});
}

namespace {

// Thrown where no report is at hand, for one further out that groups problems.
struct UnknownKey : UserError {
  using UserError::UserError;
};

}  // namespace

void JsonReport::collect(const std::function<void()>& read) {
  try {
    read();
  } catch (const UnknownKey& error) {
    add(Group::unknown, error.what());
  } catch (const UserError& error) {
    add(Group::conflict, error.what());
  }
}

void JsonReport::raise() const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) user_error("{}", problems_[0].text);
  static constexpr std::pair<Group, std::string_view> kTitles[] = {
      {Group::unknown, "unknown"},
      {Group::missing, "not there yet"},
      {Group::conflict, "in conflict or out of range"}};
  std::string text = fmt::format("{} problems", problems_.size());
  for (const auto& [group, title] : kTitles) {
    std::string list;
    for (const Problem& problem : problems_)
      if (problem.group == group) list += "\n    " + quoted_lines(problem.text);
    if (!list.empty()) text += fmt::format("\n  {}:{}", title, list);
  }
  user_error("{}", text);
}

JsonObject::JsonObject(Json value, std::string path, JsonReport* report)
    : value_(std::move(value)), path_(std::move(path)), report_(report) {
  if (value_.is_object()) return;
  if (!report_) wrong_type(value_, path_.empty() ? "the document" : path_, "an object");
  report_->collect(
      [&] { wrong_type(value_, path_.empty() ? "the document" : path_, "an object"); });
  value_ = Json::object();
}

std::string JsonObject::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonObject::allow_auto(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    auto_.emplace(key);
    known_.emplace(key);
  }
}

void JsonObject::allow_auto() { auto_everywhere_ = true; }

bool JsonObject::is_auto(std::string_view key) const {
  const auto found = value_.find(key);
  return found != value_.end() && *found == "auto" && (auto_everywhere_ || auto_.contains(key));
}

bool JsonObject::has(std::string_view key) {
  known_.emplace(key);
  const auto found = value_.find(key);
  if (found == value_.end()) return false;
  if (is_auto(key)) {
    if (read_.emplace(key).second && report_) report_->autos.push_back(path(key));
    return false;
  }
  if (found->is_null()) read_.emplace(key);
  return !found->is_null();
}

const Json& JsonObject::take(std::string_view key) {
  if (!has(key)) user_error("{} is missing", path(key));
  read_.emplace(key);
  return *value_.find(key);
}

template <typename T>
T JsonObject::require(std::string_view key) {
  return convert<T>(take(key), path(key));
}

template bool JsonObject::require<bool>(std::string_view);
template int64_t JsonObject::require<int64_t>(std::string_view);
template double JsonObject::require<double>(std::string_view);
template float JsonObject::require<float>(std::string_view);
template Json JsonObject::require<Json>(std::string_view);
template std::string JsonObject::require<std::string>(std::string_view);
template std::vector<std::string> JsonObject::require<std::vector<std::string>>(std::string_view);
template std::vector<double> JsonObject::require<std::vector<double>>(std::string_view);
template std::vector<int64_t> JsonObject::require<std::vector<int64_t>>(std::string_view);

int64_t JsonObject::at_least(std::string_view key, int64_t minimum, int64_t fallback) {
  return read(key, fallback, [&](int64_t value) {
    return value < minimum ? fmt::format("must be at least {}, not {}", minimum, value) : "";
  });
}

double JsonObject::positive(std::string_view key, double fallback) {
  return read(key, fallback, [](double value) {
    return value > 0 ? "" : fmt::format("must be greater than 0, not {}", value);
  });
}

double JsonObject::non_negative(std::string_view key, double fallback) {
  return read(key, fallback, [](double value) {
    return value >= 0 ? "" : fmt::format("must not be negative, but is {}", value);
  });
}

double JsonObject::fraction(std::string_view key, double fallback) {
  return read(key, fallback, [](double value) {
    return value >= 0 && value < 1
               ? ""
               : fmt::format("must be at least 0 and less than 1, not {}", value);
  });
}

double JsonObject::ratio(std::string_view key, double fallback) {
  return read(key, fallback, [](double value) {
    return value >= 0 && value <= 1 ? "" : fmt::format("must be from 0 to 1, not {}", value);
  });
}

std::string JsonObject::choice(std::string_view key, std::initializer_list<std::string_view> names,
                               std::string_view fallback) {
  return read(key, std::string(fallback), [&](const std::string& value) {
    if (std::find(names.begin(), names.end(), value) != names.end()) return std::string();
    const std::vector<std::string> candidates(names.begin(), names.end());
    return fmt::format("must be one of {}, not \"{}\"{}", join(candidates, ", "), value,
                       did_you_mean(value, candidates));
  });
}

JsonObject JsonObject::object(std::string_view key) {
  return {has(key) ? take(key) : Json::object(), path(key), report_};
}

void JsonObject::no_effect(std::string_view key, std::string_view why) {
  if (!has(key)) return;
  refuse(JsonReport::Group::conflict, key, fmt::format("has no effect: {}", why));
  read_.emplace(key);
}

void JsonObject::idle(std::string_view key) {
  if (!has(key)) return;
  read_.emplace(key);
  if (report_) report_->idle.push_back(path(key));
}

JsonObject JsonObject::unread() const {
  Json rest = Json::object();
  for (const auto& [key, value] : value_.items())
    if (!read_.contains(key)) rest[key] = value;
  return {rest, path_, report_};
}

void JsonObject::fail(std::string_view key, std::string_view message) const {
  user_error("{} {}", path(key), message);
}

void JsonObject::problem(JsonReport::Group group, std::string text) const {
  if (report_) return report_->add(group, std::move(text));
  if (group == JsonReport::Group::unknown) throw UnknownKey(text);
  throw UserError(text);
}

void JsonObject::refuse(JsonReport::Group group, std::string_view key,
                        std::string_view message) const {
  problem(group, fmt::format("{} {}", path(key), message));
}

void JsonObject::finish() const {
  constexpr size_t kMostListed = 40;  // a longer list helps nobody
  for (const auto& [key, value] : value_.items()) {
    if (read_.contains(key)) continue;
    const std::vector<std::string> candidates(known_.begin(), known_.end());
    const std::string hint = did_you_mean(key, candidates);
    problem(JsonReport::Group::unknown,
            fmt::format("{} is not a known key{}", path(key),
                        hint.empty() && !known_.empty() && known_.size() <= kMostListed
                            ? fmt::format("; known here: {}", fmt::join(known_, ", "))
                            : hint));
  }
}

}  // namespace onefold

#include "cli/prompts.h"

#include <filesystem>
#include <iostream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace onefold::cli {
namespace {

class OnePrompt final : public Prompts {
 public:
  explicit OnePrompt(std::string text) : prompt_(Prompt{std::move(text), ""}) {}
  std::optional<Prompt> next() override { return std::exchange(prompt_, std::nullopt); }

 private:
  std::optional<Prompt> prompt_;
};

class PromptLines final : public Prompts {
 public:
  PromptLines(const std::string& path, bool jsonl)
      : name_(path == "-" ? "standard input" : path), standard_(path == "-"), jsonl_(jsonl) {
    if (!standard_) file_.str(read_file(path));
  }

  std::optional<Prompt> next() override {
    std::istream& in = standard_ ? std::cin : file_;
    for (std::string line; std::getline(in, line);) {
      ++number_;
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      std::string place = fmt::format("{}:{}", name_, number_);
      return Prompt{jsonl_ ? text_of_object(line, place) : line, place};
    }
    return std::nullopt;
  }

 private:
  static std::string text_of_object(const std::string& line, const std::string& place) {
    Json object;
    try {
      object = Json::parse(line);
    } catch (const Json::exception& error) {
      user_error(
          "{}: this line is not JSON ({}); with JSONL each line is an object with \"prompt\"",
          place, json_reason(error.what()));
    }
    for (const char* name : {"prompt", "text"}) {
      if (!object.is_object() || !object.contains(name)) continue;
      if (!object[name].is_string())
        user_error("{}: the field \"{}\" is {}, where a text is needed", place, name,
                   json_kind(object[name]));
      return object[name].get<std::string>();
    }
    user_error("{}: there is no field \"prompt\" or \"text\" on this line", place);
  }

  const std::string name_;
  const bool standard_, jsonl_;
  std::istringstream file_;
  int64_t number_ = 0;
};

bool is_jsonl(const std::string& path, const std::string& format) {
  if (format == "jsonl" || format == "lines") return format == "jsonl";
  if (!format.empty()) user_error("--prompt-format: \"{}\" is none of lines, jsonl", format);
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".jsonl" || extension == ".ndjson";
}

}  // namespace

std::unique_ptr<Prompts> one_prompt(std::string text) {
  return std::make_unique<OnePrompt>(std::move(text));
}

std::unique_ptr<Prompts> prompts_of(const std::string& path, const std::string& format) {
  return std::make_unique<PromptLines>(path, is_jsonl(path, format));
}

std::string read_whole(const std::string& path) {
  if (path != "-") return read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace onefold::cli

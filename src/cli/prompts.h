// Prompts for `onefold generate`, one after the other: from the command line, a file, or standard
// input, which is read as lines come.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace onefold::cli {

struct Prompt {
  std::string text;
  std::string place;  // "file:line"; "" for the one of the command line
};

class Prompts {
 public:
  virtual ~Prompts() = default;
  virtual std::optional<Prompt> next() = 0;
};

std::unique_ptr<Prompts> one_prompt(std::string text);
// A prompt on each line that is not empty; or, as `jsonl`, an object with "prompt" or "text". "-"
// is standard input. `format`: "lines", "jsonl", or "" to be told by the name.
std::unique_ptr<Prompts> prompts_of(const std::string& path, const std::string& format);

// A whole file, or with "-" all of standard input.
std::string read_whole(const std::string& path);

}  // namespace onefold::cli

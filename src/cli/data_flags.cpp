#include "cli/data_flags.h"

#include <optional>

#include "base/error.h"
#include "config/chat_markers.h"

namespace onefold::cli {
namespace {

// As data.format of a configuration is told by the names.
DataFormat format_of(const std::vector<std::string>& inputs, const DataFlags& flags) {
  if (!flags.format.empty()) return parse_data_format(flags.format, "--format");
  const auto named = [](const std::string& path) {
    const std::optional<DataFormat> format = format_by_name(path);
    if (!format)
      user_error("{} is neither text nor JSON lines by its name; if it is, set --format", path);
    return *format;
  };
  const DataFormat format = named(inputs[0]);
  for (const std::string& path : inputs)
    if (named(path) != format)
      user_error("{} and {} have different formats by their names; set --format", inputs[0], path);
  const bool chat =
      format == DataFormat::kJsonl && flags.field.empty() && holds_conversations(inputs[0]);
  return chat ? DataFormat::kChat : format;
}

// A flag that is there and means nothing for this format.
void check_flags(const DataFlags& flags, DataFormat format, const std::string& input) {
  if (format != DataFormat::kJsonl && !flags.field.empty())
    user_error("--field has no effect: it is for JSONL, and {} is not", input);
  if (format != DataFormat::kText && !flags.unit.empty())
    user_error("--document-unit has no effect: it is for text, and {} is not", input);
  if (flags.skip_bad && format != DataFormat::kJsonl && format != DataFormat::kChat)
    user_error("--skip-bad has no effect: it is for JSONL, and {} is not", input);
  if (flags.special && format == DataFormat::kChat)
    user_error("--special has no effect: markers of conversations are special tokens already");
  if (!flags.chat.empty() && format != DataFormat::kChat)
    user_error("--chat has no effect: it is for --format chat");
}

}  // namespace

void add_data_flags(CLI::App* command, DataFlags& flags, const std::string& formats) {
  command->add_option("--format", flags.format, formats + "; by default told by the name");
  command->add_option("--document-unit", flags.unit,
                      "Text: a document is a file (the default), a line, or a blank_line block");
  command->add_option("--field", flags.field,
                      "JSONL: the key that holds the text; \"text\" by default");
  command->add_flag("--skip-bad", flags.skip_bad,
                    "JSONL: leave out lines that cannot be read, and say how many");
}

DataSource source_of(const std::vector<std::string>& inputs, const DataFlags& flags) {
  DataSource source;
  source.paths = inputs;
  source.format = format_of(inputs, flags);
  check_flags(flags, source.format, inputs[0]);
  if (!flags.chat.empty())
    source.chat = read_chat_markers(JsonObject(parse_json(flags.chat, "--chat"), "--chat"));
  source.skip_bad = flags.skip_bad;
  source.special_tokens = flags.special;
  if (!flags.unit.empty())
    source.text_documents = parse_text_documents(flags.unit, "--document-unit");
  if (!flags.field.empty()) source.field = flags.field;
  return source;
}

}  // namespace onefold::cli

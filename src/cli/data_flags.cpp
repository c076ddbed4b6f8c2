#include "cli/data_flags.h"

#include <filesystem>

#include "base/error.h"

namespace onefold::cli {
namespace {

// As data.format of a configuration is told by the names.
DataFormat format_by_name(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return DataFormat::kJsonl;
  if (extension == ".tokens" || extension == ".bin") return DataFormat::kTokens;
  return DataFormat::kText;
}

DataFormat format_of(const std::vector<std::string>& inputs, const std::string& named) {
  if (!named.empty()) return parse_data_format(named, "--format");
  const DataFormat format = format_by_name(inputs[0]);
  for (const std::string& path : inputs)
    if (format_by_name(path) != format)
      user_error("{} and {} have different formats by their names; set --format", inputs[0], path);
  return format;
}

}  // namespace

void add_data_flags(CLI::App* command, DataFlags& flags, const std::string& formats) {
  command->add_option("--format", flags.format, formats + "; by default told by the name");
  command->add_option("--document-unit", flags.unit,
                      "Text: a document is a file (the default), a line, or a blank_line block");
  command->add_option("--field", flags.field,
                      "JSONL: the key that holds the text; \"text\" by default");
}

DataSource source_of(const std::vector<std::string>& inputs, const DataFlags& flags) {
  DataSource source;
  source.paths = inputs;
  source.format = format_of(inputs, flags.format);
  if (source.format != DataFormat::kJsonl && !flags.field.empty())
    user_error("--field has no effect: it is for JSONL, and {} is not", inputs[0]);
  if (source.format != DataFormat::kText && !flags.unit.empty())
    user_error("--document-unit has no effect: it is for text, and {} is not", inputs[0]);
  if (!flags.unit.empty())
    source.text_documents = parse_text_documents(flags.unit, "--document-unit");
  if (!flags.field.empty()) source.field = flags.field;
  return source;
}

}  // namespace onefold::cli

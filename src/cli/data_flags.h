// The flags that say how files with text are read: shared by the commands that read any.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "data/documents.h"

namespace onefold::cli {

struct DataFlags {
  std::string format, unit, field, chat;
  bool special = false, skip_bad = false;
};

// `formats`: those that the command reads, in words.
void add_data_flags(CLI::App* command, DataFlags& flags, const std::string& formats);

// The files as the flags say, or as their names do. UserError if they have several formats, or a
// flag has no effect.
DataSource source_of(const std::vector<std::string>& inputs, const DataFlags& flags);

}  // namespace onefold::cli

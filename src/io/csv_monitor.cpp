#include "io/csv_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace onefold {
namespace {

bool is_later(const std::string& line, int64_t samples) {
  int64_t at = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), at);
  return error == std::errc() && at > samples;
}

// Whole lines up to `samples` (0: all). The last one may have been cut off, by a full disk or a
// power cut; it would be taken for another number, and the next line would go on in it.
void keep_lines_until(const std::string& path, int64_t samples) {
  const std::string text = read_file(path);
  if (samples == 0 && text.ends_with('\n')) return;
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (samples == 0 || !is_later(line, samples)) kept += line + "\n";
  write_file(path, kept);
}

}  // namespace

CsvMonitor::CsvMonitor(std::string folder, int64_t samples)
    : folder_(std::move(folder)), samples_(samples) {
  make_folders(folder_);
}

GrowingFile& CsvMonitor::file(std::string_view name) {
  if (const auto found = files_.find(name); found != files_.end()) return found->second;
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '/', '_');
  const std::string path = fmt::format("{}/{}.csv", folder_, plain);
  if (path_exists(path)) keep_lines_until(path, samples_);
  const bool begun = path_exists(path) && file_bytes(path) > 0;
  GrowingFile& file =
      files_.try_emplace(std::string(name), path, Files::Mode::append).first->second;
  if (!begun) file.append(fmt::format("step,{}\n", name.substr(name.rfind('/') + 1)));
  return file;
}

void CsvMonitor::write(int64_t samples,
                       std::initializer_list<std::pair<std::string_view, double>> values) {
  for (const auto& [name, value] : values)
    file(name).append(fmt::format("{},{}\n", samples, value));
}

}  // namespace onefold

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

void keep_lines_until(const std::string& path, int64_t samples) {
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (!is_later(line, samples)) kept += line + "\n";
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
  const bool begun = path_exists(path);
  if (begun && samples_ > 0) keep_lines_until(path, samples_);
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

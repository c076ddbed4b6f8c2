#include "io/metrics.h"

#include "base/error.h"

namespace onefold {
namespace {

// Whether the file ends inside a line: a process killed while writing leaves one.
bool ends_inside_a_line(const std::string& path) {
  if (!path_exists(path) || file_bytes(path) == 0) return false;
  InputFile file(path);
  file.seek(file_bytes(path) - 1);
  std::byte last{};
  return file.read({&last, 1}) == 1 && last != std::byte{'\n'};
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, Mode mode) : file_(path, mode) {
  // The next object starts a line of its own.
  if (mode == Mode::append && ends_inside_a_line(path)) file_.append("\n");
}

void MetricsWriter::write(const Json& object) {
  require(object.is_object(), "metrics line is {}", json_kind(object));
  file_.append(object.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n');
}

}  // namespace onefold

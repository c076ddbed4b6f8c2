#include "io/metrics.h"

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace onefold {
namespace {

// Whether the file ends inside a line: a process killed while writing leaves one.
bool ends_inside_a_line(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  return file && std::fseek(file.get(), -1, SEEK_END) == 0 && std::fgetc(file.get()) != '\n';
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, Mode mode) : path_(path) {
  const bool broken_line = mode == Mode::append && ends_inside_a_line(path);
  file_.reset(std::fopen(path.c_str(), mode == Mode::fresh ? "wbe" : "abe"));
  if (!file_) user_error("cannot open {}: {}", path, std::strerror(errno));
  if (broken_line) std::fputc('\n', file_.get());  // the next object starts a line of its own
}

void MetricsWriter::write(const Json& object) {
  require(object.is_object(), "metrics line is {}", json_kind(object));
  std::string line = object.dump(-1, ' ', false, Json::error_handler_t::replace);
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    user_error("cannot write {}: {}", path_, std::strerror(errno));
}

}  // namespace onefold

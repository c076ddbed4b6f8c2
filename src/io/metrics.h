// Metrics as JSON lines: one object for each event of a run, flushed as it is written, so that a
// killed run keeps all of them and `tail -f` follows. NaN and infinities, which JSON does not have,
// become null.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"

namespace onefold {

class MetricsWriter {
 public:
  enum class Mode { fresh, append };  // append: a resumed run
  MetricsWriter(const std::string& path, Mode mode);

  void write(const Json& object);
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace onefold

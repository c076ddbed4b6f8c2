// Metrics as JSON lines: one object for each event of a run, visible as it is written, so that a
// killed run keeps all of them and `tail -f` follows. NaN and infinities, which JSON does not have,
// become null.
#pragma once

#include <string>

#include "base/file.h"
#include "base/json.h"

namespace onefold {

class MetricsWriter {
 public:
  using Mode = Files::Mode;  // append: a resumed run
  MetricsWriter(const std::string& path, Mode mode);

  void write(const Json& object);
  // What could not be written is tried again with the next, and by this.
  void retry() { file_.retry(); }
  size_t waiting_bytes() const { return file_.waiting_bytes(); }
  const std::string& path() const { return file_.path(); }

 private:
  GrowingFile file_;
};

}  // namespace onefold

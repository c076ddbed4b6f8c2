// TensorBoard event files with scalars, written without TensorFlow or a protobuf library: the few
// messages that they need are some bytes each. docs: tensorflow/core/util/event.proto and
// summary.proto.
//   file     records, each: length (u64), masked CRC of the length (u32), event, masked CRC of the
//            event (u32)
//   event    1: wall time (double), 2: step (varint), 3: file version (the first event only),
//            5: summary, 7: session log
//   summary  repeated 1: value {1: tag, 2: scalar (float)}
//   session  1: status (1: start)
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace onefold {

// CRC-32C (Castagnoli) and the rotation that TFRecord applies to it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  // A new event file in `folder`, which is created if need be. TensorBoard shows all files of a
  // folder as one run.
  explicit TensorBoardWriter(const std::string& folder);

  // The run goes on from an earlier step, and `step` is its next: TensorBoard drops what earlier
  // files have of it and of later ones.
  void restart(int64_t step);
  // One event with some scalars, flushed: a reader that follows the file sees it at once.
  void scalars(int64_t step, std::initializer_list<std::pair<std::string_view, double>> values);
  void scalar(std::string_view tag, int64_t step, double value) { scalars(step, {{tag, value}}); }

  // What could not be written is tried again with the next, and by this.
  void retry() { file_.retry(); }
  size_t waiting_bytes() const { return file_.waiting_bytes(); }
  const std::string& path() const { return file_.path(); }

 private:
  void record(std::string_view event);

  GrowingFile file_;
};

}  // namespace onefold

// The bytes of a data file from its beginning to its end: a file, a named pipe, or standard input
// ("-"); decompressed on the way if they are gzip's or zstd's, which their first bytes tell. Holds
// a few hundred kilobytes of it, and what zstd's window takes: at most 128 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace onefold {

inline constexpr const char* kStandardInput = "-";

// "standard input", or the path.
std::string input_name(const std::string& path);
// Whether the bytes are there once only: standard input, or a pipe.
bool is_read_once(const std::string& path);

class ByteInput {
 public:
  explicit ByteInput(const std::string& path);
  ~ByteInput();
  ByteInput(const ByteInput&) = delete;
  ByteInput& operator=(const ByteInput&) = delete;

  const std::string& name() const { return name_; }
  // The next bytes, as many as fit into dst or as there are; 0 at the end. UserError naming the
  // file if compressed data is damaged, cut short, or followed by something else.
  size_t read(std::span<char> dst);
  // Bytes of the file itself that have been taken so far, compressed as they are.
  int64_t taken_bytes() const { return taken_bytes_; }

  // How compressed bytes become plain ones.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    virtual size_t read(ByteInput& input, std::span<char> dst) = 0;
  };

 private:
  friend class GzipDecoder;
  friend class ZstdDecoder;
  bool refill();  // the block again; false at the end of the file

  std::string name_;
  InputFile file_;
  std::string block_;           // of the file
  std::span<const char> rest_;  // what is not read of it
  int64_t taken_bytes_ = 0;
  std::unique_ptr<Decoder> decoder_;
};

// The lines of an input, without their ends ("\n" or "\r\n").
class LineReader {
 public:
  // A longer line is an error: lines are held whole.
  static constexpr size_t kMostBytes = size_t{256} << 20;
  explicit LineReader(ByteInput& input, size_t most_bytes = kMostBytes)
      : input_(input), most_bytes_(most_bytes) {}

  bool next();                                     // false at the end
  std::string_view line() const { return line_; }  // until the next next()
  std::string_view end() const { return end_; }    // "\n", "\r\n", or "" of the last line
  int64_t number() const { return number_; }       // from 1
  int64_t position() const { return position_; }   // the byte at which it begins

 private:
  ByteInput& input_;
  const size_t most_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not read of the buffer
  bool at_end_ = false;
  std::string_view line_, end_;
  int64_t number_ = 0, position_ = 0, next_position_ = 0;
};

}  // namespace onefold

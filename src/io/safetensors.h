// safetensors files: eight bytes of header length (little-endian), a JSON header, then the tensors'
// bytes.
//   {"__metadata__": {"key": "text"},
//    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// Offsets count from the end of the header; the tensors cover everything after it, without holes.
// Nothing in a file is trusted: all of it but the tensors' values is checked before any of it is
// handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/checksum.h"

namespace onefold {

struct SafetensorsEntry {
  std::string name;
  std::string dtype = "F32";   // as in the file: F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8
                               // BOOL F8_E4M3 F8_E5M2, or one that is not read (F8_E8M0, F4,
                               // C64, ...); of a GGUF file also its own
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin_bytes = 0;     // from the end of the header
  int64_t end_bytes = 0;

  int64_t elems() const;
  int64_t bytes() const { return end_bytes - begin_bytes; }
};

// "[2, 3]".
std::string shape_text(std::span<const int64_t> shape);

// Bits of one element; 0 for a type this code does not know. And bytes: 0 too where elements share
// them.
int64_t safetensors_dtype_bits(const std::string& dtype);
int64_t safetensors_dtype_bytes(const std::string& dtype);

// A file of tensors that is mapped, not read.
class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual const std::string& path() const = 0;
  virtual const std::vector<SafetensorsEntry>& entries() const = 0;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  // The mapped bytes, which may lie at any alignment.
  virtual std::span<const std::byte> bytes(const SafetensorsEntry& entry) const = 0;
  // Lets go of the memory that reading this tensor has mapped in; the bytes stay readable. Without
  // it, a walk over a large file grows the process by the whole of it.
  void release(const SafetensorsEntry& entry) const;
};

class SafetensorsFile final : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const override { return entries_; }  // by offset
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  bool contains(const std::string& name) const { return index_.contains(name); }
  const SafetensorsEntry& entry(const std::string& name) const;  // UserError with the nearest name

  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const override;
  // Copies a tensor of type F32 (or I32, I64) whose number of elements is dst's.
  void read(const std::string& name, std::span<float> dst) const;
  void read(const std::string& name, std::span<int32_t> dst) const;
  void read(const std::string& name, std::span<int64_t> dst) const;

 private:
  [[noreturn]] void fail(const std::string& message) const;
  void read_header(std::string_view header);
  void check_layout();
  void copy(const std::string& name, const char* dtype, void* dst, size_t elems) const;

  MappedFile file_;
  size_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Writes tensors one after the other in bounded memory. The file exists only once commit() is done.
class SafetensorsWriter {
 public:
  // Names, types and shapes of all tensors, in the order they will be written; offsets are filled
  // in here.
  SafetensorsWriter(std::string path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes of `name`, the tensor whose turn it is; a tensor may come in any number of
  // pieces.
  void write(const std::string& name, std::span<const std::byte> piece);
  void write(const std::string& name, std::span<const float> piece) {
    write(name, std::as_bytes(piece));
  }
  void commit();

  // Of the whole file so far; after commit, what a reader will find.
  std::string checksum() const { return checksum_.text(); }
  int64_t bytes() const { return bytes_; }

 private:
  void append(std::span<const std::byte> piece);

  std::vector<SafetensorsEntry> entries_;
  OutputFile file_;
  size_t current_ = 0;         // the entry whose bytes are expected
  int64_t current_bytes_ = 0;  // how many of them have come
  Checksum checksum_;
  int64_t bytes_ = 0;
};

}  // namespace onefold

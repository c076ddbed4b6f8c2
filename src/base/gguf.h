// GGUF files, which llama.cpp and what is built on it read: values by name, tensors, then the
// tensors' bytes. All numbers are little-endian.
//   "GGUF", version (u32, 2 or 3), number of tensors (u64), number of values (u64)
//   a value:  key (string), type (u32), content; a list is its entries' type, their number, they
//   a tensor: name (string), dimensions (u32), each of them (u64, the innermost first), type (u32),
//             place (u64, from the beginning of the tensors' bytes)
// A string is its length (u64) and its bytes. Tensors begin at multiples of general.alignment (32).
// Nothing in a file is trusted: all of it but the tensors' values is checked before any of it is
// handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace onefold {

// A type of tensors. Those that quantize come in blocks of so many elements, which lie in a row.
struct GgmlType {
  uint32_t number;
  std::string_view name;
  int64_t elems, bytes;  // of a block
};
// By its name ("Q8_0") or its number in a file; null if this code does not know it.
const GgmlType* ggml_type_named(std::string_view name);
const GgmlType* ggml_type_numbered(uint32_t number);

struct GgufTensor {
  std::string name;
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;  // the outermost first: [rows, columns]
  size_t begin_bytes = 0;      // in the file
  size_t bytes = 0;
};

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  // Whether a path names such a file: by its ending alone.
  static bool is_named(std::string_view path) { return path.ends_with(".gguf"); }

  const std::string& path() const { return file_.path(); }
  // Every value by its key. Strings may hold any bytes.
  const Json& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* tensor(std::string_view name) const;              // null if there is none
  std::span<const std::byte> bytes() const { return file_.bytes(); }  // of the whole file
  std::span<const std::byte> bytes(const GgufTensor& tensor) const {
    return bytes().subspan(tensor.begin_bytes, tensor.bytes);
  }

  // A value of the given type, by its whole key; UserError if it is missing or of another type.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  std::string text(const std::string& key) const;

 private:
  class Reader;
  [[noreturn]] void fail(const std::string& message) const;
  const Json& value(const std::string& key) const;
  void read_values(Reader& in, uint64_t count);
  void read_tensors(Reader& in, uint64_t count);
  void place_tensors(size_t header_bytes);

  MappedFile file_;
  Json values_ = Json::object();
  std::vector<GgufTensor> tensors_;
};

// The header of a file to be written, and where its tensors go.
class GgufHeader {
 public:
  void add(const std::string& key, std::string_view text);
  void add(const std::string& key, const char* text) { add(key, std::string_view(text)); }
  void add(const std::string& key, uint32_t number);
  void add(const std::string& key, float number);
  void add(const std::string& key, bool truth);
  void add(const std::string& key, std::span<const std::string> texts);
  void add(const std::string& key, std::span<const float> numbers);
  void add(const std::string& key, std::span<const int32_t> numbers);
  // Rows must be whole blocks. Tensors are written in the order in which they are added, each
  // followed by zeros up to a multiple of kAlignment.
  void add_tensor(const std::string& name, const GgmlType& type, std::span<const int64_t> shape);

  static constexpr size_t kAlignment = 32;
  static size_t padding(size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }
  std::string bytes() const;  // of the header, with the zeros before the first tensor
  int64_t tensor_bytes() const { return static_cast<int64_t>(next_); }  // of all, with zeros

 private:
  std::string& begin(const std::string& key, uint32_t type);

  std::string values_, tensors_;
  uint64_t value_count_ = 0, tensor_count_ = 0;
  size_t next_ = 0;
};

}  // namespace onefold

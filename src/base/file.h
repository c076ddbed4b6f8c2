// Files: whole reads, writes that exist whole or not at all, and read-only memory maps. Errors are
// UserErrors that name the path and the reason the system gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace onefold {

std::string read_file(const std::string& path);

// Writes beside `path`, flushes to disk, renames: a reader sees the old file or the new one.
void write_file(const std::string& path, std::string_view content);

// Creates the folder and its parents; names the one that could not be made.
void make_folders(const std::string& path);

// A read-only view of a whole file. An empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace onefold

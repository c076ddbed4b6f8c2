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

// A file that appears under its name whole or not at all: written beside it in pieces, flushed to
// disk and renamed by commit(). Without commit() nothing is left behind.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(
      std::span<const std::byte> piece);  // small pieces are gathered before they are written
  void overwrite(int64_t at, std::span<const std::byte> piece);  // bytes that were appended before
  void commit();

  const std::string& path() const { return path_; }
  bool committed() const { return fd_ < 0; }

 private:
  void flush();
  void write(std::span<const std::byte> piece);

  std::string path_, temporary_;
  std::string buffer_;
  size_t unsent_bytes_ = 0;
  int fd_ = -1;
};

// The whole content at once, through an OutputFile.
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

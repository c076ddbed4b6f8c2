// Files: whole reads, writes that exist whole or not at all, files that grow, read-only memory
// maps, and folders. All of it goes through files() (base/files.h). Errors are UserErrors that name
// the path and the reason that the system gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace onefold {

std::string read_file(const std::string& path);
// The same of what must be a file: to open a pipe would wait for its writer, for ever perhaps.
std::string read_plain_file(const std::string& path);
// UserError if this is what a clone without Git LFS leaves in place of a large file: three lines.
void refuse_lfs_pointer(std::string_view content, const std::string& path);

// A file that is read from its beginning, or from where it is told to go on.
class InputFile {
 public:
  explicit InputFile(std::string path);
  // The next bytes, as many as fit into dst or as there are; 0 at the end.
  size_t read(std::span<std::byte> dst);
  void seek(int64_t at);

 private:
  std::string path_;
  std::unique_ptr<Files::Input> file_;
};

// What a file under way is called, beside the one that it will be.
inline constexpr const char* kTemporarySuffix = ".onefold-tmp";

// A file that appears under its name whole or not at all: written beside it in pieces, flushed to
// disk and renamed by commit(). Without commit() nothing is left behind. Of a link, what it leads
// to is replaced, and the link stays. A pipe or a device is never replaced: it gets the bytes as
// they come.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Small pieces are gathered before they are written.
  void append(std::span<const std::byte> piece);
  void overwrite(int64_t at, std::span<const std::byte> piece);  // bytes that were appended before
  void commit();

  const std::string& path() const { return path_; }
  bool committed() const { return file_ == nullptr; }

 private:
  void write_buffer();

  std::string path_, target_;  // target: what is replaced, with links followed
  std::string written_;        // where bytes go until then
  bool through_ = false;       // a pipe or a device: the bytes go there
  std::string buffer_;
  std::unique_ptr<Files::Output> file_;
};

// The whole content at once, through an OutputFile.
void write_file(const std::string& path, std::string_view content);

// A file that grows as a run goes: what was appended is there for any reader, and stays if the
// process is killed. What could not be written, because the disk is full, is kept and goes first at
// the next append; beyond so many bytes that wait, what is appended is lost.
class GrowingFile {
 public:
  GrowingFile(std::string path, Files::Mode mode);
  void append(std::string_view text);
  void retry() { append(""); }
  size_t waiting_bytes() const { return waiting_.size(); }
  const std::string& path() const { return path_; }

  static constexpr size_t kMostWaiting = size_t{16} << 20;

 private:
  std::string path_;
  std::string waiting_;
  std::unique_ptr<Files::Output> file_;
};

// A read-only view of a whole file, which is no pipe and no device. An empty file gives an empty
// span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);

  std::span<const std::byte> bytes() const {
    return map_ ? map_->bytes() : std::span<const std::byte>();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<Files::Map> map_;
};

// Whether there is a file or folder. What cannot be examined counts as missing: whoever opens it
// next is told why.
bool path_exists(const std::string& path);
bool is_folder(const std::string& path);
// A file that writing would replace: neither a folder, nor a pipe or a device.
bool is_plain_file(const std::string& path);
// Whether both are there and are one file, under two names perhaps.
bool is_same_file(const std::string& a, const std::string& b);
// A link to something that is not there, like a disk that is not mounted.
bool is_broken_link(const std::string& path);
int64_t file_bytes(const std::string& path);

// Without "." and "..", in no order. There is nothing in a folder that is not there.
std::vector<Files::Entry> list_folder(const std::string& path);
// Creates the folder and its parents; names the one that could not be made.
void make_folders(const std::string& path);
// Removes a file, or a folder with all that is in it; what is not there is no error.
void remove_path(const std::string& path);
// The same where nothing depends on it. Returns what could not be removed and why; "": all is gone.
std::string try_remove_path(const std::string& path);

// On disk once it returns: the names in a folder; that of `path`.
void flush_folder(const std::string& path);
void flush_folder_of(const std::string& path);

void rename_path(const std::string& from, const std::string& to);
// Puts the folder `from` in the place of `to`, which may be a folder that is not empty, or a link
// to one: then the two change names and the old one is removed, so that one of them is there at
// every moment. On a file system that cannot do so, for a moment there is neither, and the old one
// is beside it.
void replace_folder(const std::string& from, const std::string& to);

}  // namespace onefold

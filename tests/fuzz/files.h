// Files in memory for readers that take paths. An execution rewrites their content; nothing is
// created or removed, which would take longer than the readers themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onefold::fuzz {

class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void fill(std::string_view content) const;
  const std::string& path() const { return path_; }  // /proc/self/fd/N

 private:
  int fd_;
  std::string path_;
};

// A folder of links to files in memory, under fixed names.
class MemoryFolder {
 public:
  explicit MemoryFolder(std::vector<std::string> names);
  ~MemoryFolder();

  // The parts of `input` become the files' content, in order; a file without a part is empty.
  void fill(std::string_view input) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::vector<MemoryFile> files_;
};

}  // namespace onefold::fuzz

#include "fuzz/files.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "fuzz/targets.h"

namespace onefold::fuzz {
namespace {

void check(bool succeeded, const char* what) {
  if (!succeeded) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

MemoryFile::MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  check(fd_ >= 0, "memfd_create");
  path_ = "/proc/self/fd/" + std::to_string(fd_);
}

MemoryFile::~MemoryFile() { ::close(fd_); }

void MemoryFile::fill(std::string_view content) const {
  check(::ftruncate(fd_, static_cast<off_t>(content.size())) == 0, "ftruncate");
  const ssize_t written = ::pwrite(fd_, content.data(), content.size(), 0);
  check(written == static_cast<ssize_t>(content.size()), "pwrite");
}

MemoryFolder::MemoryFolder(std::vector<std::string> names)
    : names_(std::move(names)), files_(names_.size()) {
  path_ = (std::filesystem::temp_directory_path() / "onefold_fuzz_XXXXXX").string();
  check(::mkdtemp(path_.data()) != nullptr, "mkdtemp");
  for (size_t i = 0; i < names_.size(); ++i)
    std::filesystem::create_symlink(files_[i].path(), path_ + "/" + names_[i]);
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void MemoryFolder::fill(std::string_view input) const {
  for (const MemoryFile& file : files_) {
    const size_t end = input.find(kNextFile);
    file.fill(input.substr(0, end));
    input.remove_prefix(end == std::string_view::npos ? input.size() : end + kNextFile.size());
  }
}

}  // namespace onefold::fuzz

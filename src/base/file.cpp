#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace onefold {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void fail(const char* verb, const std::string& path) {
  user_error("cannot {} {}: {}", verb, path, std::strerror(errno));
}

int64_t regular_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("examine", path);
  if (S_ISDIR(info.st_mode)) user_error("cannot read {}: it is a folder", path);
  return info.st_size;
}

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail("open", path);
  std::string content;
  content.reserve(static_cast<size_t>(regular_size(file.fd, path)));
  char block[1 << 16];
  while (true) {  // not by size: pipes and /proc files have none
    const ssize_t n = ::read(file.fd, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    if (n == 0) return content;
    content.append(block, static_cast<size_t>(n));
  }
}

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp";
  {
    const Descriptor file{
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) fail("create", temporary);
    while (!content.empty()) {
      const ssize_t n = ::write(file.fd, content.data(), content.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write", temporary);
      content.remove_prefix(static_cast<size_t>(n));
    }
    if (::fsync(file.fd) != 0) fail("flush", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename into place", path);
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) user_error("cannot create the folder {}: {}", path, error.message());
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail("open", path);
  size_ = static_cast<size_t>(regular_size(file.fd, path));
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail("map", path);
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace onefold

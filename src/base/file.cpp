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

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

// A rename is on disk only when its folder is. Some file systems cannot flush folders: then the
// rename is as safe as they make it.
void flush_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const Descriptor descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor.fd >= 0) (void)::fsync(descriptor.fd);
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

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create", temporary_);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::append(std::span<const std::byte> piece) {
  constexpr size_t kBufferBytes = size_t{1} << 18;
  if (buffer_.size() + piece.size() > kBufferBytes) flush();
  if (piece.size() > kBufferBytes)
    write(piece);
  else
    buffer_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
}

void OutputFile::flush() {
  write(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

// Blocks are sent to the disk while the next ones are copied: the flush at the end then finds
// little left to do.
void OutputFile::write(std::span<const std::byte> piece) {
  constexpr size_t kBlockBytes = size_t{8} << 20;
  write_all(fd_, piece, temporary_);
#if defined(__linux__)
  if ((unsent_bytes_ += piece.size()) < kBlockBytes) return;
  (void)::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);  // a hint: commit() is what counts
  unsent_bytes_ = 0;
#endif
}

void OutputFile::overwrite(int64_t at, std::span<const std::byte> piece) {
  flush();
  if (::pwrite(fd_, piece.data(), piece.size(), at) != static_cast<ssize_t>(piece.size()))
    fail("write", temporary_);
}

void OutputFile::commit() {
  require(fd_ >= 0, "{} is committed twice", path_);
  flush();
  if (::fsync(fd_) != 0) fail("flush", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename into place", path_);
  ::close(std::exchange(fd_, -1));
  flush_folder_of(path_);
}

void write_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.append(std::as_bytes(std::span(content)));
  file.commit();
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

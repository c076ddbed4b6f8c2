#include "base/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/mapped_faults.h"
#include "base/scratch_file.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

std::error_code last_error() { return {errno, std::generic_category()}; }
std::error_code error_unless(bool succeeded) {
  return succeeded ? std::error_code() : last_error();
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::error_code counted(ssize_t result, size_t& count) {
  count = result < 0 ? 0 : static_cast<size_t>(result);
  return error_unless(result >= 0);
}

class PosixInput final : public Files::Input {
 public:
  explicit PosixInput(Descriptor file) : file_(std::move(file)) {}
  std::error_code read(std::span<std::byte> dst, size_t& count) override {
    return counted(::read(file_.fd(), dst.data(), dst.size()), count);
  }
  std::error_code seek(int64_t at) override {
    return error_unless(::lseek(file_.fd(), at, SEEK_SET) >= 0);
  }

 private:
  Descriptor file_;
};

class PosixOutput final : public Files::Output {
 public:
  explicit PosixOutput(Descriptor file) : file_(std::move(file)) {}
  std::error_code write(std::span<const std::byte> src, size_t& count) override {
    const std::error_code error = counted(::write(file_.fd(), src.data(), src.size()), count);
    start_flush(count);
    return error;
  }
  std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) override {
    return counted(::pwrite(file_.fd(), src.data(), src.size(), at), count);
  }
  std::error_code set_permissions(uint32_t permissions) override {
    return error_unless(::fchmod(file_.fd(), permissions) == 0);
  }
  std::error_code flush() override { return error_unless(::fsync(file_.fd()) == 0); }

 private:
  // Blocks are sent to the disk while the next ones are copied: the flush at the end then finds
  // little left to do.
  void start_flush(size_t written) {
    constexpr size_t kBlockBytes = size_t{8} << 20;
    if ((unsent_bytes_ += written) < kBlockBytes) return;
    (void)::sync_file_range(file_.fd(), 0, 0, SYNC_FILE_RANGE_WRITE);  // a hint: flush() counts
    unsent_bytes_ = 0;
  }

  Descriptor file_;
  size_t unsent_bytes_ = 0;
};

class PosixMap final : public Files::Map {
 public:
  PosixMap(void* data, size_t size, const std::string& path) : data_(data), size_(size) {
    if (data_) watch_map(data_, size_, path);
  }
  ~PosixMap() override {
    if (!data_) return;
    forget_map(data_);
    ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_;
  size_t size_;
};

class PosixFiles final : public Files {
 public:
  std::error_code open_input(const std::string& path, std::unique_ptr<Input>& file) override {
    Descriptor opened;
    Status ignored;
    if (const std::error_code error = open_to_read(path, opened, ignored)) return error;
    file = std::make_unique<PosixInput>(std::move(opened));
    return {};
  }

  std::error_code open_output(const std::string& path, Mode mode,
                              std::unique_ptr<Output>& file) override {
    Descriptor opened;
    do {
      opened = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags_of(mode), 0644));
      if (opened.fd() < 0) return last_error();
      if (mode != Mode::own) break;
      if (::flock(opened.fd(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return std::make_error_code(std::errc::resource_unavailable_try_again);
      // Whoever had it before may have renamed it since: then another is to be made.
    } while (!is_at(opened.fd(), path));
    if (mode == Mode::own && ::ftruncate(opened.fd(), 0) != 0 && errno != EINVAL)
      return last_error();
    file = std::make_unique<PosixOutput>(std::move(opened));
    return {};
  }

  std::error_code map(const std::string& path, std::unique_ptr<Map>& map) override {
    Descriptor opened;
    Status status;
    if (const std::error_code error = open_to_read(path, opened, status)) return error;
    const auto bytes = static_cast<size_t>(status.bytes);
    void* data = nullptr;
    if (bytes > 0) data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.fd(), 0);
    if (data == MAP_FAILED) return last_error();
    map = std::make_unique<PosixMap>(data, bytes, path);
    return {};
  }

  std::error_code open_scratch(const std::string& folder, Requests requests,
                               std::unique_ptr<Scratch>& file) override {
    return open_scratch_file(folder, {requests, ScratchIo::ring}, file);
  }
  std::error_code free_bytes(const std::string& folder, int64_t& bytes) override {
    struct statvfs info {};
    const bool known = ::statvfs(folder.c_str(), &info) == 0;
    bytes = known ? static_cast<int64_t>(info.f_bavail * info.f_frsize) : 0;
    return error_unless(known);
  }

  std::error_code status(const std::string& path, Status& status) override {
    struct stat info {};
    const bool there = ::stat(path.c_str(), &info) == 0;
    status = there ? status_of(info) : Status{};
    return there || errno == ENOENT || errno == ENOTDIR ? std::error_code() : last_error();
  }

  std::error_code read_link(const std::string& path, std::string& target) override {
    std::error_code error;
    target = fs::read_symlink(path, error).string();
    return error;
  }

  std::error_code list(const std::string& folder, std::vector<Entry>& entries) override {
    std::error_code error;
    entries.clear();
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      std::error_code unknown;
      entries.push_back({at->path().filename().string(),
                         at->symlink_status(unknown).type() == fs::file_type::directory});
    }
    return error;
  }

  std::error_code make_folders(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    return error;
  }
  std::error_code rename(const std::string& from, const std::string& to) override {
    return error_unless(::rename(from.c_str(), to.c_str()) == 0);
  }
  std::error_code exchange(const std::string& a, const std::string& b) override {
    // Not the C library's renameat2: some have none.
    return error_unless(
        ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0);
  }
  std::error_code remove(const std::string& path) override {
    return error_unless(std::remove(path.c_str()) == 0);
  }

  std::error_code flush_folder(const std::string& path) override {
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // A folder may be written to without being readable.
    if (folder.fd() < 0) return error_unless(errno == EACCES);
    const bool flushed = ::fsync(folder.fd()) == 0;
    return error_unless(flushed || errno == EINVAL || errno == ENOTSUP);
  }

 private:
  static Status status_of(const struct stat& info) {
    const Kind kind = S_ISDIR(info.st_mode)   ? Kind::folder
                      : S_ISREG(info.st_mode) ? Kind::file
                                              : Kind::special;
    return {kind, kind == Kind::folder ? 0 : info.st_size, info.st_dev, info.st_ino,
            info.st_mode & 07777};
  }
  static int flags_of(Mode mode) {
    switch (mode) {
      case Mode::fresh:
        return O_CREAT | O_TRUNC;
      case Mode::append:
        return O_CREAT | O_APPEND;
      case Mode::own:
        return O_CREAT;
      case Mode::through:
        break;
    }
    return 0;
  }
  // Whether the open file is the one of this name.
  static bool is_at(int fd, const std::string& path) {
    struct stat opened {
    }, named{};
    return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }
  static std::error_code open_to_read(const std::string& path, Descriptor& file, Status& status) {
    file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (file.fd() < 0 || ::fstat(file.fd(), &info) != 0) return last_error();
    status = status_of(info);
    if (status.kind == Kind::folder) return std::make_error_code(std::errc::is_a_directory);
    return {};
  }
};

PosixFiles& posix_files() {
  static PosixFiles files;
  return files;
}

std::atomic<Files*> in_force = nullptr;  // null: the system's

}  // namespace

Files& files() {
  Files* const other = in_force.load(std::memory_order_acquire);
  return other ? *other : posix_files();
}

ScopedFiles::ScopedFiles(Files& other) { in_force.store(&other, std::memory_order_release); }
ScopedFiles::~ScopedFiles() { in_force.store(nullptr, std::memory_order_release); }

}  // namespace onefold

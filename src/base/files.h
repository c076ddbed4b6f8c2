// What the program asks of a file system, call by call, behind an interface that tests can break:
// fail a call, delay it, take fewer bytes than it was given, fill up. Loops, buffers and sentences
// are above it, in base/file.h, which is what the rest of the program uses.
//
// Every call returns the system's error; none throws. Paths are relative to the working folder, and
// links are followed except where a call says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace onefold {

class Files {
 public:
  virtual ~Files() = default;

  class Input {  // closed by its destructor
   public:
    virtual ~Input() = default;
    // The next bytes, at most dst.size() of them; `count` is 0 at the end.
    virtual std::error_code read(std::span<std::byte> dst, size_t& count) = 0;
    virtual std::error_code seek(int64_t at) = 0;
  };

  class Output {  // closed by its destructor
   public:
    virtual ~Output() = default;
    // Takes the first `count` bytes of `src`, which may be fewer than there are.
    virtual std::error_code write(std::span<const std::byte> src, size_t& count) = 0;
    virtual std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) = 0;
    // Who may read, write and run it, as chmod has it.
    virtual std::error_code set_permissions(uint32_t permissions) = 0;
    // What was written is on the disk afterwards.
    virtual std::error_code flush() = 0;
  };

  class Map {  // unmapped by its destructor
   public:
    virtual ~Map() = default;
    virtual std::span<const std::byte> bytes() const = 0;
  };

  // How a scratch file's calls are cut: into requests of so many bytes, of which so many are under
  // way at once. Enough of both that a fast disk never waits for the next one.
  struct Requests {
    int64_t bytes = int64_t{1} << 20;  // a multiple of kScratchBlock
    int depth = 16;
  };
  static constexpr int64_t kMostRequestBytes = int64_t{1} << 30;
  static constexpr int kMostRequests = 4096;

  // A file without a name, for what need not outlive the process: it is gone when it is closed, or
  // the process dies. Addresses, offsets and lengths are multiples of kScratchBlock.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    // Sets space aside for the bytes up to `end`, as far as the file system can.
    virtual std::error_code reserve(int64_t end) = 0;
    // The first `count` bytes, which may be fewer than there are. Calls from several threads.
    virtual std::error_code read_at(int64_t at, std::span<std::byte> dst, size_t& count) = 0;
    virtual std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) = 0;
    // Pages that calls may be asked for again and again until they are taken back, which they are
    // before they are unmapped: where the system can, they are pinned once and not for each call.
    virtual void lend(std::span<std::byte> memory) = 0;
    virtual void take_back(std::span<std::byte> memory) = 0;
    // In words, how bytes travel: "io_uring with registered buffers, 16 requests of 1.00 MiB, past
    // the page cache".
    virtual std::string how() const = 0;
  };
  static constexpr int64_t kScratchBlock = 4096;

  enum class Kind : uint8_t { missing, file, folder, special };  // special: pipes, devices
  struct Status {
    Kind kind = Kind::missing;
    int64_t bytes = 0;               // of a file; 0 where the system does not know it
    uint64_t device = 0, inode = 0;  // together: which file it is, under whatever name
    uint32_t permissions = 0;        // as chmod has them
  };
  struct Entry {
    std::string name;
    bool folder = false;  // and no link to one
  };
  // fresh: empty. append: at the end. own: empty, and of no other process; resource_unavailable_
  // try_again while another has it open in this mode. through: what is there, a pipe or a device.
  enum class Mode : uint8_t { fresh, append, own, through };

  // Reading or mapping a folder is the error is_a_directory.
  virtual std::error_code open_input(const std::string& path, std::unique_ptr<Input>& file) = 0;
  virtual std::error_code open_output(const std::string& path, Mode mode,
                                      std::unique_ptr<Output>& file) = 0;
  virtual std::error_code map(const std::string& path, std::unique_ptr<Map>& map) = 0;  // read-only
  virtual std::error_code open_scratch(const std::string& folder, Requests requests,
                                       std::unique_ptr<Scratch>& file) = 0;
  // What this process may still write to the folder's file system.
  virtual std::error_code free_bytes(const std::string& folder, int64_t& bytes) = 0;

  // What is not there is a kind and no error.
  virtual std::error_code status(const std::string& path, Status& status) = 0;
  // What a link says; invalid_argument if it is none.
  virtual std::error_code read_link(const std::string& path, std::string& target) = 0;
  virtual std::error_code list(const std::string& folder, std::vector<Entry>& entries) = 0;
  virtual std::error_code make_folders(const std::string& path) = 0;  // and those above it
  // `to` may be a file, or an empty folder if `from` is a folder: it is replaced at once.
  virtual std::error_code rename(const std::string& from, const std::string& to) = 0;
  // The two change names at once. Not every file system can.
  virtual std::error_code exchange(const std::string& a, const std::string& b) = 0;
  // A file, a link or an empty folder.
  virtual std::error_code remove(const std::string& path) = 0;
  // Names that were made, changed or removed in a folder are on the disk afterwards. Where folders
  // cannot be flushed, that is no error: names are then as safe as the file system makes them.
  virtual std::error_code flush_folder(const std::string& path) = 0;
};

// The one in force: the system's, unless a test has put another in its place.
Files& files();

// Puts another in force for as long as this object lives; for tests, one at a time. What is opened
// meanwhile must be closed before the other is gone.
class ScopedFiles {
 public:
  explicit ScopedFiles(Files& other);
  ~ScopedFiles();
  ScopedFiles(const ScopedFiles&) = delete;
  ScopedFiles& operator=(const ScopedFiles&) = delete;
};

}  // namespace onefold

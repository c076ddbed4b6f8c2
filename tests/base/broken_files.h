// The system's files, broken where a test says: calls that fail, writes that take few bytes or
// none, a disk that fills up, calls that take long. In force while it lives.
//
//   test::BrokenFiles files;
//   files.fail(Call::flush, std::errc::io_error, "rank-00000");
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.h"

namespace onefold::test {

enum class Call : uint8_t {
  open_input,
  read,
  open_output,
  write,  // at the end or at an offset
  flush,
  map,
  status,
  read_link,
  list,
  make_folders,
  rename,
  exchange,
  remove,
  flush_folder,
  open_scratch,
  reserve,
  read_scratch,
  write_scratch,
};
inline constexpr size_t kCalls = 18;

class BrokenFiles final : public Files {
 public:
  static constexpr int kAlways = std::numeric_limits<int>::max();

  // Of the calls whose path contains `part`, those after the first `skip` fail, `times` of them.
  // A rename has the path that it gives.
  void fail(Call call, std::errc error, std::string part = "", int skip = 0, int times = kAlways) {
    std::lock_guard lock(mutex_);
    faults_.push_back({call, std::make_error_code(error), std::move(part), skip, times});
  }
  // A write takes at most so many bytes; so does a read of a scratch file.
  void cut_writes(size_t bytes) { most_bytes_ = bytes; }
  // So many bytes fit in all: the write that reaches the limit is cut short, and the next fails.
  void fill_up_after(int64_t bytes) {
    std::lock_guard lock(mutex_);
    room_ = bytes;
  }
  void delay(Call call, std::chrono::microseconds time) {
    std::lock_guard lock(mutex_);
    delays_[static_cast<size_t>(call)] = time;
  }

  int64_t calls(Call call) const {
    std::lock_guard lock(mutex_);
    return calls_[static_cast<size_t>(call)];
  }
  int64_t failed() const {  // calls: that a fault was reached
    std::lock_guard lock(mutex_);
    return failed_;
  }

  std::error_code open_input(const std::string& path, std::unique_ptr<Input>& file) override {
    if (const std::error_code error = begin(Call::open_input, path)) return error;
    std::unique_ptr<Input> opened;
    const std::error_code error = real_.open_input(path, opened);
    if (!error) file = std::make_unique<BrokenInput>(*this, path, std::move(opened));
    return error;
  }
  std::error_code open_output(const std::string& path, Mode mode,
                              std::unique_ptr<Output>& file) override {
    if (const std::error_code error = begin(Call::open_output, path)) return error;
    std::unique_ptr<Output> opened;
    const std::error_code error = real_.open_output(path, mode, opened);
    if (!error) file = std::make_unique<BrokenOutput>(*this, path, std::move(opened));
    return error;
  }
  std::error_code map(const std::string& path, std::unique_ptr<Map>& map) override {
    const std::error_code error = begin(Call::map, path);
    return error ? error : real_.map(path, map);
  }
  std::error_code open_scratch(const std::string& folder, Requests requests,
                               std::unique_ptr<Scratch>& file) override {
    if (const std::error_code error = begin(Call::open_scratch, folder)) return error;
    std::unique_ptr<Scratch> opened;
    const std::error_code error = real_.open_scratch(folder, requests, opened);
    if (!error) file = std::make_unique<BrokenScratch>(*this, folder, std::move(opened));
    return error;
  }
  std::error_code free_bytes(const std::string& folder, int64_t& bytes) override {
    return real_.free_bytes(folder, bytes);
  }
  std::error_code status(const std::string& path, Status& status) override {
    const std::error_code error = begin(Call::status, path);
    return error ? error : real_.status(path, status);
  }
  std::error_code read_link(const std::string& path, std::string& target) override {
    const std::error_code error = begin(Call::read_link, path);
    return error ? error : real_.read_link(path, target);
  }
  std::error_code list(const std::string& folder, std::vector<Entry>& entries) override {
    const std::error_code error = begin(Call::list, folder);
    return error ? error : real_.list(folder, entries);
  }
  std::error_code make_folders(const std::string& path) override {
    const std::error_code error = begin(Call::make_folders, path);
    return error ? error : real_.make_folders(path);
  }
  std::error_code rename(const std::string& from, const std::string& to) override {
    const std::error_code error = begin(Call::rename, to);
    return error ? error : real_.rename(from, to);
  }
  std::error_code exchange(const std::string& a, const std::string& b) override {
    const std::error_code error = begin(Call::exchange, b);
    return error ? error : real_.exchange(a, b);
  }
  std::error_code remove(const std::string& path) override {
    const std::error_code error = begin(Call::remove, path);
    return error ? error : real_.remove(path);
  }
  std::error_code flush_folder(const std::string& path) override {
    const std::error_code error = begin(Call::flush_folder, path);
    return error ? error : real_.flush_folder(path);
  }

 private:
  struct Fault {
    Call call;
    std::error_code error;
    std::string part;
    int skip, times;
  };

  class BrokenInput final : public Input {
   public:
    BrokenInput(BrokenFiles& files, std::string path, std::unique_ptr<Input> real)
        : files_(files), path_(std::move(path)), real_(std::move(real)) {}
    std::error_code read(std::span<std::byte> dst, size_t& count) override {
      const std::error_code error = files_.begin(Call::read, path_);
      return error ? error : real_->read(dst, count);
    }
    std::error_code seek(int64_t at) override { return real_->seek(at); }

   private:
    BrokenFiles& files_;
    const std::string path_;
    std::unique_ptr<Input> real_;
  };

  class BrokenOutput final : public Output {
   public:
    BrokenOutput(BrokenFiles& files, std::string path, std::unique_ptr<Output> real)
        : files_(files), path_(std::move(path)), real_(std::move(real)) {}
    std::error_code write(std::span<const std::byte> src, size_t& count) override {
      if (const std::error_code error = files_.begin(Call::write, path_)) return error;
      if (const std::error_code error = files_.take(src)) return error;
      return real_->write(src, count);
    }
    std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) override {
      if (const std::error_code error = files_.begin(Call::write, path_)) return error;
      if (const std::error_code error = files_.take(src)) return error;
      return real_->write_at(at, src, count);
    }
    std::error_code set_permissions(uint32_t permissions) override {
      return real_->set_permissions(permissions);
    }
    std::error_code flush() override {
      const std::error_code error = files_.begin(Call::flush, path_);
      return error ? error : real_->flush();
    }

   private:
    BrokenFiles& files_;
    const std::string path_;
    std::unique_ptr<Output> real_;
  };

  class BrokenScratch final : public Scratch {
   public:
    BrokenScratch(BrokenFiles& files, std::string path, std::unique_ptr<Scratch> real)
        : files_(files), path_(std::move(path)), real_(std::move(real)) {}
    std::error_code reserve(int64_t end) override {
      const std::error_code error = files_.begin(Call::reserve, path_);
      return error ? error : real_->reserve(end);
    }
    std::error_code read_at(int64_t at, std::span<std::byte> dst, size_t& count) override {
      if (const std::error_code error = files_.begin(Call::read_scratch, path_)) return error;
      return real_->read_at(at, dst.first(whole_blocks(std::min(dst.size(), files_.most_bytes_))),
                            count);
    }
    std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) override {
      if (const std::error_code error = files_.begin(Call::write_scratch, path_)) return error;
      if (const std::error_code error = files_.take(src)) return error;
      return real_->write_at(at, src.first(whole_blocks(src.size())), count);
    }
    void lend(std::span<std::byte> memory) override { real_->lend(memory); }
    void take_back(std::span<std::byte> memory) override { real_->take_back(memory); }
    std::string how() const override { return real_->how(); }

   private:
    static size_t whole_blocks(size_t bytes) { return bytes / kScratchBlock * kScratchBlock; }

    BrokenFiles& files_;
    const std::string path_;
    std::unique_ptr<Scratch> real_;
  };

  std::error_code begin(Call call, const std::string& path) {
    std::chrono::microseconds delay{};
    std::error_code error;
    {
      std::lock_guard lock(mutex_);
      ++calls_[static_cast<size_t>(call)];
      delay = delays_[static_cast<size_t>(call)];
      error = fault_of(call, path);
    }
    std::this_thread::sleep_for(delay);
    return error;
  }
  std::error_code fault_of(Call call, const std::string& path) {
    for (Fault& fault : faults_) {
      if (fault.call != call || path.find(fault.part) == std::string::npos) continue;
      if (fault.skip-- > 0) continue;
      fault.skip = 0;
      if (fault.times == 0) continue;
      if (fault.times != kAlways) --fault.times;
      ++failed_;
      return fault.error;
    }
    return {};
  }
  // Cuts `src` to what fits.
  std::error_code take(std::span<const std::byte>& src) {
    std::lock_guard lock(mutex_);
    if (src.size() > most_bytes_) src = src.first(most_bytes_);
    if (room_ < 0) return {};
    if (room_ == 0) {
      ++failed_;
      return std::make_error_code(std::errc::no_space_on_device);
    }
    if (src.size() > static_cast<size_t>(room_)) src = src.first(static_cast<size_t>(room_));
    room_ -= static_cast<int64_t>(src.size());
    return {};
  }

  Files& real_ = files();
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  std::array<int64_t, kCalls> calls_{};
  std::array<std::chrono::microseconds, kCalls> delays_{};
  size_t most_bytes_ = std::numeric_limits<size_t>::max();
  int64_t room_ = -1;  // bytes; -1: without end
  int64_t failed_ = 0;
  const ScopedFiles in_force_{*this};  // last: in force once the rest is there
};

}  // namespace onefold::test

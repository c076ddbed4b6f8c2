#include "base/file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace onefold {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

void check(std::error_code error, const char* verb, const std::string& path) {
  if (error == std::errc::is_a_directory) user_error("cannot {} {}: it is a folder", verb, path);
  if (error == std::errc::invalid_seek)
    user_error("cannot {} {}: it is a pipe, and its parts are not written in order; name a file",
               verb, path);
  if (error) user_error("cannot {} {}: {}", verb, path, error.message());
}

// `write` takes the first bytes of what it is given: all of them go out, however few it takes at a
// time. A system that takes none and gives no error would take none for ever.
template <typename Write>
void write_all(std::span<const std::byte> bytes, const std::string& path, const Write& write) {
  while (!bytes.empty()) {
    size_t count = 0;
    const std::error_code error = write(bytes, count);
    if (error == std::errc::interrupted) continue;
    check(error, "write", path);
    if (count == 0) user_error("cannot write {}: the system accepts no more bytes of it", path);
    bytes = bytes.subspan(count);
  }
}

void write_all(Files::Output& file, std::span<const std::byte> bytes, const std::string& path) {
  write_all(bytes, path, [&](std::span<const std::byte> rest, size_t& count) {
    return file.write(rest, count);
  });
}

bool not_there(std::error_code error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

// Of removing or replacing a folder: POSIX allows both.
bool not_empty(std::error_code error) {
  return error == std::errc::directory_not_empty || error == std::errc::file_exists;
}

// Of a call that this system or file system does not have.
bool not_supported(std::error_code error) {
  return error == std::errc::invalid_argument || error == std::errc::function_not_supported ||
         error == std::errc::not_supported || error == std::errc::operation_not_supported;
}

Files::Status status_of(const std::string& path) {
  Files::Status status;
  const std::error_code unknown = files().status(path, status);
  return unknown ? Files::Status{} : status;
}

// What a path leads to through its links, whether it is there or not.
std::string with_links_followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system has it
  std::filesystem::path at = path;
  std::string target;
  for (int links = 0; links < kMostLinks; ++links) {
    if (files().read_link(at.string(), target)) return at.string();
    at = at.parent_path() / target;
  }
  user_error("cannot write {}: too many links lead from it", path);
}

void refuse_special(const std::string& path) {
  if (status_of(path).kind == Files::Kind::special)
    user_error("{} is a pipe, a socket or a device, where a file is needed", path);
}

}  // namespace

void refuse_lfs_pointer(std::string_view content, const std::string& path) {
  constexpr size_t kPointerBytes = 1024;  // the longest by its specification
  if (content.size() > kPointerBytes ||
      !content.starts_with("version https://git-lfs.github.com/spec/"))
    return;
  user_error(
      "{} is a pointer of Git LFS, not the file: run \"git lfs pull\" in its folder, or download "
      "the file itself",
      path);
}

std::string read_file(const std::string& path) {
  InputFile file(path);
  std::string content;
  std::byte block[1 << 16];
  while (const size_t count = file.read(block))  // not by size: pipes and /proc files have none
    content.append(reinterpret_cast<const char*>(block), count);
  refuse_lfs_pointer(content, path);
  return content;
}

std::string read_plain_file(const std::string& path) {
  refuse_special(path);
  return read_file(path);
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  const std::error_code error = files().open_input(path_, file_);
  check(error, error == std::errc::is_a_directory ? "read" : "open", path_);
}

size_t InputFile::read(std::span<std::byte> dst) {
  size_t done = 0;
  while (done < dst.size()) {
    size_t count = 0;
    const std::error_code error = file_->read(dst.subspan(done), count);
    if (error == std::errc::interrupted) continue;
    check(error, "read", path_);
    if (count == 0) break;
    done += count;
  }
  return done;
}

void InputFile::seek(int64_t at) { check(file_->seek(at), "read", path_); }

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  Files::Status status;
  check(files().status(path_, status), "examine", path_);
  if (status.kind == Files::Kind::folder)
    check(std::make_error_code(std::errc::is_a_directory), "write", path_);
  through_ = status.kind == Files::Kind::special;
  target_ = through_ ? path_ : with_links_followed(path_);
  written_ = through_ ? path_ : target_ + kTemporarySuffix;
  const std::error_code error =
      files().open_output(written_, through_ ? Files::Mode::through : Files::Mode::own, file_);
  if (error == std::errc::resource_unavailable_try_again)
    user_error("cannot write {}: another process is writing it", path_);
  check(error, through_ ? "open" : "create", written_);
  // The file that is replaced may be hidden from others, or shared with them. Where a file system
  // has no permissions, there are none to keep.
  if (status.kind == Files::Kind::file) (void)file_->set_permissions(status.permissions);
}

OutputFile::~OutputFile() {
  if (committed()) return;
  if (!through_) (void)files().remove(written_);  // what stays has a name that nothing reads
  file_.reset();
}

void OutputFile::append(std::span<const std::byte> piece) {
  if (buffer_.size() + piece.size() > kBufferBytes) write_buffer();
  if (piece.size() > kBufferBytes)
    write_all(*file_, piece, written_);
  else
    buffer_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
}

void OutputFile::write_buffer() {
  write_all(*file_, std::as_bytes(std::span(buffer_)), written_);
  buffer_.clear();
}

void OutputFile::overwrite(int64_t at, std::span<const std::byte> piece) {
  write_buffer();
  write_all(piece, written_, [&](std::span<const std::byte> rest, size_t& count) {
    const auto done = static_cast<int64_t>(piece.size() - rest.size());
    return file_->write_at(at + done, rest, count);
  });
}

void OutputFile::commit() {
  require(!committed(), "{} is committed twice", path_);
  write_buffer();
  const std::error_code unflushed = file_->flush();
  if (through_) {  // what cannot keep bytes cannot flush them either
    if (!not_supported(unflushed)) check(unflushed, "flush", written_);
    file_.reset();
    return;
  }
  check(unflushed, "flush", written_);
  check(files().rename(written_, target_), "rename into place", target_);
  file_.reset();
  flush_folder_of(target_);
}

void write_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.append(std::as_bytes(std::span(content)));
  file.commit();
}

GrowingFile::GrowingFile(std::string path, Files::Mode mode) : path_(std::move(path)) {
  check(files().open_output(path_, mode, file_), "open", path_);
}

void GrowingFile::append(std::string_view text) {
  if (waiting_.size() + text.size() <= kMostWaiting) waiting_ += text;
  std::span<const std::byte> rest = std::as_bytes(std::span(waiting_));
  const auto write = [&](std::span<const std::byte> src, size_t& count) {
    const std::error_code error = file_->write(src, count);
    rest = rest.subspan(error ? 0 : count);
    return error;
  };
  const size_t all = rest.size();
  try {
    write_all(rest, path_, write);
  } catch (const UserError&) {
    waiting_.erase(0, all - rest.size());
    throw;
  }
  waiting_.clear();
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  refuse_special(path);
  const std::error_code error = files().map(path, map_);
  check(error, error == std::errc::is_a_directory ? "read" : "open", path);
  const std::span<const std::byte> content = bytes();
  refuse_lfs_pointer({reinterpret_cast<const char*>(content.data()), content.size()}, path);
}

bool path_exists(const std::string& path) { return status_of(path).kind != Files::Kind::missing; }
bool is_folder(const std::string& path) { return status_of(path).kind == Files::Kind::folder; }
bool is_plain_file(const std::string& path) { return status_of(path).kind == Files::Kind::file; }

bool is_same_file(const std::string& a, const std::string& b) {
  const Files::Status one = status_of(a), other = status_of(b);
  return one.kind != Files::Kind::missing && other.kind != Files::Kind::missing &&
         one.device == other.device && one.inode == other.inode;
}

bool is_broken_link(const std::string& path) {
  std::string target;
  return !path_exists(path) && !files().read_link(path, target);
}

int64_t file_bytes(const std::string& path) {
  Files::Status status;
  check(files().status(path, status), "examine", path);
  if (status.kind == Files::Kind::missing)
    check(std::make_error_code(std::errc::no_such_file_or_directory), "open", path);
  return status.bytes;
}

std::vector<Files::Entry> list_folder(const std::string& path) {
  std::vector<Files::Entry> entries;
  const std::error_code error = files().list(path, entries);
  if (not_there(error)) return {};
  check(error, "list", path);
  return entries;
}

void make_folders(const std::string& path) {
  check(files().make_folders(path), "create the folder", path);
}

std::string try_remove_path(const std::string& path) {
  std::error_code error = files().remove(path);
  if (not_empty(error)) {
    std::vector<Files::Entry> entries;
    error = files().list(path, entries);
    for (const Files::Entry& entry : entries) {
      std::string left = try_remove_path(path + "/" + entry.name);
      if (!left.empty()) return left;
    }
    if (!error) error = files().remove(path);
  }
  if (!error || not_there(error)) return "";
  return fmt::format("cannot remove {}: {}", path, error.message());
}

void remove_path(const std::string& path) {
  if (const std::string left = try_remove_path(path); !left.empty()) user_error("{}", left);
}

void flush_folder(const std::string& path) {
  check(files().flush_folder(path), "flush the folder", path);
}

void flush_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  flush_folder(folder.empty() ? "." : folder);
}

void rename_path(const std::string& from, const std::string& to) {
  if (const std::error_code error = files().rename(from, to))
    user_error("cannot rename {} to {}: {}", from, to, error.message());
}

void replace_folder(const std::string& from, const std::string& to) {
  const std::error_code refused = files().rename(from, to);
  if (!refused) return;
  const bool in_the_way = not_empty(refused) || refused == std::errc::not_a_directory;  // a link
  if (!in_the_way) user_error("cannot rename {} to {}: {}", from, to, refused.message());
  std::string old = from;
  if (const std::error_code error = files().exchange(from, to)) {
    if (!not_supported(error))
      user_error("cannot exchange {} and {}: {}", from, to, error.message());
    old = to + ".old";
    rename_path(to, old);
    if (const std::error_code failed = files().rename(from, to)) {
      (void)files().rename(old, to);
      user_error("cannot rename {} to {}: {}", from, to, failed.message());
    }
  }
  (void)try_remove_path(old);  // the new one is in its place, whatever stays of the old
}

}  // namespace onefold

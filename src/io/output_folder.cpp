#include "io/output_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

void require_replaceable(const std::string& path, const OutputFolder::Replaceable& replaceable) {
  if (!fs::is_directory(path)) user_error("{} is a file; name a folder", path);
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() || !replaceable(name))
      user_error("{} holds {}, which is no part of an exported model; name another folder", path,
                 name);
  }
}

void flush_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // some file systems cannot; then the rename is as safe as they make it
  (void)::fsync(fd);
  ::close(fd);
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    user_error("cannot rename {} to {}: {}", from, to, std::strerror(errno));
}

}  // namespace

OutputFolder::OutputFolder(const std::string& path, bool overwrite,
                           const Replaceable& replaceable) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "models/new/"
  if (!whole.has_filename()) user_error("{} cannot be replaced; name another folder", path);
  path_ = whole.string();
  if (fs::exists(path_)) {
    if (fs::is_directory(path_) && !fs::is_empty(path_) && !overwrite)
      user_error("{} already exists; name another folder, or pass --overwrite to replace it", path);
    require_replaceable(path_, replaceable);
  }
  make_folders(whole.parent_path().string());
  temporary_ = path_ + ".tmp";
  if (fs::exists(temporary_)) {  // left by a process that was killed
    require_replaceable(temporary_, [&](const std::string& name) {
      return replaceable(name) ||
             (name.ends_with(".tmp") && replaceable(name.substr(0, name.size() - 4)));
    });
    fs::remove_all(temporary_);
  }
  make_folders(temporary_);
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
  flush_folder(temporary_);
  const bool replaces = fs::exists(path_) && !fs::is_empty(path_);
  if (!replaces) {
    rename_or_throw(temporary_, path_);  // over an empty folder too
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) ==
             0) {
    fs::remove_all(temporary_);  // now the old folder
  } else {
    // A file system that cannot exchange: for a moment there is no folder under the name, but never
    // half of one.
    const std::string old = path_ + ".old";
    rename_or_throw(path_, old);
    rename_or_throw(temporary_, path_);
    fs::remove_all(old);
  }
  committed_ = true;
  flush_folder(fs::path(path_).parent_path().string());
}

}  // namespace onefold

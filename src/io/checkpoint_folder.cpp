#include "io/checkpoint_folder.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kUnderWay = ".writing-";

std::string name_of(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

// The step of a complete checkpoint's name; -1 for any other.
int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  return parsed.ec == std::errc() && parsed.ptr == end ? step : -1;
}

// A rename is on disk once its folder is.
void flush_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    user_error("cannot flush {} to disk: {}", path, std::strerror(error));
  }
  ::close(fd);
}

// Puts `from` in the place of `to`, which may exist: then the two change names, so that one of them
// is there at every moment.
void rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if ((errno == ENOTEMPTY || errno == EEXIST) &&
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) ==
          0) {
    std::error_code ignored;
    fs::remove_all(from, ignored);
    return;
  }
  user_error("cannot rename {} to {}: {}", from, to, std::strerror(errno));
}

}  // namespace

std::vector<CheckpointFolder::Entry> CheckpointFolder::list() const {
  std::vector<Entry> entries;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && fs::exists(entry.path() / kManifest, ignored))
      entries.push_back({step, entry.path().string()});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.step > b.step; });
  return entries;
}

std::string CheckpointFolder::temporary(int64_t step) const {
  return path_ + "/" + std::string(kUnderWay) + name_of(step);
}

std::string CheckpointFolder::begin(int64_t step) const {
  make_folders(temporary(step));
  return temporary(step);
}

std::string CheckpointFolder::commit(const Manifest& manifest) const {
  const std::string from = temporary(manifest.step), to = path_ + "/" + name_of(manifest.step);
  write_file(from + "/" + kManifest, json_text(manifest.to_json()) + "\n");
  flush_folder(from);
  rename_over(from, to);
  flush_folder(path_);
  return to;
}

void CheckpointFolder::discard(int64_t step) const {
  std::error_code ignored;
  fs::remove_all(temporary(step), ignored);
}

void CheckpointFolder::discard_all() const {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(path_, ignored))
    if (entry.path().filename().string().starts_with(kUnderWay)) left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove_all(path, ignored);
}

void CheckpointFolder::prune(int64_t newest, int64_t last, int64_t every) const {
  std::vector<Entry> entries = list();
  std::erase_if(entries, [&](const Entry& entry) { return entry.step > newest; });
  for (size_t i = static_cast<size_t>(std::max<int64_t>(1, last)); i < entries.size(); ++i) {
    if (every > 0 && entries[i].step % every == 0) continue;
    // Under another name first: a removal that is cut short must not leave half a checkpoint.
    const std::string dying = temporary(entries[i].step);
    std::error_code error;
    fs::remove_all(dying, error);
    fs::rename(entries[i].path, dying, error);
    if (!error) fs::remove_all(dying, error);
  }
}

}  // namespace onefold

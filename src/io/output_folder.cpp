#include "io/output_folder.h"

#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

void require_replaceable(const std::string& path, const OutputFolder::Replaceable& replaceable) {
  if (!is_folder(path)) user_error("{} is a file; name a folder", path);
  for (const Files::Entry& entry : list_folder(path))
    if (entry.folder || !replaceable(entry.name))
      user_error("{} holds {}, which is no part of an exported model; name another folder", path,
                 entry.name);
}

}  // namespace

OutputFolder::OutputFolder(const std::string& path, bool overwrite,
                           const Replaceable& replaceable) {
  if (is_broken_link(path)) user_error("{} is a link to what is not there", path);
  fs::path whole = fs::weakly_canonical(fs::absolute(path));  // what a link leads to
  if (!whole.has_filename()) whole = whole.parent_path();     // "models/new/"
  if (!whole.has_filename()) user_error("{} cannot be replaced; name another folder", path);
  path_ = whole.string();
  if (path_exists(path_)) {
    if (!list_folder(path_).empty() && !overwrite)
      user_error("{} already exists; name another folder, or pass --overwrite to replace it", path);
    require_replaceable(path_, replaceable);
  }
  make_folders(whole.parent_path().string());
  temporary_ = path_ + ".tmp";
  if (path_exists(temporary_)) {  // left by a process that was killed
    require_replaceable(temporary_, [&](const std::string& name) {
      return replaceable(name) ||
             (name.ends_with(kTemporarySuffix) &&
              replaceable(name.substr(0, name.size() - std::strlen(kTemporarySuffix))));
    });
    remove_path(temporary_);
  }
  make_folders(temporary_);
}

OutputFolder::~OutputFolder() {
  if (!committed_) (void)try_remove_path(temporary_);
}

void OutputFolder::commit() {
  flush_folder(temporary_);
  replace_folder(temporary_, path_);
  committed_ = true;
  flush_folder_of(path_);
}

}  // namespace onefold

#include "base/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace onefold {

namespace fs = std::filesystem;

namespace {

// Folders that may hold wheels.
std::vector<fs::path> wheel_folders() {
  std::vector<fs::path> folders;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* build : {"../cuda", "../../cuda"}) folders.push_back(program / build);
  std::vector<fs::path> roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* value = std::getenv(name)) roots.emplace_back(value);
  if (const char* home = std::getenv("HOME")) roots.push_back(fs::path(home) / ".local");
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  for (const fs::path& root : roots)
    for (fs::directory_iterator at(root / "lib", ignored), end; !ignored && at != end;
         at.increment(ignored))
      if (at->path().filename().string().starts_with("python3"))
        for (const char* packages : {"site-packages", "dist-packages"})
          folders.push_back(at->path() / packages);
  return folders;
}

}  // namespace

void* open_library(const std::string& file, int flags) {
  if (void* library = dlopen(file.c_str(), flags)) return library;
  std::error_code ignored;
  for (const fs::path& folder : wheel_folders())
    for (fs::directory_iterator at(folder / "nvidia", ignored), end; !ignored && at != end;
         at.increment(ignored))
      if (const fs::path found = at->path() / "lib" / file; fs::exists(found, ignored))
        if (void* library = dlopen(found.c_str(), flags)) return library;
  return dlopen(file.c_str(), flags);  // for its reason
}

std::string find_plugin(const std::string& file, const std::string& library_folder) {
  std::vector<fs::path> homes;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) homes.push_back(program.parent_path());
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&find_plugin), &here) != 0 && here.dli_fname != nullptr)
    homes.push_back(fs::absolute(here.dli_fname, ignored).parent_path());
  for (const fs::path& home : homes)
    for (const std::string& folder :
         {std::string("."), std::string(".."), "../" + library_folder}) {
      const fs::path found = (home / folder / file).lexically_normal();
      if (fs::exists(found, ignored)) return found.string();
    }
  return "";
}

}  // namespace onefold

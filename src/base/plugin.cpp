#include "base/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace onefold {

namespace fs = std::filesystem;

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

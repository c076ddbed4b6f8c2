// Libraries that are found in Python's wheels.
#include "base/plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace onefold {
namespace {

namespace fs = std::filesystem;

TEST(OpenLibrary, LooksInTheWheelsOfTheActiveEnvironment) {
  constexpr const char* kName = "libonefold_test_wheel.so.1";
  std::string pattern = (fs::temp_directory_path() / "onefold_XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path root = pattern, lib = root / "lib/python3.11/site-packages/nvidia/some/lib";
  fs::create_directories(lib);
  // Any library will do: one that this program has loaded.
  std::string loaded;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; loaded.empty() && std::getline(maps, line);)
    if (line.find("/libfmt.so") != std::string::npos) loaded = line.substr(line.find('/'));
  ASSERT_FALSE(loaded.empty());
  const char* before = std::getenv("VIRTUAL_ENV");
  const std::string kept = before ? before : "";
  setenv("VIRTUAL_ENV", root.c_str(), 1);
  EXPECT_EQ(open_library(kName, RTLD_NOW | RTLD_LOCAL), nullptr) << "it is not there yet";
  EXPECT_NE(std::string(dlerror()).find(kName), std::string::npos);
  fs::copy_file(loaded, lib / kName);
  void* const library = open_library(kName, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr);
  if (library) dlclose(library);
  before ? setenv("VIRTUAL_ENV", kept.c_str(), 1) : unsetenv("VIRTUAL_ENV");
  fs::remove_all(root);
}

}  // namespace
}  // namespace onefold

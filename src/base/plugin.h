// Parts of Onefold that are loaded at run time, because what they need may be missing.
#pragma once

#include <string>

namespace onefold {

// The plugin's file: beside the program, or the library that this code is in; in the folder above
// (tests lie one below the program); in `library_folder` of an installation. Empty if there is
// none.
std::string find_plugin(const std::string& file, const std::string& library_folder);

// Loads one of NVIDIA's libraries: as the system finds it, or from Python's wheels (nvidia/*/lib),
// in build/cuda beside a build, in the active environment, the user's or the system's. Null, and
// dlerror() says why, if there is none. `flags`: as dlopen() takes them.
void* open_library(const std::string& file, int flags);

}  // namespace onefold

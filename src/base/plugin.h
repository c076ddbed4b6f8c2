// Parts of Onefold that are loaded at run time, because what they need may be missing.
#pragma once

#include <string>

namespace onefold {

// The plugin's file: beside the program, or the library that this code is in; in the folder above
// (tests lie one below the program); in `library_folder` of an installation. Empty if there is
// none.
std::string find_plugin(const std::string& file, const std::string& library_folder);

}  // namespace onefold

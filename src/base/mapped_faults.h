// Mapped files that are cut short while they are mapped. Touching what is gone raises SIGBUS, which
// no exception can be made of: the program ends, and says which file it was.
#pragma once

#include <cstddef>
#include <string>

namespace onefold {

// From now on SIGBUS in a watched map prints an error with the file's name and ends the process
// with exit code 1. For programs, not for the library: the handler is the process's.
void report_faults_of_maps();

// A map that is named in such an error, from now on and until it is forgotten.
void watch_map(const void* data, size_t bytes, const std::string& path);
void forget_map(const void* data);

}  // namespace onefold

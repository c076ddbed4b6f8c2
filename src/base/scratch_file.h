// Files without a name (Files::Scratch), past the page cache where the file system allows it. Long
// reads and writes are cut into chunks of which many are under way at once: by io_uring, or, where
// the system forbids that (containers, seccomp), by threads that call pread and pwrite.
#pragma once

#include "base/files.h"

namespace onefold {

enum class ScratchIo : uint8_t {
  ring,    // io_uring if the system has it, else threads
  threads  // for tests and measurements of what takes its place
};

struct ScratchOptions {
  Files::Requests requests{};
  ScratchIo io = ScratchIo::ring;
};

std::error_code open_scratch_file(const std::string& folder, ScratchOptions options,
                                  std::unique_ptr<Files::Scratch>& file);

}  // namespace onefold

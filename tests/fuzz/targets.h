// Fuzz targets: each gives a reader arbitrary bytes. A reader may refuse them with a
// UserError; anything else that ends it (another exception, a sanitizer's report, an allocation
// beyond reason, a hang) is a bug. libFuzzer runs them in the `fuzz` build, and a test replays
// their corpus in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace onefold::fuzz {

struct Target {
  std::string_view name;  // also the folder under tests/fuzz/corpus
  void (*read)(std::string_view input);
};

std::span<const Target> targets();
const Target& target_named(std::string_view name);

// Feeds one input, and takes the one exception that a reader may throw.
void run(const Target& target, std::string_view input);

// Parts of an input that stands for several files are separated by this.
inline constexpr std::string_view kNextFile = "\n%%%%\n";

}  // namespace onefold::fuzz

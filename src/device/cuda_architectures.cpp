#include "device/cuda_architectures.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace onefold {
namespace {

constexpr int kLeast = 80;  // kernels use what came with it: bf16, copies past the registers

// Machine code runs on later cards of the same generation; an architecture with a letter is for
// that very card, as machine code and as PTX.
bool runs(std::string_view word, int capability) {
  int number = 0;
  const char* end = std::from_chars(word.data(), word.data() + word.size(), number).ptr;
  const std::string_view rest(end, static_cast<size_t>(word.data() + word.size() - end));
  if (!rest.empty() && rest[0] != '-') return capability == number;
  const bool machine_code = rest != "-virtual", ptx = rest != "-real";
  return (machine_code && capability / 10 == number / 10 && capability >= number) ||
         (ptx && capability >= number);
}

}  // namespace

std::string problem_of_architecture(std::string_view architectures, int major, int minor) {
  const int capability = major * 10 + minor;
  if (capability < kLeast)
    return fmt::format("has compute capability {}.{}, and the device cuda needs 8.0 or later",
                       major, minor);
  for (size_t begin = 0; begin < architectures.size();) {
    const size_t end = std::min(architectures.find(' ', begin), architectures.size());
    if (runs(architectures.substr(begin, end - begin), capability)) return "";
    begin = end + 1;
  }
  return fmt::format(
      "has compute capability {}.{}, and this build has code for {} alone; build with "
      "-DONEFOLD_CUDA_ARCHITECTURES={}, or release for all",
      major, minor, architectures, capability);
}

}  // namespace onefold

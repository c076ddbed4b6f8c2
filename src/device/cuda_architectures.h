// Which cards a build of the device cuda has code for.
#pragma once

#include <string>
#include <string_view>

namespace onefold {

// Why a card of this compute capability cannot run code that was compiled for these architectures,
// which are CMake's words: "90a-real" is machine code, "90-virtual" is PTX, which the driver
// compiles for any later card, "90" is both. Empty if it can.
std::string problem_of_architecture(std::string_view architectures, int major, int minor);

}  // namespace onefold

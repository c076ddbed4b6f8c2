// What libFuzzer calls; the build makes one program for each target.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onefold::fuzz;
  static const Target& target = target_named(ONEFOLD_FUZZ_TARGET);
  run(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}

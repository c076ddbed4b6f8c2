// What libFuzzer calls. ONEFOLD_FUZZ_TARGET names the target: one program has them all.
#include <cstdio>
#include <cstdlib>

#include "fuzz/targets.h"

namespace {

const onefold::fuzz::Target& chosen() {
  const char* const name = std::getenv("ONEFOLD_FUZZ_TARGET");
  for (const onefold::fuzz::Target& target : onefold::fuzz::targets())
    if (name && target.name == name) return target;
  std::fputs("ONEFOLD_FUZZ_TARGET must be a folder of tests/fuzz/corpus\n", stderr);
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const onefold::fuzz::Target& target = chosen();
  onefold::fuzz::run(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}

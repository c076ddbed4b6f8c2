#include "base/say.h"

#include <cstdio>

namespace onefold {

void say_text(std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

}  // namespace onefold

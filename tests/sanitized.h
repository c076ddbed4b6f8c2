// Whether this is a sanitizer's build, whose code takes many times as long: what walks one path
// with many inputs takes fewer of them there.
#pragma once

namespace onefold::test {

#if defined(ONEFOLD_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace onefold::test

// What the thread sanitizer need not watch: it is there for memory that threads share, and makes
// each access to any other take many times as long.
#pragma once

// Of a function that makes numbers of its own.
#define ONEFOLD_UNWATCHED __attribute__((no_sanitize("thread")))

namespace onefold::test {

#if defined(ONEFOLD_SANITIZED) && !defined(ONEFOLD_ASAN)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace onefold::test

// Arithmetic with sizes that come from outside: a product that int64 does not hold must be refused,
// not wrapped around.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace onefold {

// The product of sizes, none of them negative; INT64_MAX where it is larger. To be compared with a
// limit.
constexpr int64_t saturating_product(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  bool overflows = false;
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
    overflows = overflows || __builtin_mul_overflow(product, size, &product);
  }
  return overflows ? INT64_MAX : product;
}

// The largest size that keeps its product with the others, each at least 1, within the limit.
constexpr int64_t largest_size(int64_t limit, std::initializer_list<int64_t> others) {
  return limit / saturating_product(others);
}

}  // namespace onefold

#include "io/crc32.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <random>
#include <string_view>
#include <vector>

namespace onefold {
namespace {

TEST(Crc32, HasTheValueOfItsCatalogue) {
  EXPECT_EQ(crc32_of(std::as_bytes(std::span(std::string_view("123456789")))), 0xCBF43926u);
  EXPECT_EQ(crc32_of({}), 0u);
}

TEST(Crc32, IsZlibsAtEveryLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(1000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t begin = 0; begin < 17; ++begin)
    for (size_t count = 0; begin + count <= bytes.size(); ++count) {
      const auto part = std::span(bytes).subspan(begin, count);
      ASSERT_EQ(crc32_of(part),
                ::crc32_z(0, reinterpret_cast<const Bytef*>(part.data()), part.size()))
          << begin << " " << count;
    }
}

}  // namespace
}  // namespace onefold

#include "kernels/host_memory.h"

#include <cstring>

#include "base/philox.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

// Of widely different magnitudes, so that another order has other bits.
template <class T>
std::vector<T> source(size_t r, int64_t elems) {
  std::vector<T> values(static_cast<size_t>(elems));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxWords words = philox(philox_key(10 + r, Draw::test), {static_cast<uint32_t>(i)});
    const T integer = static_cast<T>(static_cast<int32_t>(words[0]));
    values[i] = (integer + static_cast<T>(words[1]) * T(0x1p-32)) * (r % 2 == 0 ? T(1) : T(1e-4));
  }
  return values;
}

// ((s0 + s1) + s2) + ..., bit by bit; the result may replace any source.
template <class T>
void check(size_t count, int64_t elems, int in_place, size_t shift = 0) {
  std::vector<std::vector<T>> sources;
  for (size_t r = 0; r < count; ++r) sources.push_back(source<T>(r, elems));
  std::vector<T> expected = sources[0];
  for (size_t r = 1; r < count; ++r)
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += sources[r][i];
  std::vector<const T*> pointers;
  for (const std::vector<T>& one : sources) pointers.push_back(one.data());
  std::vector<T> room(static_cast<size_t>(elems) + 32, T(-1));
  auto* aligned =
      reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64) + shift;
  T* dst = in_place < 0 ? aligned : sources[static_cast<size_t>(in_place)].data();
  ordered_sum(pointers, dst, elems);
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(std::memcmp(&dst[i], &expected[i], sizeof(T)), 0)
        << count << " sources, element " << i << " of " << elems;
  if (in_place < 0) {
    EXPECT_EQ(dst[elems], T(-1)) << "beyond the end";
  }
}

TEST(OrderedSum, HasTheBitsOfTheSerialSum) {
  for_each_target([] {
    for (const size_t count : {1, 2, 3, 8})
      for (const int64_t elems : {0, 1, 3, 17, 64, 65, 1023})
        for (int in_place = -1; in_place < static_cast<int>(count); ++in_place) {
          check<float>(count, elems, in_place);
          check<double>(count, elems, in_place);
        }
  });
}

// Large enough to go past the caches where dst is aligned.
TEST(OrderedSum, HasTheSameBitsPastTheCaches) {
  for_each_target([] {
    check<float>(2, (1 << 20) + 7, -1);
    check<float>(2, (1 << 20) + 7, -1, 1);
    check<float>(2, (1 << 20) + 7, 1);
    check<double>(2, (1 << 19) + 7, -1);
    check<double>(2, (1 << 19) + 7, -1, 1);
  });
}

TEST(CopyBytes, CopiesEveryByteAndNoOther) {
  for_each_target([] {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, (size_t{4} << 20) + 1001})
      for (const size_t shift : {0, 1, 63}) {
        std::vector<uint8_t> src(bytes + 3), dst(bytes + 200, 77);
        for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<uint8_t>(i * 31 + i / 251);
        copy_bytes(src.data() + 3, dst.data() + 64 + shift, static_cast<int64_t>(bytes));
        ASSERT_TRUE(std::equal(src.begin() + 3, src.end(), dst.data() + 64 + shift)) << bytes;
        EXPECT_EQ(dst[63 + shift], 77);
        EXPECT_EQ(dst[64 + shift + bytes], 77);
      }
  });
}

}  // namespace
}  // namespace onefold::test

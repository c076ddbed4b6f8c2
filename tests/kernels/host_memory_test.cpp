#include "kernels/host_memory.h"

#include <bit>

#include "kernels/support.h"

namespace onefold::test {
namespace {

// ((s0 + s1) + s2) + ..., bit by bit; the result may replace any source.
void check(size_t count, int64_t elems, int in_place, size_t shift = 0) {
  std::vector<Matrix> sources;
  for (size_t r = 0; r < count; ++r)
    sources.push_back(random_matrix(1, elems, 10 + r, 0, r % 2 == 0 ? 1.0f : 1e-4f));
  std::vector<float> expected(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i) {
    float sum = sources[0].at(0, i);
    for (size_t r = 1; r < count; ++r) sum += sources[r].at(0, i);
    expected[static_cast<size_t>(i)] = sum;
  }
  std::vector<const float*> pointers;
  for (Matrix& source : sources) pointers.push_back(source.view().f32());
  std::vector<float> room(static_cast<size_t>(elems) + 32, -1.0f);
  auto* aligned =
      reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64) + shift;
  float* dst = in_place < 0 ? aligned : sources[static_cast<size_t>(in_place)].view().f32();
  ordered_sum(pointers, dst, elems);
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(dst[i]), std::bit_cast<uint32_t>(expected[i]))
        << count << " sources, element " << i << " of " << elems;
  if (in_place < 0) {
    EXPECT_EQ(dst[elems], -1.0f) << "beyond the end";
  }
}

TEST(OrderedSum, HasTheBitsOfTheSerialSum) {
  for_each_target([] {
    for (const size_t count : {1, 2, 3, 8})
      for (const int64_t elems : {0, 1, 3, 17, 64, 65, 1023})
        for (int in_place = -1; in_place < static_cast<int>(count); ++in_place)
          check(count, elems, in_place);
  });
}

// Large enough to go past the caches where dst is aligned.
TEST(OrderedSum, HasTheSameBitsPastTheCaches) {
  for_each_target([] {
    check(2, (1 << 20) + 7, -1);
    check(2, (1 << 20) + 7, -1, 1);
    check(2, (1 << 20) + 7, 1);
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

#include "tensor/ledger.h"

#include <gtest/gtest.h>

#include "error_text.h"

namespace onefold {
namespace {

TEST(Ledger, BooksByKindWithPeakAndMoment) {
  Ledger ledger;
  Buffer parameters = ledger.allocate(Kind::parameters, 1000, "p");
  EXPECT_EQ(parameters.bytes(), 1024);  // whole cache lines
  ledger.moment("forward block.1");
  {
    const Buffer activations = ledger.allocate(Kind::activations, 4096, "a");
    EXPECT_EQ(ledger.held_bytes(), 5120);
  }
  ledger.moment("backward block.1");
  const Buffer again = ledger.allocate(Kind::workspace, 64, "w");
  EXPECT_EQ(ledger.held_bytes(), 1088);
  EXPECT_EQ(ledger.peak_bytes(), 5120);
  EXPECT_EQ(ledger.peak_moment(), "forward block.1");
  EXPECT_EQ(ledger.bytes_at_peak(Kind::activations), 4096);
  EXPECT_EQ(ledger.bytes_at_peak(Kind::workspace), 0);
  EXPECT_EQ(ledger.peak_bytes(Kind::workspace), 64);
}

TEST(Ledger, RefusesToPassItsLimitAndSaysWhatIsHeld) {
  Ledger ledger(Ledger::Memory::real, 4096);
  const Buffer held = ledger.allocate(Kind::parameters, 4000, "p");
  EXPECT_ERROR(ledger.allocate(Kind::gradients, 128, "block.3"), "128 B for block.3 (gradients)",
               "limit of 4.00 KiB");
  EXPECT_EQ(ledger.held_bytes(), held.bytes());
}

TEST(Ledger, OtherTiersDoNotCountAgainstTheDeviceLimit) {
  Ledger ledger(Ledger::Memory::dry, 64);
  const Buffer host = ledger.allocate(Kind::optimizer, 1 << 20, "o", Tier::host);
  EXPECT_EQ(ledger.held_bytes(), 0);
  EXPECT_EQ(ledger.held_bytes(Kind::optimizer, Tier::host), 1 << 20);
}

TEST(Ledger, DryKeepsTheSameBooksOverNoMemory) {
  Ledger ledger(Ledger::Memory::dry);
  const Buffer huge = ledger.allocate(Kind::parameters, int64_t{1} << 50, "p");
  EXPECT_EQ(huge.data(), nullptr);
  EXPECT_EQ(ledger.peak_bytes(), int64_t{1} << 50);
}

TEST(Ledger, ABlockMovedIsGivenBackOnce) {
  Ledger ledger;
  Buffer a = ledger.allocate(Kind::workspace, 64, "a");
  Buffer b = std::move(a);
  EXPECT_FALSE(a);
  b = {};
  EXPECT_EQ(ledger.held_bytes(), 0);
}

TEST(Arena, MeasuresThenHandsOutTheSameMemoryForEachScope) {
  Arena measuring;
  {
    const Arena::Scope scope(measuring);
    EXPECT_EQ(measuring.take(3, 5).data, nullptr);
    measuring.take(1, 100);
  }
  EXPECT_EQ(measuring.high_water_bytes(), 64 + 448);
  Ledger ledger;
  Arena arena(ledger.allocate(Kind::workspace, measuring.high_water_bytes(), "arena"));
  void* first = nullptr;
  {
    const Arena::Scope scope(arena);
    first = arena.take(3, 5).data;
  }
  EXPECT_EQ(arena.take(3, 5).data, first);
  EXPECT_THROW(arena.take(1, 1000), InternalError);
}

TEST(Tensor, ViewsAreCheckedAgainstTheirBounds) {
  float data[12] = {};
  const Tensor t = matrix(data, 3, 4);
  EXPECT_EQ(t.row_range(1, 2).data, data + 4);
  EXPECT_EQ(t.col_range(1, 2).stride, 4);
  EXPECT_THROW(t.row_range(2, 2), InternalError);
  EXPECT_THROW(t.col_range(3, 2), InternalError);
  EXPECT_THROW(t.col_range(0, 2).reshaped(1, 6), InternalError);
  EXPECT_THROW(t.i32(), InternalError);
}

}  // namespace
}  // namespace onefold

#include "tensor/ledger.h"

#include <gtest/gtest.h>

#include <cstring>

#include "error_text.h"

namespace onefold {
namespace {

// A ledger over the system's memory, or over none.
struct Memory {
  std::unique_ptr<MemorySource> source;
  Ledger ledger;
  explicit Memory(int64_t limit_bytes = Ledger::kNoLimit,
                  std::unique_ptr<MemorySource> from = make_host_memory())
      : source(std::move(from)), ledger(*source, limit_bytes) {}
};

TEST(Ledger, BooksByKindWithPeakAndMoment) {
  Memory memory;
  Ledger& ledger = memory.ledger;
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
  Memory memory(4096);
  Ledger& ledger = memory.ledger;
  const Buffer held = ledger.allocate(Kind::parameters, 4000, "p");
  EXPECT_ERROR(ledger.allocate(Kind::gradients, 128, "block.3"), "128 B for block.3 (gradients)",
               "limit of 4.00 KiB");
  EXPECT_EQ(ledger.held_bytes(), held.bytes());
}

TEST(Ledger, EveryTierHasItsOwnSourceLimitAndBooks) {
  const auto device = make_dry_memory(), host = make_dry_memory();
  Ledger ledger(Ledger::Tiers{Ledger::TierSetup{device.get(), 64},
                              Ledger::TierSetup{host.get(), 2 << 20}, Ledger::TierSetup{}});
  ledger.moment("spilling");
  const Buffer held = ledger.allocate(Kind::optimizer, 1 << 20, "o", Tier::host);
  EXPECT_EQ(ledger.held_bytes(), 0);
  EXPECT_EQ(ledger.held_bytes(Tier::host), 1 << 20);
  EXPECT_EQ(ledger.held_bytes(Kind::optimizer, Tier::host), 1 << 20);
  EXPECT_EQ(ledger.peak_moment(Tier::host), "spilling");
  EXPECT_ERROR(ledger.allocate(Kind::optimizer, (1 << 20) + 1, "block.1.mlp", Tier::host),
               "out of host memory", "for block.1.mlp (optimizer)");
  EXPECT_ERROR(ledger.allocate(Kind::optimizer, 65, "o"), "out of memory", "limit of 64 B");
  EXPECT_THROW(ledger.allocate(Kind::optimizer, 1, "o", Tier::disk), InternalError);
  EXPECT_NE(ledger.table().find("host peak"), std::string::npos) << ledger.table();
}

TEST(Ledger, BooksTheBlockThatItsSourceHandsOut) {
  Memory memory;
  const Buffer large = memory.ledger.allocate(Kind::workspace, (1 << 20) + 1, "w");
  EXPECT_EQ(large.bytes(), (1 << 20) + 4096);  // whole pages
  EXPECT_EQ(memory.ledger.held_bytes(), large.bytes());
}

// What was given back may serve a request of about its size, but a block is never larger than its
// books, and held and spare blocks together never exceed the peak.
TEST(Ledger, NeitherHeldNorSpareBlocksPassTheLimit) {
  constexpr int64_t kMega = 1 << 20;
  Memory memory(20 * kMega);
  Ledger& ledger = memory.ledger;
  std::vector<Buffer> held;
  uint32_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525 + 1013904223;
    const int64_t bytes = kMega + random % (3 * kMega);
    if (ledger.held_bytes() + bytes + 4096 > 20 * kMega) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random % held.size()));
      continue;
    }
    held.push_back(ledger.allocate(Kind::activations, bytes, "a"));
    std::memset(held.back().data(), i & 255, static_cast<size_t>(held.back().bytes()));
    EXPECT_LE(ledger.held_bytes() + ledger.spare_bytes(), ledger.peak_bytes());
  }
  EXPECT_LE(ledger.peak_bytes(), 20 * kMega);
}

TEST(Ledger, ASpareIsCutAndItsPartsAreJoined) {
  Memory memory;
  Ledger& ledger = memory.ledger;
  constexpr int64_t kMega = 1 << 20;
  { const Buffer first = ledger.allocate(Kind::activations, 16 * kMega, "a"); }
  EXPECT_EQ(ledger.spare_bytes(), 16 * kMega);
  for (const Kind kind : {Kind::gradients, Kind::activations}) {
    const Buffer cut = ledger.allocate(kind, 13 * kMega, "b");
    EXPECT_EQ(cut.bytes(), 13 * kMega);
    EXPECT_EQ(ledger.spare_bytes(), 3 * kMega);
    std::memset(cut.data(), 1, 13 * kMega);
  }
  const Buffer whole = ledger.allocate(Kind::activations, 16 * kMega, "a");
  EXPECT_EQ(ledger.spare_bytes(), 0);
  std::memset(whole.data(), 1, 16 * kMega);
}

TEST(Ledger, ASpareOfNearlyTheSizeIsGrown) {
  Memory memory;
  Ledger& ledger = memory.ledger;
  constexpr int64_t kMega = 1 << 20;
  { const Buffer first = ledger.allocate(Kind::activations, 15 * kMega, "a"); }
  const Buffer grown = ledger.allocate(Kind::activations, 16 * kMega, "a");
  EXPECT_EQ(ledger.spare_bytes(), 0);
  static_cast<char*>(grown.data())[16 * kMega - 1] = 1;
}

// The system's memory, which counts what is asked of it.
class CountedMemory final : public MemorySource {
 public:
  int taken = 0;
  int64_t dropped = 0;

  int64_t block_bytes(int64_t bytes) const override { return host_->block_bytes(bytes); }
  void* take(int64_t bytes) override {
    ++taken;
    return host_->take(bytes);
  }
  void give_back(void* block, int64_t bytes) override { host_->give_back(block, bytes); }
  void* resize(void* block, int64_t from, int64_t to) override {
    return host_->resize(block, from, to);
  }
  bool worth_keeping(int64_t bytes) const override { return host_->worth_keeping(bytes); }
  bool divisible() const override { return true; }
  void drop(void* block, int64_t bytes) override {
    dropped += bytes;
    host_->drop(block, bytes);
  }

 private:
  std::unique_ptr<MemorySource> host_ = make_host_memory();
};

TEST(Ledger, AStepTakesNoFreshMemoryAfterTheFirst) {
  CountedMemory memory;
  Ledger ledger(memory);
  constexpr int64_t kMega = 1 << 20;
  for (int step = 0; step < 4; ++step) {
    memory.taken = 0;
    std::vector<Buffer> activations, gradients;
    for (int unit = 0; unit < 8; ++unit)
      activations.push_back(ledger.allocate(Kind::activations, (2 + unit % 2) * kMega, "a"));
    for (int unit = 7; unit >= 0; --unit) {
      gradients.push_back(ledger.allocate(Kind::gradients, (5 - 2 * (unit % 2)) * kMega, "g"));
      activations.pop_back();
    }
    if (step > 0) {
      EXPECT_EQ(memory.taken, 0) << "step " << step;
    }
  }
}

// Gradients given back are one spare, and small blocks of the next step come from elsewhere.
TEST(Ledger, ASmallBlockBeyondThePeakCostsASpareItsEnd) {
  CountedMemory memory;
  Ledger ledger(memory);
  constexpr int64_t kMega = 1 << 20;
  for (int step = 0; step < 4; ++step) {
    memory.dropped = 0;
    const Buffer tokens = ledger.allocate(Kind::data, 1024, "t");
    std::vector<Buffer> gradients;
    for (int unit = 0; unit < 8; ++unit) {
      gradients.push_back(ledger.allocate(Kind::gradients, 8 * kMega, "g"));
      std::memset(gradients.back().data(), unit, static_cast<size_t>(8 * kMega));
    }
    const Buffer late = ledger.allocate(Kind::data, (step + 1) * 1024, "t");
    EXPECT_LE(ledger.held_bytes() + ledger.spare_bytes(), ledger.peak_bytes());
    gradients.clear();
    { const Buffer more = ledger.allocate(Kind::data, 2048, "t"); }
    EXPECT_EQ(ledger.spare_bytes(), 62 * kMega);
    EXPECT_LE(memory.dropped, 2 * kMega) << "step " << step;
  }
}

TEST(Ledger, DryKeepsTheSameBooksOverNoMemory) {
  Memory memory(Ledger::kNoLimit, make_dry_memory());
  Ledger& ledger = memory.ledger;
  const Buffer huge = ledger.allocate(Kind::parameters, int64_t{1} << 50, "p");
  EXPECT_EQ(huge.data(), nullptr);
  EXPECT_EQ(ledger.peak_bytes(), int64_t{1} << 50);
}

TEST(Ledger, ABlockMovedIsGivenBackOnce) {
  Memory memory;
  Ledger& ledger = memory.ledger;
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
  Memory memory;
  Ledger& ledger = memory.ledger;
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

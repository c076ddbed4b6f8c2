// What a rank's channels use: on a card, with NCCL, a thread of its own looks at a channel's memory
// until that is closed. Here a device stands for a card, and whatever is used lives on the host.
#include "engine/channels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "error_text.h"
#include "model/spec.h"

namespace onefold {
namespace {

// Blocks and memories of lanes that there are now; and how many channels were opened and closed.
struct Alive {
  std::set<const void*> blocks;
  std::set<const RankMemory*> memories;
  int opened = 0, closed = 0;
  int most = 1000;  // further ones are refused
};

class CountedBlocks final : public MemorySource {
 public:
  explicit CountedBlocks(Alive& alive) : alive_(alive) {}
  int64_t block_bytes(int64_t bytes) const override { return bytes; }
  void* take(int64_t bytes) override {
    void* const block = ::operator new(static_cast<size_t>(bytes));
    alive_.blocks.insert(block);
    return block;
  }
  void give_back(void* block, int64_t) override {
    alive_.blocks.erase(block);
    ::operator delete(block);
  }

 private:
  Alive& alive_;
};

class CountedMemory final : public RankMemory {
 public:
  explicit CountedMemory(Alive& alive) : alive_(alive) { alive_.memories.insert(this); }
  ~CountedMemory() override { alive_.memories.erase(this); }
  void copy(const void*, void*, int64_t) override {}
  void sum(DType, std::span<const void* const>, void*, int64_t) override {}
  int64_t block_bytes() const override { return 1; }

 private:
  Alive& alive_;
};

// Lanes and memories as a card has them.
class CardOfTheHost final : public Device {
 public:
  explicit CardOfTheHost(Alive& alive)
      : alive_(alive), blocks_(alive), host_(open_device("cpu", 1)) {}
  const char* name() const override { return "test"; }
  Kernels& kernels() override { return host_->kernels(); }
  MemorySource* memory(Tier) override { return &blocks_; }
  LaneQueue& compute() override { return host_->compute(); }
  std::unique_ptr<LaneQueue> open_lane() override { return host_->open_lane(); }
  Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src, int64_t bytes) override {
    return host_->copy(lane, std::move(label), dst, src, bytes);
  }
  void copy_now(void* dst, const void* src, int64_t bytes) override {
    host_->copy_now(dst, src, bytes);
  }
  double now() const override { return host_->now(); }
  int threads() const override { return 1; }
  std::unique_ptr<RankMemory> rank_memory(LaneQueue&) override {
    return std::make_unique<CountedMemory>(alive_);
  }
  void write(Tensor dst, const Make& make, Calls calls) override { host_->write(dst, make, calls); }
  void read(Tensor src, const Take& take) override { host_->read(src, take); }

 private:
  Alive& alive_;
  CountedBlocks blocks_;
  const std::unique_ptr<Device> host_;
};

// When it ends, what it was opened with is there.
class LookedAtChannel final : public Channel {
 public:
  LookedAtChannel(const Communicator& of, Alive& alive, const RankMemory& memory, std::string name,
                  const void* scratch)
      : Channel(of.rank(), of.ranks()),
        alive_(alive),
        memory_(memory),
        name_(std::move(name)),
        scratch_(scratch) {}
  ~LookedAtChannel() override {
    EXPECT_TRUE(alive_.memories.contains(&memory_)) << name_;
    if (scratch_ != nullptr) {
      EXPECT_TRUE(alive_.blocks.contains(scratch_)) << name_;
    }
    ++alive_.closed;
  }

 private:
  void run(const Call&) override {}

  Alive& alive_;
  const RankMemory& memory_;
  const std::string name_;
  const void* const scratch_;
};

class OverCards final : public Communicator {
 public:
  OverCards(std::unique_ptr<Communicator> dry, std::string name, Alive& alive)
      : Communicator(dry->rank(), dry->ranks()),
        dry_(std::move(dry)),
        name_(std::move(name)),
        alive_(alive) {}
  const char* transport() const override { return "test"; }
  int64_t device_scratch_bytes() const override { return 64; }
  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    return dry_->open(name, scratch);
  }
  std::unique_ptr<Channel> open_on(RankMemory& memory, std::string_view name,
                                   void* scratch) override {
    if (alive_.opened == alive_.most) user_error("no further channel");
    ++alive_.opened;
    return std::make_unique<LookedAtChannel>(*this, alive_, memory,
                                             fmt::format("{} {}", name_, name), scratch);
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    return std::make_unique<OverCards>(dry_->group(members), members.name, alive_);
  }
  void abort(std::string_view) noexcept override {}

 private:
  const std::unique_ptr<Communicator> dry_;
  const std::string name_;
  Alive& alive_;
};

// Opens the channels of a rank, and closes them.
void open_and_close(const ModelSpec& spec, const EngineOptions& options, int ranks, Alive& alive) {
  const Lines lines = make_lines(
      spec, options, std::make_shared<OverCards>(make_dry_communicator(ranks), "all", alive));
  CardOfTheHost device(alive);
  Ledger ledger(*device.memory(Tier::device));
  const Channels channels(lines, device, ledger, options.zero.overlap);
  EXPECT_EQ(alive.closed, 0);
}

// How many there are. Nor do those that were opened need more where a further one is refused.
int channels_of(const ModelSpec& spec, const EngineOptions& options, int ranks) {
  Alive all;
  open_and_close(spec, options, ranks, all);
  EXPECT_EQ(all.closed, all.opened);
  for (int most = 0; most < all.opened; ++most) {
    Alive some{.most = most};
    EXPECT_ERROR(open_and_close(spec, options, ranks, some), "no further channel");
    EXPECT_EQ(some.closed, most);
    EXPECT_TRUE(some.blocks.empty() && some.memories.empty());
  }
  return all.opened;
}

TEST(Channels, EndBeforeWhatTheyUse) {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.hidden_size = 48;
  spec.num_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.num_layers = 3;
  spec.experts.count = 4;
  for (const bool overlap : {false, true})
    for (const ContextMethod method : {ContextMethod::ring, ContextMethod::ulysses}) {
      SCOPED_TRACE(fmt::format("{}{}", overlap ? "beside, " : "", method == ContextMethod::ring));
      EngineOptions options{.tensor = 4, .context = 2, .expert = 2, .threads = 1, .sequence = 16};
      options.context_method = method;
      options.overlap_chunks = overlap ? 2 : 1;
      options.pipeline.ranks = 2;
      options.micros = 2;
      options.zero.overlap = overlap;
      options.zero.stage = 3;
      options.zero.node_ranks = 4;
      const bool ring = method == ContextMethod::ring;
      // Of lanes and of computation, and of equal experts; of experts, replicas, parts and stages;
      // hops; of nodes; turns. Beside computation: sums of shares, rows, and, where there is no
      // ring, gradients by heads.
      const int in_order = 4 + 2 + 4 + 6 + 2 + (ring ? 3 : 0);
      EXPECT_EQ(channels_of(spec, options, 64), in_order + (overlap ? 2 + (ring ? 0 : 1) : 0));
    }
  EngineOptions hosts{.threads = 1};
  hosts.compression.gradients.type = WireFormat::Type::int8;
  hosts.compression.host_ranks = 2;
  EXPECT_EQ(channels_of(spec, hosts, 4), 5);
}

}  // namespace
}  // namespace onefold

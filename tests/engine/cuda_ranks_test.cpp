// Ranks on one card that they share: by the local exchange on its memory, and over NCCL with a
// double behind its table. NCCL itself, with one rank. Where there is no card, that is said.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "comm/collectives.h"
#include "comm/nccl.h"
#include "comm/nccl_double.h"
#include "comm/nccl_library.h"
#include "comm/rank_sum.h"
#include "device/cuda_library.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

constexpr const char* kCard = "cuda:0";

#define SKIP_WITHOUT_A_CARD()                                                               \
  if (const std::string problem = error_text([] { (void)cuda_cards(); }); !problem.empty()) \
  GTEST_SKIP() << problem

// A channel of the card's memory that takes the host's: what a call reads is copied there, and what
// it writes is copied back.
class CardChannel final : public Channel {
 public:
  CardChannel(Device& device, Communicator& ranks)
      : Channel(ranks.rank(), ranks.ranks()),
        device_(device),
        ledger_(*device.memory(Tier::device)),
        memory_(device.rank_memory(device.compute())) {
    if (const int64_t bytes = ranks.device_scratch_bytes(); bytes > 0)
      scratch_ = ledger_.allocate(Kind::communication, bytes, "messages");
    inner_ = ranks.open_on(*memory_, "card", scratch_.data());
  }

 private:
  // A block of the card's memory with the contents of the host's.
  struct Copy {
    void* host = nullptr;
    Buffer block = {};
    int64_t bytes = 0;
  };
  Copy copied(const void* host, int64_t bytes) {
    Copy copy{const_cast<void*>(host), {}, host == nullptr ? 0 : bytes};
    if (copy.bytes == 0) return copy;
    copy.block = ledger_.allocate(Kind::workspace, bytes, "test");
    upload(device_, std::span(static_cast<const std::byte*>(host), static_cast<size_t>(bytes)),
           copy.block.as(1, bytes, DType::u8));
    return copy;
  }
  void copy_back(const Copy& copy) {
    if (copy.bytes > 0)
      download(device_, copy.block.as(1, copy.bytes, DType::u8),
               std::span(static_cast<std::byte*>(copy.host), static_cast<size_t>(copy.bytes)));
  }

  void run(const Call& call) override {
    std::vector<Copy> wholes, shards;
    std::vector<Message> messages;
    for (const Message& message : call.messages) {
      const int64_t bytes = message.shard_bytes();
      wholes.push_back(copied(message.whole, bytes * ranks()));
      auto* inside = static_cast<std::byte*>(message.whole) + rank() * bytes;
      const bool in_place = message.shard == inside;
      shards.push_back(in_place ? Copy{} : copied(message.shard, bytes));
      auto* whole = static_cast<std::byte*>(wholes.back().block.data());
      messages.push_back({whole, in_place ? whole + rank() * bytes : shards.back().block.data(),
                          message.shard_elems, message.dtype});
    }
    const int64_t blocks = call.collective == Collective::all_to_all ? ranks() : 1;
    const Copy from = copied(call.from, call.bytes * blocks),
               to = copied(call.to == call.from ? nullptr : call.to, call.bytes * blocks);
    void* src = from.block.data();
    void* dst = to.block ? to.block.data() : src;
    switch (call.collective) {
      case Collective::all_gather:
        inner_->all_gather(call.what, messages);
        break;
      case Collective::reduce_scatter:
        inner_->reduce_scatter(call.what, messages);
        break;
      case Collective::all_reduce:
        inner_->all_reduce(call.what, messages);
        break;
      case Collective::broadcast:
        inner_->broadcast(call.what, call.peer, src, call.bytes);
        break;
      case Collective::all_to_all:
        inner_->all_to_all(call.what, src, dst, call.bytes);
        break;
      case Collective::send:
        inner_->send(call.what, call.peer, src, call.bytes);
        break;
      case Collective::receive:
        inner_->receive(call.what, call.peer, dst, call.bytes);
        break;
      case Collective::barrier:
        inner_->barrier(call.what);
        break;
    }
    for (const Copy& copy : wholes) copy_back(copy);
    for (const Copy& copy : shards) copy_back(copy);
    copy_back(call.to == call.from ? from : to);
  }

  Device& device_;
  Ledger ledger_;
  std::unique_ptr<RankMemory> memory_;
  Buffer scratch_;
  std::unique_ptr<Channel> inner_;
};

std::shared_ptr<Communicator> over_the_double(std::shared_ptr<Communicator> ranks) {
  return over_nccl(std::move(ranks), {.api = &test::nccl_double::kApi});
}

class CudaExchange : public testing::TestWithParam<int> {};

TEST_P(CudaExchange, EveryCollectiveHasTheBitsOfTheOracle) {
  SKIP_WITHOUT_A_CARD();
  test::on_ranks(GetParam(), [](int, std::shared_ptr<Communicator> ranks) {
    const std::unique_ptr<Device> device = open_device(kCard, 1);
    CardChannel channel(*device, *ranks);
    test::check_collectives(channel);
  });
}

TEST_P(CudaExchange, OverNcclTheBitsAreTheSame) {
  SKIP_WITHOUT_A_CARD();
  test::on_ranks(GetParam(), [](int, std::shared_ptr<Communicator> ranks) {
    const std::shared_ptr<Communicator> over = over_the_double(std::move(ranks));
    const std::unique_ptr<Device> device = open_device(kCard, 1);
    CardChannel channel(*device, *over);
    test::check_collectives(channel);
  });
}

INSTANTIATE_TEST_SUITE_P(Counts, CudaExchange, testing::Values(1, 3, 4));

// NCCL itself takes part in every collective, sums of its own included, if with one rank alone.
TEST(CudaNccl, OneRankRunsEveryCollective) {
  SKIP_WITHOUT_A_CARD();
  if (nccl_library().api == nullptr) GTEST_SKIP() << nccl_library().problem;
  for (const bool library_sums : {false, true})
    test::on_ranks(1, [&](int, std::shared_ptr<Communicator> ranks) {
      const std::unique_ptr<Device> device = open_device(kCard, 1);
      const auto over = over_nccl(std::move(ranks), {.library_sums = library_sums});
      CardChannel channel(*device, *over);
      test::check_collectives(channel);
    });
}

// What no collective of one rank calls: messages, to itself.
TEST(CudaNccl, MessagesAndErrorsGoThroughTheTable) {
  SKIP_WITHOUT_A_CARD();
  const NcclApi* api = nccl_library().api;
  if (api == nullptr) GTEST_SKIP() << nccl_library().problem;
  const std::unique_ptr<Device> device = open_device(kCard, 1);
  Ledger ledger(*device->memory(Tier::device));
  const auto memory = device->rank_memory(device->compute());
  const Buffer block = ledger.allocate(Kind::workspace, 2048, "test");
  const Tensor from = block.as(1, 256), to = block.as(1, 512).col_range(256, 256);
  const std::vector<float> values = test::values(0, 1, 256);
  upload(*device, std::span(values), from);
  NcclId id{};
  NcclPort* port = nullptr;
  ASSERT_EQ(api->make_id(&id), nullptr);
  ASSERT_EQ(api->open(&port, &id, 0, 1, memory.get()), nullptr);
  EXPECT_EQ(api->error(port), nullptr);
  EXPECT_EQ(api->begin(port), nullptr);
  EXPECT_EQ(api->send(port, from.data, 1024, 0), nullptr);
  EXPECT_EQ(api->receive(port, to.data, 1024, 0), nullptr);
  EXPECT_EQ(api->end(port), nullptr);
  std::vector<float> back(256);
  download(*device, to, std::span(back));
  EXPECT_EQ(back, values);
  const char* wrong = api->send(port, from.data, 1024, 7);
  ASSERT_NE(wrong, nullptr);
  EXPECT_TRUE(contains(wrong, "invalid")) << wrong;
  api->abort(port);
  EXPECT_NE(api->error(port), nullptr);
  api->close(port);
}

// Of every type, aligned or not, with values of all sizes: the host's bits.
TEST(CudaRankSum, HasTheBitsOfTheHost) {
  SKIP_WITHOUT_A_CARD();
  const std::unique_ptr<Device> device = open_device(kCard, 1);
  Ledger ledger(*device->memory(Tier::device));
  const auto memory = device->rank_memory(device->compute());
  constexpr int kRanks = 5;
  HostRankMemory host(kRanks);
  const auto hostile = [](int rank, int64_t i) {
    constexpr float kMost = std::numeric_limits<float>::max(),
                    kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecial[] = {0.0f, -0.0f, kMost, -kMost, 1e-45f, -3e-39f, kInfinity, 6e4f};
    return i % 37 < 8 ? kSpecial[(static_cast<size_t>(i) + static_cast<size_t>(rank)) % 8]
                      : test::value(rank, 3, i);
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const int64_t elems : {1, 7, 8, 1031, 100'003})
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} of {}, from {}", elems, dtype_name(dtype), shift));
        const int64_t width = dtype_bytes(dtype), bytes = (elems + shift) * width;
        std::vector<std::vector<std::byte>> ranks;
        std::vector<Buffer> blocks;
        std::vector<const void*> here, there;
        for (int r = 0; r < kRanks; ++r) {
          std::vector<std::byte>& own = ranks.emplace_back(static_cast<size_t>(bytes));
          for (int64_t i = 0; i < elems + shift; ++i) {
            const float value = hostile(r, i);
            std::byte* at = own.data() + i * width;
            if (dtype == DType::f64) {
              const double wide = double{value} * 1.1;
              std::memcpy(at, &wide, 8);
            } else if (dtype == DType::f32) {
              std::memcpy(at, &value, 4);
            } else {
              const uint16_t half = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
              std::memcpy(at, &half, 2);
            }
          }
          blocks.push_back(ledger.allocate(Kind::workspace, bytes, "test"));
          upload(*device, std::span<const std::byte>(own), blocks.back().as(1, bytes, DType::u8));
          here.push_back(own.data() + shift * width);
          there.push_back(static_cast<std::byte*>(blocks.back().data()) + shift * width);
        }
        std::vector<std::byte> expected(static_cast<size_t>(elems * width)), sum(expected.size());
        host.sum(dtype, here, expected.data(), elems);
        // In place of the second rank's.
        memory->sum(dtype, there, const_cast<void*>(there[1]), elems);
        download(*device, blocks[1].as(1, bytes, DType::u8).col_range(shift * width, elems * width),
                 std::span(sum));
        for (int64_t i = 0; i < elems; ++i) {
          if (std::memcmp(&sum[static_cast<size_t>(i * width)],
                          &expected[static_cast<size_t>(i * width)],
                          static_cast<size_t>(width)) == 0)
            continue;
          // Infinity less infinity is a NaN with other bits.
          double a = 0, b = 0;
          const auto number = [&](const std::vector<std::byte>& from) -> double {
            const std::byte* at = &from[static_cast<size_t>(i * width)];
            uint64_t bits = 0;
            std::memcpy(&bits, at, static_cast<size_t>(width));
            if (dtype == DType::f64) return std::bit_cast<double>(bits);
            if (dtype == DType::f32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
            const auto half = static_cast<uint16_t>(bits);
            return dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
          };
          a = number(sum);
          b = number(expected);
          ASSERT_TRUE(std::isnan(a) && std::isnan(b)) << i << ": " << a << ", expected " << b;
        }
      }
}

struct CardSetup {
  const char* name;
  const char* preset;
  Precision precision;
};
const CardSetup kCardSetups[] = {
    {"gpt2_fp32", "gpt2-tiny", {}},
    {"llama_bf16", "llama-tiny", {.compute = DType::bf16}},
    {"mixtral_bf16", "mixtral-tiny", {.compute = DType::bf16}},
    {"llama_bf16_states", "llama-tiny", {DType::bf16, DType::bf16, false, DType::bf16}},
};

class CudaRanks : public testing::TestWithParam<CardSetup> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_A_CARD();
    spec_ = spec_from_preset(GetParam().preset, "test");
    if (spec_.vocab_size == 0) spec_.vocab_size = 101;
  }
  EngineOptions options(int stage) const {
    EngineOptions options{.device = kCard,
                          .threads = 1,
                          .micro_batch = 1,
                          .sequence = 40,
                          .micros = 2,
                          .clipping = 1.0};
    options.zero.stage = stage;
    options.zero.persistence_elems = 0;
    options.precision = GetParam().precision;
    return options;
  }
  void expect_same(const test::RankRun& run, const test::RankRun& reference) {
    EXPECT_EQ(run.losses, reference.losses);
    EXPECT_EQ(run.norms, reference.norms);
    test::expect_same_bits(run.weights, reference.weights);
  }

  static constexpr int kRanks = 4, kSteps = 3;
  ModelSpec spec_;
};

TEST_P(CudaRanks, EveryStageHasTheSameBitsAsPlanned) {
  const test::RankRun reference = test::train_on_ranks(spec_, options(0), kRanks, kSteps);
  for (const int stage : {0, 1, 2, 3})
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(fmt::format("stage {}, {}", stage, overlap ? "lanes" : "no lanes"));
      EngineOptions own = options(stage);
      own.zero.overlap = overlap;
      const test::RankRun run = test::train_on_ranks(spec_, own, kRanks, kSteps);
      expect_same(run, reference);
      test::expect_planned(spec_, own, kRanks, run, hardware_named("h200"));
    }
}

TEST_P(CudaRanks, OverNcclEveryStageHasTheBitsOfTheSharedCard) {
  const test::RankRun reference = test::train_on_ranks(spec_, options(0), kRanks, kSteps);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    const test::RankRun run =
        test::train_on_ranks(spec_, options(stage), kRanks, kSteps, over_the_double);
    expect_same(run, reference);
    test::expect_planned(spec_, options(stage), kRanks, run, hardware_named("h200"),
                         nccl_scratch_bytes(kRanks));
  }
}

TEST_P(CudaRanks, NodesThatKeepParametersHaveTheBitsOfNoneAsPlanned) {
  const test::RankRun none = test::train_on_ranks(spec_, options(3), kRanks, kSteps);
  EngineOptions own = options(3);
  own.zero.node_ranks = 2;
  for (const bool overlap : {true, false}) {
    SCOPED_TRACE(overlap ? "lanes" : "no lanes");
    own.zero.overlap = overlap;
    const test::RankRun run = test::train_on_ranks(spec_, own, kRanks, kSteps);
    expect_same(run, none);
    test::expect_planned(spec_, own, kRanks, run, hardware_named("h200"));
  }
  expect_same(test::train_on_ranks(spec_, own, kRanks, kSteps, over_the_double), none);
}

TEST_P(CudaRanks, FollowTheRanksOfTheHost) {
  if (GetParam().precision.compute != DType::f32) GTEST_SKIP() << "of fp32";
  const test::RankRun card = test::train_on_ranks(spec_, options(3), kRanks, 10);
  EngineOptions own = options(3);
  own.device = "cpu";
  const test::RankRun host = test::train_on_ranks(spec_, own, kRanks, 10);
  for (size_t step = 0; step < card.losses.size(); ++step)
    EXPECT_NEAR(card.losses[step], host.losses[step], 1e-4 * host.losses[step]);
}

// A call of NCCL's table that fails, of any rank and at any time: all ranks end, and the error
// names rank, channel and call.
TEST_P(CudaRanks, AnErrorOfNcclEndsAllRanksByName) {
  test::nccl_double::Faults& faults = test::nccl_double::faults();
  const auto train = [&](int stage) {
    faults.calls = 0;
    return error_text(
        [&] { test::train_on_ranks(spec_, options(stage), kRanks, kSteps, over_the_double); });
  };
  for (const int stage : {0, 3}) {
    ASSERT_EQ(train(stage), "");
    const int calls = faults.calls;
    for (int i = 0; i < 3; ++i) {
      faults.fails_at = calls * i / 3 + i;
      const std::string error = train(stage);
      faults.fails_at = -1;
      EXPECT_TRUE(contains(error, "rank ")) << error;
      EXPECT_TRUE(contains(error, "channel \"")) << error;
      EXPECT_TRUE(contains(error, ", step ") || contains(error, "does not open")) << error;
      EXPECT_TRUE(contains(error, "unhandled system error") || contains(error, "was ended"))
          << error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, CudaRanks, testing::ValuesIn(kCardSetups),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CudaCards, OneThatIsNotThereIsNamedWithTheirNumber) {
  SKIP_WITHOUT_A_CARD();
  EXPECT_ERROR(open_device("cuda:99", 1), "no card 99", "sees", "CUDA_VISIBLE_DEVICES");
}

TEST(CudaCards, MoreRanksThanCardsAreRefusedUnlessTheyShareOne) {
  SKIP_WITHOUT_A_CARD();
  const std::shared_ptr<Communicator> ranks = make_dry_communicator(1000);
  EngineOptions options{.device = "cuda", .threads = 1, .micro_batch = 1, .sequence = 8};
  EXPECT_ERROR(Engine(spec_from_preset("llama-tiny", "test"), options, ranks), "1000 ranks",
               "cuda:N");
}

}  // namespace
}  // namespace onefold

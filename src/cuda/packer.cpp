#include "cuda/packer.h"

#include <bit>
#include <deque>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/wire.h"

namespace onefold::cuda {
namespace {

using Format = WireFormat::Type;

Type type_of(DType dtype) {
  if (dtype == DType::bf16) return Type::bf16;
  return dtype == DType::f16 ? Type::f16 : Type::f32;
}

DensePacket dense(const WireFormat& format) {
  Codes codes = Codes::sign;
  if (format.type == Format::bf16) codes = Codes::bf16;
  if (format.type == Format::int8) codes = Codes::int8;
  if (format.type == Format::int4) codes = Codes::int4;
  return {codes, format.block, format.stochastic && codes != Codes::sign};
}

SparsePacket sparse(const WireFormat& format, int64_t elems, const WireDraw& draw, bool masks) {
  SparsePacket packet{.chosen = Chosen::largest,
                      .room = sent_elems(format.density, elems),
                      .block = format.block,
                      .least = 0,
                      .own = draw.own,
                      .common = draw.common,
                      .masks = masks};
  if (format.type == Format::sampled) packet.chosen = Chosen::sampled;
  if (format.type == Format::randomk) packet.chosen = Chosen::random;
  if (format.type == Format::threshold) {
    packet.chosen = Chosen::threshold;
    packet.least = std::bit_cast<uint32_t>(static_cast<float>(format.least));
  }
  if (format.type == Format::blocks) {
    packet.chosen = Chosen::blocks;
    packet.room = sent_elems(format.density, (elems + format.block - 1) / format.block);
  }
  return packet;
}

WireScales scales_of(const PackedPart& part) {
  require(part.scales.size() <= kMostScales, "{} parts of a slab are multiplied, of at most {}",
          part.scales.size(), kMostScales);
  WireScales scales{};
  for (const SlabScale& range : part.scales)
    scales.at[scales.count++] = {range.begin, range.end, range.scale};
  return scales;
}

// Seconds between pairs of events, of which those that are reached are forgotten.
class StreamTimer {
 public:
  explicit StreamTimer(cudaStream_t stream) : stream_(stream) {}
  ~StreamTimer() {
    for (const Pair& pair : pairs_) forget(pair);
  }
  void begin() { pairs_.push_back({record(), nullptr}); }
  void end() {
    pairs_.back().end = record();
    while (!pairs_.empty() && cudaEventQuery(pairs_.front().end) == cudaSuccess) take();
    (void)cudaGetLastError();  // that the last one is not reached is no error
  }
  // When all are reached.
  double seconds() {
    while (!pairs_.empty()) take();
    return seconds_;
  }

 private:
  struct Pair {
    cudaEvent_t begin, end;
  };
  cudaEvent_t record() const {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "make an event");
    check(cudaEventRecord(event, stream_), "record an event");
    return event;
  }
  static void forget(const Pair& pair) {
    (void)cudaEventDestroy(pair.begin);
    if (pair.end != nullptr) (void)cudaEventDestroy(pair.end);
  }
  void take() {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, pairs_.front().begin, pairs_.front().end), "time a lane");
    seconds_ += 1e-3 * static_cast<double>(ms);
    forget(pairs_.front());
    pairs_.pop_front();
  }

  const cudaStream_t stream_;
  std::deque<Pair> pairs_;
  double seconds_ = 0;
};

class CardPacker final : public Packer {
 public:
  CardPacker(const Card& card, cudaStream_t stream)
      : card_(card), stream_(stream), timer_(stream) {}

  // Its end has the sums of all packets, and before them the flags of slabs.
  void set_scratch(void* memory, int64_t bytes) override {
    scratch_ = static_cast<std::byte*>(memory);
    scratch_bytes_ = bytes - packing::kTotalsBytes;
    totals_ = reinterpret_cast<BlockSquares*>(scratch_ + scratch_bytes_);
    clear(totals_, packing::kTotalsBytes);
  }

  void clear(void* data, int64_t bytes) override {
    if (bytes == 0) return;
    card_.use();
    check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_), "clear a part of a slab");
  }

  void look_at(int slab, const PackedPart& first, const Parts& parts, float limit) override {
    card_.use();
    const Room room = room_of({});
    look_at_slab({first.values, type_of(first.dtype), first.elems, parts.count, parts.stride},
                 limit, reinterpret_cast<SlabPartial*>(room.partials), flags_of(slab), stream_);
  }

  void pack(const WireFormat& format, const PackedPart& part, const Feedback& feedback,
            const WireDraw& draw, std::byte* packet) override {
    card_.use();
    const GivenShard given{.values = part.values,
                           .type = type_of(part.dtype),
                           .elems = part.elems,
                           .kept = part.kept,
                           .velocity = part.velocity,
                           .share = feedback.fold.scale,
                           .momentum = feedback.fold.momentum,
                           .flags = flags_of(feedback.slab),
                           .scales = scales_of(part)};
    const Room room = room_of(format, part.elems);
    if (!format.sparse()) {
      clear_tail(format, part.elems, packet);
      return pack_dense(dense(format), given, draw.own, packet, room.partials, totals_, stream_);
    }
    pack_sparse(sparse(format, part.elems, draw, feedback.masks), given, packet,
                {.norms = room.norms,
                 .bins = room.bins,
                 .cut = room.cut,
                 .tiles = room.tiles,
                 .partials = room.partials,
                 .totals = totals_},
                stream_);
  }

  void sum(const WireFormat& format, const Packets& packets, const PackedPart& part,
           const WireDraw& draw, float* wide) override {
    card_.use();
    const Received received{packets.first, packets.stride, packets.count};
    const SummedShard sum{part.values, type_of(part.dtype), part.elems, scales_of(part)};
    if (format.sparse())
      sum_sparse(sparse(format, part.elems, draw, false), received, sum, wide, stream_);
    else
      sum_dense(dense(format), received, sum, stream_);
  }

  void begin() override {
    card_.use();
    timer_.begin();
  }
  void end() override { timer_.end(); }

  WireSquares squares() override {
    card_.use();
    BlockSquares totals{};
    check(cudaMemcpyAsync(&totals, totals_, sizeof(totals), cudaMemcpyDeviceToHost, stream_),
          "read sums of packets");
    check(cudaStreamSynchronize(stream_), "finish a lane's work");
    return {totals.given, totals.lost};
  }
  double seconds() override {
    card_.use();
    check(cudaStreamSynchronize(stream_), "finish a lane's work");
    return timer_.seconds();
  }

 private:
  // As packer_scratch_bytes() counts it.
  struct Room {
    BlockSquares* partials;
    uint32_t *norms, *bins;
    SparseCut* cut;
    uint2* tiles;
  };
  SlabFlags* flags_of(int slab) const {
    return reinterpret_cast<SlabFlags*>(scratch_ + scratch_bytes_) - (slab + 1);
  }
  Room room_of(const WireFormat& format, int64_t elems = 0) const {
    std::byte* at = scratch_;
    const auto take = [&](int64_t bytes) {
      std::byte* const from = at;
      at += (bytes + 255) / 256 * 256;
      return from;
    };
    Room room{};
    room.partials = reinterpret_cast<BlockSquares*>(take(packing::kBlocks * 24));
    if (format.sparse()) {
      int64_t parts = elems;
      if (format.type == Format::blocks) {
        parts = (elems + format.block - 1) / format.block;
        room.norms = reinterpret_cast<uint32_t*>(take(parts * 4));
      }
      room.bins = reinterpret_cast<uint32_t*>(take(packing::kBins * 4));
      room.cut = reinterpret_cast<SparseCut*>(take(64));
      room.tiles =
          reinterpret_cast<uint2*>(take((parts + packing::kTile - 1) / packing::kTile * 8));
    }
    require(at <= scratch_ + scratch_bytes_, "packing needs {} bytes of scratch, of {}",
            at - scratch_, scratch_bytes_);
    return room;
  }
  // The last bytes, which codes may not fill.
  void clear_tail(const WireFormat& format, int64_t elems, std::byte* packet) {
    const int64_t blocks = (elems + format.block - 1) / format.block;
    int64_t bytes = 2 * blocks + (elems + 7) / 8;
    if (format.type == Format::bf16) bytes = 2 * elems;
    if (format.type == Format::int8) bytes = 2 * blocks + elems;
    if (format.type == Format::int4) bytes = 2 * blocks + (elems + 1) / 2;
    const int64_t rest = (bytes + 3) / 4 * 4 - bytes;
    clear(packet + bytes, rest);
  }

  const Card card_;
  const cudaStream_t stream_;
  StreamTimer timer_;
  BlockSquares* totals_ = nullptr;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Packer> make_packer(const Card& card, cudaStream_t stream) {
  return std::make_unique<CardPacker>(card, stream);
}

}  // namespace onefold::cuda

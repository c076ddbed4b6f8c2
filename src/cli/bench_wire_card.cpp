// onefold bench wire --device cuda: packing and unpacking where a card's numbers lie, against
// copies there of as many bytes.
#include "base/text.h"
#include "cli/bench_wire.h"
#include "cli/cli.h"
#include "device/device.h"

namespace onefold::cli {
namespace {

// A card's numbers, what is kept of them, and a packet.
class CardLot {
 public:
  CardLot(const WireBench& b, int64_t elems)
      : device_(open_device(b.device, 1)),
        ledger_(*device_->memory(Tier::device)),
        lane_(device_->open_lane()),
        memory_(device_->rank_memory(*lane_)),
        elems_(elems) {
    if (!memory_) user_error("--device {}: it has no memory of its own; leave it out", b.device);
    packer_ = memory_->packer();
    for (Buffer* buffer : {&values_, &kept_, &copy_}) *buffer = take(elems * 4, "numbers");
    packet_ = take(9 * elems + 1024, "packet");
    const PhiloxKey key = philox_key(1, Draw::test);
    device_->write(values_.as(1, elems), [&](int64_t first, std::span<std::byte> piece) {
      for (size_t i = 0; i < piece.size() / sizeof(float); ++i) {
        const float uniform =
            2 * philox_uniform(philox_word(key, static_cast<uint64_t>(first) + i)) - 1;
        const float value = uniform * uniform * uniform;  // few large ones
        std::memcpy(piece.data() + i * sizeof(float), &value, sizeof(float));
      }
    });
    lane_->after(device_->compute().mark());
  }

  void begin(const WireFormat& format) {
    const int64_t bytes = packer_scratch_bytes(format, elems_, 1);
    scratch_ = take(bytes, "packing");
    packer_->set_scratch(scratch_.data(), bytes);
    packer_->clear(kept_.data(), 4 * elems_);
  }
  void pack(const WireFormat& format, const WireDraw& draw) {
    packer_->pack(format, {.values = values_.data(), .elems = elems_}, {}, draw, packet());
  }
  void keep(const WireFormat& format, const WireDraw& draw) {
    const PackedPart part{
        .values = values_.data(), .elems = elems_, .kept = static_cast<float*>(kept_.data())};
    packer_->look_at(0, part, {}, 0);
    packer_->pack(format, part, {}, draw, packet());
  }
  void unpack(const WireFormat& format, const WireDraw& draw) {
    packer_->sum(format, {packet()}, {.values = copy_.data(), .elems = elems_}, draw, nullptr);
  }
  // So many bytes read, and as many written.
  void copy(int64_t bytes) { memory_->copy(values_.data(), copy_.data(), bytes); }

  template <class Work>
  double seconds(int times, const Work& work) {
    const double before = packer_->seconds();
    packer_->begin();
    for (int i = 0; i < times; ++i) work();
    packer_->end();
    return (packer_->seconds() - before) / times;
  }

 private:
  Buffer take(int64_t bytes, const char* what) {
    return ledger_.allocate(Kind::communication, bytes, what);
  }
  std::byte* packet() { return static_cast<std::byte*>(packet_.data()); }

  const std::unique_ptr<Device> device_;
  Ledger ledger_;
  const std::unique_ptr<LaneQueue> lane_;
  const std::unique_ptr<RankMemory> memory_;
  std::unique_ptr<Packer> packer_;
  const int64_t elems_;
  Buffer values_, kept_, copy_, packet_, scratch_;
};

WireRow measure(CardLot& lot, const WireFormat& format, int64_t elems, int repeats) {
  constexpr int kTimes = 10;
  const WireDraw draw{.own = philox_key(1, Draw::wire), .common = philox_key(2, Draw::wire)};
  WireRow row{format, make_wire(format)->packet_bytes(elems), {}, {}, {}};
  lot.begin(format);
  for (int repeat = -1; repeat < repeats; ++repeat) {
    const double copied = lot.seconds(kTimes, [&] { lot.copy(4 * elems); });
    const auto add = [&](Timed& timed, int64_t moved, const auto& work) {
      const double seconds = lot.seconds(kTimes, work);
      if (repeat < 0) return;  // the first one warms up
      timed.seconds.push_back(seconds);
      timed.plain.push_back(copied * static_cast<double>(moved) / static_cast<double>(8 * elems));
    };
    add(row.pack, 4 * elems + row.packet_bytes, [&] { lot.pack(format, draw); });
    add(row.keep, 12 * elems + row.packet_bytes, [&] { lot.keep(format, draw); });
    add(row.unpack, 4 * elems + row.packet_bytes, [&] { lot.unpack(format, draw); });
  }
  return row;
}

}  // namespace

int run_wire_on_card(const WireBench& b, int64_t elems) {
  if (b.threads != 1)
    user_error("--threads has no effect with --device {}, whose card packs; leave it out",
               b.device);
  CardLot lot(b, elems);
  Json result = {{"bytes", 4 * elems}, {"device", b.device}, {"results", Json::array()}};
  if (!b.json) {
    fmt::print("{} of fp32 on {}, medians of {}; %: of copies of as many bytes\n",
               format_bytes(4 * elems), b.device, b.repeats);
    print_heading();
  }
  for (const WireFormat& format : benched_formats(b)) {
    if (!obstacle_to_packing_on_cards(format).empty()) continue;
    add_row(measure(lot, format, elems, b.repeats), elems, static_cast<double>(elems), b.json,
            result["results"]);
  }
  if (b.json) print_json(result);
  return kOk;
}

}  // namespace onefold::cli

// onefold bench wire: packing and unpacking in wire formats, against plain reads and writes of as
// many bytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/bench_wire.h"
#include "cli/cli.h"
#include "comm/wire.h"
#include "kernels/host_memory.h"
#include "tensor/ledger.h"

namespace onefold::cli {
namespace {

// One thread's numbers, a copy that is written to, and a packet.
class WireLot {
 public:
  WireLot(Ledger& ledger, int64_t elems, uint32_t number)
      : values_(take(ledger, elems)),
        copy_(take(ledger, elems)),
        packet_(take(ledger, 2 * elems + 1024)),
        elems_(elems) {
    const PhiloxKey key = philox_key(1, Draw::test, number);
    std::array<uint32_t, 4096> words;
    for (int64_t first = 0; first < elems; first += int64_t{words.size()}) {
      draw_words(key, static_cast<uint64_t>(first), words);
      for (int64_t i = first; i < std::min(elems, first + int64_t{words.size()}); ++i) {
        const float uniform = 2 * philox_uniform(words[static_cast<size_t>(i - first)]) - 1;
        static_cast<float*>(values_.data())[i] = uniform * uniform * uniform;  // few large ones
      }
    }
  }

  std::span<float> values() const { return floats(values_); }
  std::span<float> copy() const { return floats(copy_); }
  std::byte* packet() const { return static_cast<std::byte*>(packet_.data()); }
  void renew() const { copy_bytes(values_.data(), copy_.data(), elems_ * 4); }

  // What packing reads and writes: all numbers, a packet of so many bytes and, with `keeps`, all
  // numbers again.
  void read(int64_t packet_bytes, bool keeps) const {
    const double share = static_cast<double>(packet_bytes) / static_cast<double>(elems_);
    for (int64_t first = 0; first < elems_; first += kStretch) {
      const int64_t count = std::min(kStretch, elems_ - first);
      float* const here = (keeps ? copy() : values()).data() + first;
      const float* const source = here;
      if (keeps)
        ordered_sum({&source, 1}, here, count);
      else
        seen_ = std::max(seen_, largest_magnitude({here, static_cast<size_t>(count)}));
      const auto bytes = static_cast<int64_t>(share * static_cast<double>(count));
      std::memcpy(packet() + bytes * (first / kStretch), here,
                  static_cast<size_t>(std::min<int64_t>(bytes, 4 * count)));
    }
  }
  // What unpacking does: a packet, and all numbers.
  void write(int64_t packet_bytes) const {
    seen_ = std::max(seen_, largest_magnitude({static_cast<const float*>(packet_.data()),
                                               static_cast<size_t>(packet_bytes / 4)}));
    std::memset(copy_.data(), 0, static_cast<size_t>(elems_) * sizeof(float));
  }

 private:
  static constexpr int64_t kStretch = 4096;

  static Buffer take(Ledger& ledger, int64_t elems) {
    Buffer buffer = ledger.allocate(Kind::communication, elems * int64_t{sizeof(float)}, "bench");
    std::memset(buffer.data(), 0, static_cast<size_t>(buffer.bytes()));
    return buffer;
  }
  std::span<float> floats(const Buffer& buffer) const {
    return {static_cast<float*>(buffer.data()), static_cast<size_t>(elems_)};
  }

  Buffer values_, copy_, packet_;
  int64_t elems_;
  mutable uint32_t seen_ = 0;  // so that what is only read is read
};

WireRow measure(const WireFormat& format, ThreadPool& pool, const std::vector<WireLot>& lots,
                int repeats) {
  std::vector<std::unique_ptr<Wire>> wires;
  for (size_t i = 0; i < lots.size(); ++i) wires.push_back(make_wire(format));
  const auto time = [&](const auto& work) {
    std::vector<double> seconds(lots.size());
    pool.run(static_cast<int64_t>(lots.size()), [&](int64_t lot, int) {
      const auto i = static_cast<size_t>(lot);
      const double begin = thread_seconds();
      work(*wires[i], lots[i]);
      seconds[i] = thread_seconds() - begin;
    });
    return *std::max_element(seconds.begin(), seconds.end());
  };
  const WireDraw draw{.own = philox_key(1, Draw::wire), .common = philox_key(2, Draw::wire)};
  const int64_t bytes = wires[0]->packet_bytes(static_cast<int64_t>(lots[0].values().size()));
  WireRow row{format, bytes, {}, {}, {}};
  for (int repeat = -1; repeat < repeats; ++repeat) {
    const auto add = [&](Timed& timed, const auto& work, const auto& plain) {
      const double ours = time(work), theirs = time(plain);
      if (repeat < 0) return;  // the first one warms up
      timed.seconds.push_back(ours);
      timed.plain.push_back(theirs);
    };
    add(
        row.pack,
        [&](Wire& wire, const WireLot& lot) { wire.encode(lot.values(), draw, lot.packet()); },
        [&](Wire&, const WireLot& lot) { lot.read(bytes, false); });
    time([&](Wire& wire, const WireLot& lot) {
      wire.encode(lot.values(), draw, lot.packet());
      lot.renew();
    });
    add(
        row.keep,
        [&](Wire& wire, const WireLot& lot) { wire.pack(lot.copy(), draw, lot.packet()); },
        [&](Wire&, const WireLot& lot) { lot.read(bytes, true); });
    time([&](Wire& wire, const WireLot& lot) { wire.encode(lot.values(), draw, lot.packet()); });
    add(
        row.unpack,
        [&](Wire& wire, const WireLot& lot) {
          wire.apply(lot.packet(), draw, Apply::set, lot.copy());
        },
        [&](Wire&, const WireLot& lot) { lot.write(bytes); });
  }
  return row;
}

Json to_json(const WireRow& row, double elems) {
  Json json = {{"format", describe(row.format)}, {"packet_bytes", row.packet_bytes}};
  const auto add = [&](const std::string& name, const Timed& timed) {
    json[name] = {{"seconds", timed.seconds},
                  {"plain_seconds", timed.plain},
                  {"gb_per_s", 4 * elems / median(timed.seconds) / 1e9},
                  {"plain_fraction", timed.fraction()}};
  };
  add("pack", row.pack);
  add("pack_and_keep", row.keep);
  add("unpack", row.unpack);
  return json;
}

int run_wire(const WireBench& b) {
  const int64_t elems = parse_bytes(b.size, "--size") / 4;
  if (elems < 1 || elems > int64_t{1} << 30)
    user_error("--size: {} is not a size from 4 bytes to 4 GiB", b.size);
  if (b.density <= 0 || b.density > 1)
    user_error("--density {:g}: it is a share, above 0 and at most 1", b.density);
  if (b.device != "cpu") return run_wire_on_card(b, elems);
  const std::unique_ptr<MemorySource> memory = make_host_memory();
  Ledger ledger(*memory);
  ThreadPool pool(b.threads);
  std::vector<WireLot> lots;
  for (int i = 0; i < b.threads; ++i) lots.emplace_back(ledger, elems, static_cast<uint32_t>(i));
  const double all = static_cast<double>(elems) * b.threads;
  Json result = {{"bytes", 4 * elems}, {"threads", b.threads}, {"results", Json::array()}};
  if (!b.json) {
    fmt::print("{} of fp32 for each of {} thread{}, medians of {}; %: of plain reads and writes\n",
               format_bytes(4 * elems), b.threads, b.threads == 1 ? "" : "s", b.repeats);
    print_heading();
  }
  for (const WireFormat& format : benched_formats(b)) {
    add_row(measure(format, pool, lots, b.repeats), elems, all, b.json, result["results"]);
  }
  if (b.json) print_json(result);
  return kOk;
}

}  // namespace

double Timed::fraction() const { return median(plain) / median(seconds); }

std::vector<WireFormat> benched_formats(const WireBench& b) {
  using Type = WireFormat::Type;
  std::vector<WireFormat> formats;
  for (const std::string& name : wire_names()) {
    WireFormat format{.type = wire_type(name), .block = b.block, .density = b.density};
    if (format.none()) continue;
    format.stochastic = b.stochastic && (format.type == Type::bf16 || format.type == Type::int8 ||
                                         format.type == Type::int4);
    format.least = std::pow(1 - b.density, 3);  // so many cubes of uniform numbers are above
    formats.push_back(format);
  }
  return formats;
}

void print_heading() {
  fmt::print("{:<14} {:>10} {:>18} {:>18} {:>18}\n", "", "packet", "pack", "pack and keep",
             "unpack");
}

void add_row(const WireRow& row, int64_t row_elems, double elems, bool json, Json& results) {
  if (json) return results.push_back(to_json(row, elems));
  const auto rate = [&](const Timed& timed) {
    return fmt::format("{:>5.1f} GB/s {:>4.0f} %", 4 * elems / median(timed.seconds) / 1e9,
                       100 * timed.fraction());
  };
  fmt::print("{:<14} {:>8.2f} % {:>18} {:>18} {:>18}\n", wire_name(row.format.type),
             100.0 * static_cast<double>(row.packet_bytes) / static_cast<double>(4 * row_elems),
             rate(row.pack), rate(row.keep), rate(row.unpack));
}

void add_bench_wire(CLI::App& bench, Run& run) {
  auto options = std::make_shared<WireBench>();
  CLI::App* wire = bench.add_subcommand(
      "wire", "Packing for compressed messages, against plain reads and writes of as many bytes");
  wire->add_option("--size", options->size, "Numbers of each thread, as bytes of fp32")
      ->capture_default_str();
  wire->add_option("--device", options->device,
                   "cpu, cuda or cuda:N: a card, in its memory, against copies of as many bytes")
      ->capture_default_str();
  wire->add_option("--threads", options->threads, "Threads, each with numbers of its own")
      ->check(at_least(1))
      ->capture_default_str();
  wire->add_option("--block-size", options->block, "As compression.block_size")
      ->check(at_least(1))
      ->capture_default_str();
  wire->add_option("--density", options->density, "As compression.density")->capture_default_str();
  wire->add_flag("--stochastic", options->stochastic, "Round bf16, int8 and int4 by draws");
  wire->add_option("--repeats", options->repeats, "Timed repeats of each")
      ->check(at_least(1))
      ->capture_default_str();
  wire->add_flag("--json", options->json, "One JSON object instead of text");
  wire->footer("Example:\n  onefold bench wire --threads 2");
  wire->callback([options, &run] { run = [options] { return run_wire(*options); }; });
}

}  // namespace onefold::cli

#include "comm/wire.h"

#include <cmath>

#include "comm/wire_parts.h"

namespace onefold {
namespace {

using Type = WireFormat::Type;

constexpr std::array<const char*, 12> kNames = {"none",    "bf16",   "int8",         "int4",
                                                "1bit",    "topk",   "topk_sampled", "threshold",
                                                "randomk", "blocks", "rows",         "importance"};

// For each element, by format.
struct Nanoseconds {
  double pack = 0, unpack = 0, draw = 0;
};
constexpr std::array<Nanoseconds, 12> kNanoseconds = {
    Nanoseconds{}, {0.75, 0.25, 1.2}, {0.7, 0.2, 1.2}, {0.75, 0.2, 1.2},
    {0.7, 0.2},    {0.7, 0.05},       {0.7, 0.05},     {0.65, 0.05},
    {0.65, 0.05},  {0.6, 0.05},       {0.65, 0.05},    {0.75, 0.05}};

// On a card: an H200's time (`bench wire --device cuda`, with error feedback), as bytes at its
// memory's rate.
struct CardBytes {
  double pack = 0, unpack = 0;
};
constexpr std::array<CardBytes, 12> kCardBytes = {CardBytes{}, {21, 9}, {22, 7}, {23, 9},
                                                  {25, 7},     {72, 7}, {51, 7}, {49, 5},
                                                  {44, 7},     {40, 4}, {0, 0},  {0, 0}};

// Elements that a stretch has about: 16 KiB.
constexpr int64_t kStretch = 4096;

}  // namespace

Wire::Squares Wire::pack(std::span<float> values, const WireDraw& draw, std::byte* packet) {
  Squares squares{.given = measure(values).squares};
  encode(values, draw, packet);
  apply(packet, draw, Apply::subtract, values);
  squares.lost = measure(values).squares;
  return squares;
}

namespace wire {

void DenseWire::encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) {
  const auto elems = static_cast<int64_t>(values.size());
  finish(packet, elems);
  encode_part(values, {0, elems}, draw, packet);
}

void DenseWire::apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) {
  require(how != Apply::clear, "a dense packet sends every element");
  apply_part(packet, {0, static_cast<int64_t>(dst.size())}, how, dst);
}

Wire::Squares DenseWire::pack(std::span<float> values, const WireDraw& draw, std::byte* packet) {
  const auto elems = static_cast<int64_t>(values.size());
  const int64_t length = round_up(kStretch, 8 * block_);
  Squares squares;
  finish(packet, elems);
  for (int64_t begin = 0; begin < elems; begin += length) {
    const Stretch part{begin, std::min(begin + length, elems)};
    const Squares here = keep_part(values, part, draw, packet);
    squares.given += here.given;
    squares.lost += here.lost;
  }
  return squares;
}

Wire::Squares DenseWire::keep_part(std::span<float> values, Stretch part, const WireDraw& draw,
                                   std::byte* packet) {
  const auto here =
      values.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin));
  Squares squares{.given = measure(here).squares};
  encode_part(values, part, draw, packet);
  apply_part(packet, part, Apply::subtract, values);
  squares.lost = measure(here).squares;
  return squares;
}

}  // namespace wire

const char* wire_name(Type type) { return kNames[static_cast<size_t>(type)]; }

std::vector<std::string> wire_names() { return {kNames.begin(), kNames.end()}; }

Type wire_type(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<Type>(i);
  internal_error("there is no wire format \"{}\"", name);
}

std::string describe(const WireFormat& format) {
  std::string text = wire_name(format.type);
  if (format.type == Type::int8 || format.type == Type::int4 || format.type == Type::sign)
    text += fmt::format(" with a scale for each {}", format.block);
  if (format.stochastic && !format.sparse()) text += ", rounded stochastically";
  if (format.type == Type::threshold) text += fmt::format(" {:g}", format.least);
  if (format.type == Type::blocks) text += fmt::format(" of {}", format.block);
  if (format.sparse()) text += fmt::format(", {:g} % of the elements", 100 * format.density);
  return text;
}

PackCost pack_cost(const WireFormat& format, int64_t packed, int64_t unpacked) {
  if (format.none()) return {};
  const auto type = static_cast<size_t>(format.type);
  const Nanoseconds& per = kNanoseconds[type];
  const auto of = [&](double pack, double unpack) {
    return static_cast<double>(packed) * pack + static_cast<double>(unpacked) * unpack;
  };
  return {1e-9 * of(per.pack + (format.stochastic ? per.draw : 0), per.unpack),
          of(kCardBytes[type].pack, kCardBytes[type].unpack)};
}

std::unique_ptr<Wire> make_wire(const WireFormat& format) {
  require(format.none() || format.block > 0, "a wire format of blocks of {}", format.block);
  switch (format.type) {
    case Type::none:
      break;
    case Type::bf16:
      return wire::make_bf16(format);
    case Type::int8:
      return wire::make_int8(format);
    case Type::int4:
      return wire::make_int4(format);
    case Type::sign:
      return wire::make_sign(format);
    case Type::topk:
      return wire::make_topk(format);
    case Type::sampled:
      return wire::make_sampled(format);
    case Type::threshold:
      return wire::make_threshold(format);
    case Type::randomk:
      return wire::make_randomk(format);
    case Type::blocks:
      return wire::make_blocks(format);
    case Type::rows:
      return wire::make_rows(format);
    case Type::importance:
      return wire::make_importance(format);
  }
  internal_error("there is no packet of format {}", wire_name(format.type));
}

}  // namespace onefold

// What travels in the place of fp32 numbers. A wire format makes a packet of so many numbers, whose
// length follows from their count alone, and numbers of a packet. Each format is one file
// (wire_*.cpp); all of it is host code on the calling thread, and nothing is kept from one call to
// the next. The same numbers and the same draw always make the same packet, so bits repeat wherever
// it is made.
//
// Every format promises:
// - a bound on |x - decoded x|, which its file derives;
// - that what is not finite is still so after the sum: the packet of numbers of which one is
//   infinite or no number decodes to something that is not finite;
// - that `subtract` leaves x - decoded x, exactly where its file says so, and finite numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/packing.h"
#include "kernels/wire_format.h"

namespace onefold {

const char* wire_name(WireFormat::Type type);  // as configurations call it
std::vector<std::string> wire_names();         // of all, in order
WireFormat::Type wire_type(const std::string& name);
// "int8 in blocks of 256", "topk, 1 % of the elements"
std::string describe(const WireFormat& format);

class Wire {
 public:
  explicit Wire(const WireFormat& format) : format_(format) {}
  virtual ~Wire() = default;
  const WireFormat& format() const { return format_; }
  // A multiple of 4.
  virtual int64_t packet_bytes(int64_t elems) const = 0;
  // `values` is only read; packets are aligned to 4 bytes.
  virtual void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) = 0;
  virtual void apply(const std::byte* packet, const WireDraw& draw, Apply how,
                     std::span<float> dst) = 0;
  // encode(), and `values` become what the packet lacks: sums of squares of what was given and of
  // what is left.
  using Squares = WireSquares;
  virtual Squares pack(std::span<float> values, const WireDraw& draw, std::byte* packet);

 private:
  const WireFormat format_;
};

std::unique_ptr<Wire> make_wire(const WireFormat& format);

// What packing so many elements and unpacking so many takes, about, for plans: with error feedback.
// The seconds of one core, as measured on a server's; and the bytes that a card reads and writes.
struct PackCost {
  double core_seconds = 0, card_bytes = 0;
};
PackCost pack_cost(const WireFormat& format, int64_t packed, int64_t unpacked);

}  // namespace onefold

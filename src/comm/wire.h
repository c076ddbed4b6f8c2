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

#include "base/philox.h"
#include "kernels/packing.h"

namespace onefold {

struct WireFormat {
  enum class Type : uint8_t {
    none,       // fp32, as it is
    bf16,       //
    int8,       // with a scale for each block
    int4,       // the same
    sign,       // one bit, with the mean magnitude of each block
    topk,       // the largest, with their places
    sampled,    // those above a threshold that a sample gives, up to as many
    threshold,  // those from a given threshold on, up to as many
    randomk,    // one out of each of equal stretches, drawn alike on all ranks
    blocks,     // the blocks with the largest norms
    rows,       // the rows of matrices with the largest norms
    importance  // drawn in proportion to their magnitudes
  };
  Type type = Type::none;
  int64_t block = 256;      // elements that share a scale, or that are sent together
  bool stochastic = false;  // rounding of bf16, int8 and int4: by a draw, else to the nearest
  double density = 0.01;    // share of the elements that a sparse packet has room for
  double least = 0;         // threshold: the least magnitude

  bool none() const { return type == Type::none; }
  // Places are sent, or known: the rest of the numbers is 0.
  bool sparse() const { return type >= Type::topk; }
  bool operator==(const WireFormat&) const = default;
};

const char* wire_name(WireFormat::Type type);  // as configurations call it
std::vector<std::string> wire_names();         // of all, in order
WireFormat::Type wire_type(const std::string& name);
// "int8 in blocks of 256", "topk, 1 % of the elements"
std::string describe(const WireFormat& format);

// Random numbers of one packet: this rank's own, and those that all ranks have alike; and, alike
// too, the elements with which rows of matrices begin, from 0 on, where that is known.
struct WireDraw {
  PhiloxKey own, common;
  std::span<const int64_t> rows = {};
};

class Wire {
 public:
  virtual ~Wire() = default;
  // A multiple of 4.
  virtual int64_t packet_bytes(int64_t elems) const = 0;
  // `values` is only read; packets are aligned to 4 bytes.
  virtual void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) = 0;
  virtual void apply(const std::byte* packet, const WireDraw& draw, Apply how,
                     std::span<float> dst) = 0;
  // encode(), and `values` become what the packet lacks: sums of squares of what was given and of
  // what is left.
  struct Squares {
    double given = 0, lost = 0;
  };
  virtual Squares pack(std::span<float> values, const WireDraw& draw, std::byte* packet);
};

std::unique_ptr<Wire> make_wire(const WireFormat& format);

// What packing so many elements and unpacking so many takes one core, about, for plans: with error
// feedback, as measured on a core of a server.
double pack_seconds(const WireFormat& format, int64_t packed, int64_t unpacked);

// The elements that a sparse packet has room for: at least one.
int64_t sent_elems(double density, int64_t elems);

}  // namespace onefold

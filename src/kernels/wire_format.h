// What a wire format is: comm/wire.h has its packets, kernels/packer.h makes them of a device's
// memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/philox.h"

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

// Random numbers of one packet: this rank's own, and those that all ranks have alike; and, alike
// too, the elements with which rows of matrices begin, from 0 on, where that is known.
struct WireDraw {
  PhiloxKey own, common;
  std::span<const int64_t> rows = {};
};

// Elements [begin, end) of a slab travel multiplied by a number, and arrive without it: numbers of
// one size share a packet's scales better.
struct SlabScale {
  int64_t begin = 0, end = 0;
  float scale = 1;
};

// Sums of squares: of numbers that were given, and of what their packets lack.
struct WireSquares {
  double given = 0, lost = 0;
};

// The elements that a sparse packet has room for: at least one. The product is rounded up; a
// hundredth of a hundred is one, whatever a double makes of it.
inline int64_t sent_elems(double density, int64_t elems) {
  const auto count =
      static_cast<int64_t>(std::ceil(density * static_cast<double>(elems) * (1 - 1e-12)));
  return std::clamp<int64_t>(count, 1, std::max<int64_t>(elems, 1));
}

}  // namespace onefold

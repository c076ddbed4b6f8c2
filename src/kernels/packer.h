// Makes packets of wire formats (comm/wire.h) of memory that the host does not reach, and numbers
// of packets: in the order of one lane, where the numbers lie. Packets of finite numbers have the
// bytes that the host would make of them. Nothing is read back: whether numbers are finite, and by
// how much a slab is scaled, stays on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/packer_scratch.h"
#include "kernels/packing.h"
#include "kernels/wire_format.h"
#include "tensor/tensor.h"

namespace onefold {

// Elements of a slab that one packet is made of, or becomes.
struct PackedPart {
  void* values = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f16
  int64_t elems = 0;
  // Where numbers are given, error feedback and its momentum, f32: null where there is none.
  float* kept = nullptr;
  float* velocity = nullptr;
  // Of these elements, in order and apart.
  std::span<const SlabScale> scales = {};
};

class Packer {
 public:
  virtual ~Packer() = default;

  // Room for what calls leave each other: of packer_scratch_bytes().
  virtual void set_scratch(void* memory, int64_t bytes) = 0;
  virtual void clear(void* data, int64_t bytes) = 0;
  // Remembers under a number whether all that a slab gives is finite, so many parts like the first
  // one, and the factor that limits its norm (limit 0: 1).
  struct Parts {
    int count = 1;
    int64_t stride = 0;  // in elements
  };
  virtual void look_at(int slab, const PackedPart& first, const Parts& parts, float limit) = 0;
  // With error feedback, which looks at its slab first: kept += what is given, as fold_gradient()
  // has it, times the slab's factor; then kept loses what the packet has. `masks`: of a sparse
  // packet, velocity too. A slab that is not finite changes neither, and its packets are not
  // finite.
  struct Feedback {
    int slab = 0;
    Fold fold;
    bool masks = false;
  };
  virtual void pack(const WireFormat& format, const PackedPart& part, const Feedback& feedback,
                    const WireDraw& draw, std::byte* packet) = 0;
  // part.values = the sum of so many packets, a stride apart, in their order, in fp32, without the
  // scales. `wide`: room for the elements in fp32, for those of another type.
  struct Packets {
    const std::byte* first = nullptr;
    int64_t stride = 0;
    int count = 1;
  };
  virtual void sum(const WireFormat& format, const Packets& packets, const PackedPart& part,
                   const WireDraw& draw, float* wide) = 0;

  // Around what is timed.
  virtual void begin() = 0;
  virtual void end() = 0;
  // Of all that has been packed, and the seconds that the lane took for it: waits for the lane.
  virtual WireSquares squares() = 0;
  virtual double seconds() = 0;
};

// Why a format's packets are not made on a card; empty: they are.
inline std::string obstacle_to_packing_on_cards(const WireFormat& format) {
  using Type = WireFormat::Type;
  if (format.type == Type::rows || format.type == Type::importance)
    return "is made by the processor alone";
  const bool coded =
      format.type == Type::int8 || format.type == Type::int4 || format.type == Type::sign;
  if (coded && format.block % 8 != 0) return "needs a block_size that is a multiple of 8";
  return "";
}

}  // namespace onefold

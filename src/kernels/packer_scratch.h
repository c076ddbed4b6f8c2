// What a Packer's calls leave each other in the device's memory: how it is cut, and how much it is.
#pragma once

#include <cstdint>

#include "kernels/wire_format.h"

namespace onefold {

namespace packing {
inline constexpr int64_t kTile = 4096;    // elements whose chosen ones are counted together
inline constexpr int64_t kBlocks = 1056;  // of a grid that leaves sums behind
inline constexpr int64_t kBins = 2048;    // of magnitudes
inline constexpr int64_t kTotalsBytes = 256;
}  // namespace packing

// Of slabs of which the longest shard has so many elements, and so many in a call.
inline int64_t packer_scratch_bytes(const WireFormat& format, int64_t shard_elems, int64_t slabs) {
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  int64_t bytes = aligned(slabs * 8) + aligned(packing::kBlocks * 24) + packing::kTotalsBytes;
  if (!format.sparse()) return bytes;
  int64_t parts = shard_elems;
  if (format.type == WireFormat::Type::blocks) {
    parts = (shard_elems + format.block - 1) / format.block;
    bytes += aligned(parts * 4);
  }
  return bytes + aligned(packing::kBins * 4) + aligned(64) +
         aligned((parts + packing::kTile - 1) / packing::kTile * 8);
}

}  // namespace onefold

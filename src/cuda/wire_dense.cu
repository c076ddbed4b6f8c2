// Wire formats that code every number at its place, as src/comm has them on the host, to the bit. A
// warp has a block of numbers with its scale; the numbers of a short block stay in registers
// between the sweep that finds the scale and the one that codes.
#include "cuda/wire.cuh"

namespace onefold::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kHeld = 8;  // numbers of a block that a lane holds in registers
// Blocks of threads that a multiprocessor has while packing. With 5 or 6 numbers do not fit into
// registers, and packing with feedback takes up to half as long again.
constexpr int kBlocksAtOnce = 4;
constexpr int64_t kWholeBlock = kHeld * kWarp;

__device__ float bf16_value(uint32_t code) { return __uint_as_float(code << 16); }

// Codes of a format: what a lane has seen of a block (see(), of 32 neighbours, all lanes together);
// the scale that follows from all lanes'; and code(), which stores the code of number i of a block
// whose codes begin at `codes`, and gives what it stands for, again all lanes together. A lane's
// `in` says whether there is such a number.
struct Bf16 {
  static constexpr int kBits = 16;
  using Scale = int;
  struct Seen {
    __device__ void see(float, bool) {}
  };
  __device__ static Scale scale(const Seen&, int64_t) { return 0; }
  __device__ static void store_scale(Scale, uint16_t*) {}
  __device__ static Scale load_scale(const uint16_t*) { return 0; }
  static constexpr int kScaleBytes = 0;

  // As wire_bf16.cpp: what is finite stays so.
  __device__ static float code(float value, Scale, const uint32_t* word, bool in, std::byte* codes,
                               int64_t i) {
    const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFFu;
    const uint32_t added = word != nullptr ? *word >> 16 : ((bits >> 16) & 1u) + 0x7FFFu;
    uint32_t rounded = min(magnitude + added, kInfiniteBits - 1);
    if (magnitude >= kInfiniteBits)
      rounded = magnitude > kInfiniteBits ? 0x7FC00000u : kInfiniteBits;
    const uint32_t code = (rounded | (bits & 0x80000000u)) >> 16;
    if (in) reinterpret_cast<uint16_t*>(codes)[i] = static_cast<uint16_t>(code);
    return bf16_value(code);
  }
  __device__ static float decode(const std::byte* codes, int i, Scale) {
    return bf16_value(reinterpret_cast<const uint16_t*>(codes)[i]);
  }
};

__device__ int32_t clamped(int32_t level, int32_t most) { return max(-most, min(level, most)); }

// As wire_int.h: the scale is the largest magnitude over the most levels, rounded up to bf16.
template <int kLevels>
struct Int {
  static constexpr int kBits = kLevels == 127 ? 8 : 4;
  static constexpr uint32_t kNoScale = 0x7FC0u;
  struct Scale {
    uint32_t code;
    float inverse = 0;
    __device__ bool none() const { return code == kNoScale; }
    __device__ float unit() const { return bf16_value(code); }
  };
  struct Seen {
    uint32_t largest = 0;
    __device__ void see(float value, bool in) {
      if (in) largest = max(largest, magnitude_of(value));
    }
  };
  __device__ static Scale scale(const Seen& seen, int64_t) {
    const uint32_t most = __reduce_max_sync(~0u, seen.largest);
    if (most >= kInfiniteBits) return {kNoScale};
    const float scale = __uint_as_float(most) / static_cast<float>(kLevels);
    const uint32_t upper = (__float_as_uint(scale) + 0xFFFFu) >> 16;
    const uint32_t code =
        is_finite(static_cast<float>(kLevels) * bf16_value(upper)) ? max(upper, 1u) : upper - 1;
    return {code, 1.0f / bf16_value(code)};
  }
  __device__ static void store_scale(Scale scale, uint16_t* to) {
    *to = static_cast<uint16_t>(scale.code);
  }
  __device__ static Scale load_scale(const uint16_t* from) { return Scale{*from}; }
  static constexpr int kScaleBytes = 2;

  __device__ static float code(float value, Scale scale, const uint32_t* word, bool in,
                               std::byte* codes, int i) {
    int32_t level = 0;
    if (in && !scale.none()) {
      if (word != nullptr)
        level = static_cast<int32_t>(floorf(value / scale.unit() + philox_unit(*word)));
      else
        level = nearest(value, scale);
      level = clamped(level, kLevels);
    }
    store(level, in, codes, i);
    return scale.none() ? value : static_cast<float>(level) * scale.unit();
  }
  __device__ static float decode(const std::byte* codes, int i, Scale scale) {
    return static_cast<float>(level_of(codes, i)) * scale.unit();
  }

 private:
  // The addition rounds. A product with the inverse is near enough to the quotient, but for where
  // it is about in the middle of two levels; it is no number, or too large, where the inverse is.
  __device__ static int32_t nearest(float value, Scale scale) {
    const float whole = 0x1.8p23f;
    const float ratio = value * scale.inverse;
    float rounded = ratio + whole;
    if (!(fabsf(ratio - (rounded - whole)) < 0.499f)) rounded = value / scale.unit() + whole;
    return __float_as_int(rounded) - __float_as_int(whole);
  }
  __device__ static float philox_unit(uint32_t word) {
    return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
  }
  __device__ static void store(int32_t level, bool in, std::byte* codes, int i) {
    if constexpr (kLevels == 127) {
      if (in) reinterpret_cast<int8_t*>(codes)[i] = static_cast<int8_t>(level);
    } else {  // a pair of neighbours makes a byte; an odd number's last one has zero beside it
      const uint32_t own = static_cast<uint32_t>(level + 8);
      const uint32_t next = __shfl_down_sync(~0u, own, 1);
      if (in && i % 2 == 0) reinterpret_cast<uint8_t*>(codes)[i / 2] = own | next << 4;
    }
  }
  __device__ static int32_t level_of(const std::byte* codes, int i) {
    if constexpr (kLevels == 127) return reinterpret_cast<const int8_t*>(codes)[i];
    const uint32_t pair = reinterpret_cast<const uint8_t*>(codes)[i / 2];
    return static_cast<int32_t>(i % 2 == 0 ? pair & 15u : pair >> 4) - 8;
  }
};

// As wire_sign.cpp: the mean magnitude, whose sum is in double, of every sixteenth number, added by
// a tree.
struct Sign {
  static constexpr int kBits = 1;
  static constexpr uint32_t kNoMean = 0x7FC0u;
  struct Scale {
    uint32_t code;
    __device__ bool none() const { return code == kNoMean; }
  };
  struct Seen {
    uint32_t largest = 0;
    double sum = 0;  // of the lower sixteen lanes
    __device__ void see(float value, bool in) {
      const float own = in ? fabsf(value) : 0.0f;
      largest = max(largest, magnitude_of(own));
      sum += static_cast<double>(own);
      sum += static_cast<double>(__shfl_down_sync(~0u, own, 16));
    }
  };
  __device__ static Scale scale(const Seen& seen, int64_t elems) {
    const uint32_t largest = __reduce_max_sync(~0u, seen.largest);
    double sum = seen.sum;
    for (int half = 8; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
    sum = __shfl_sync(~0u, sum, 0);
    if (largest >= kInfiniteBits) return {kNoMean};
    const float mean = static_cast<float>(sum / static_cast<double>(elems));
    const uint32_t bits = __float_as_uint(mean);
    const uint32_t code = (bits + ((bits >> 16) & 1u) + 0x7FFFu) >> 16;
    return {min(code, 0x7F7Fu)};
  }
  __device__ static void store_scale(Scale scale, uint16_t* to) {
    *to = static_cast<uint16_t>(scale.code);
  }
  __device__ static Scale load_scale(const uint16_t* from) { return Scale{*from}; }
  static constexpr int kScaleBytes = 2;

  __device__ static float code(float value, Scale scale, const uint32_t*, bool in, std::byte* codes,
                               int64_t i) {
    const uint32_t signs = __ballot_sync(~0u, in && __float_as_int(value) < 0);
    const uint32_t valid = __ballot_sync(~0u, in);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    // The first lanes have a byte each, of as many numbers as there are.
    if (lane < 4 && (valid >> (8 * lane) & 0xFFu) != 0)
      reinterpret_cast<uint8_t*>(codes)[(i - lane) / 8 + lane] =
          static_cast<uint8_t>(signs >> (8 * lane));
    if (scale.none()) return value;
    return __uint_as_float(scale.code << 16 | (__float_as_uint(value) & 0x80000000u));
  }
  __device__ static float decode(const std::byte* codes, int i, Scale scale) {
    const uint32_t byte = reinterpret_cast<const uint8_t*>(codes)[i / 8];
    return __uint_as_float(scale.code << 16 | (byte >> (i % 8) & 1u) << 31);
  }
};

// A block of numbers that a warp has, of which a lane has every 32nd.
struct Block {
  int64_t number, first;
  int elems;
  __device__ bool has(int step) const { return step * kWarp < elems; }
  __device__ static int place(int step) {
    return step * kWarp + static_cast<int>(threadIdx.x % kWarp);
  }
};

template <class Visit>
__device__ void each_block(int64_t elems, int64_t block, const Visit& visit) {
  const int64_t blocks = ceil_div(elems, block);
  for (int64_t b = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; b < blocks;
       b += int64_t{gridDim.x} * kWarps)
    visit(Block{b, b * block, static_cast<int>(min(block, elems - b * block))});
}

__device__ int64_t scale_bytes(int64_t elems, int64_t block, int bytes) {
  return ceil_div(elems, block) * bytes;
}

// take() of what a lane holds of a block. All that is read is under way before anything is stored,
// which for the compiler may be what is read next.
template <class T>
__device__ void take_held(const Numbers<T>& numbers, const WireScales& scales, const Block& block,
                          float (&held)[kHeld]) {
  const auto each = [&](const auto& visit) {
#pragma unroll
    for (int step = 0; step < kHeld; ++step)
      if (Block::place(step) < block.elems) visit(step, block.first + Block::place(step));
  };
#pragma unroll
  for (int step = 0; step < kHeld; ++step) held[step] = 0.0f;
  each([&](int step, int64_t i) { held[step] = widen(numbers.values[i]); });
  if (!numbers.folds) return;
  float before[kHeld], speed[kHeld] = {};
  each([&](int step, int64_t i) { before[step] = numbers.kept[i]; });
  if (numbers.velocity != nullptr)
    each([&](int step, int64_t i) { speed[step] = numbers.velocity[i]; });
  each([&](int step, int64_t i) {
    held[step] = numbers.folded(held[step], before[step], speed[step], scales, i);
  });
  if (numbers.velocity != nullptr)
    each([&](int step, int64_t i) { numbers.velocity[i] = speed[step]; });
}

template <class T, class Format>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    pack_kernel(__grid_constant__ const GivenShard given, int64_t block, bool stochastic,
                PhiloxKey draw, std::byte* packet, BlockSquares* partials) {
  const Numbers<T> numbers(given);
  std::byte* const all_codes = packet + scale_bytes(given.elems, block, Format::kScaleBytes);
  double squares = 0, lost = 0;
  each_block(given.elems, block, [&](const Block& here) {
    std::byte* const codes = all_codes + here.first * Format::kBits / 8;
    typename Format::Seen seen;
    float held[kHeld];
    const auto take = [&](int step) {
      const int i = Block::place(step);
      const float value = i < here.elems ? numbers.take(given.scales, here.first + i) : 0.0f;
      seen.see(value, i < here.elems);
      return value;
    };
    take_held(numbers, given.scales, here, held);
#pragma unroll
    for (int step = 0; step < kHeld; ++step)
      if (here.has(step)) seen.see(held[step], Block::place(step) < here.elems);
    for (int step = kHeld; here.has(step); ++step) {
      const float value = take(step);
      if (numbers.folds && Block::place(step) < here.elems)
        numbers.kept[here.first + Block::place(step)] = value;
    }
    const typename Format::Scale scale = Format::scale(seen, here.elems);
    if (threadIdx.x % kWarp == 0)
      Format::store_scale(scale, reinterpret_cast<uint16_t*>(packet) + here.number);
    const auto put = [&](int step, float value) {
      const int i = Block::place(step);
      const bool in = i < here.elems;
      uint32_t word = 0;
      if (stochastic) word = drawn_word(draw, here.first + i);
      const float sent = Format::code(value, scale, stochastic ? &word : nullptr, in, codes, i);
      if (!in) return;
      float left = value - sent;
      if (!is_finite(left)) left = 0.0f;
      if (numbers.folds) numbers.kept[here.first + i] = left;
      squares = add_square(squares, value);
      lost = add_square(lost, left);
    };
#pragma unroll
    for (int step = 0; step < kHeld; ++step)
      if (here.has(step)) put(step, held[step]);
    for (int step = kHeld; here.has(step); ++step) {
      const int64_t at = here.first + Block::place(step);
      float value = 0.0f;
      if (Block::place(step) < here.elems)
        value = numbers.folds ? numbers.kept[at] : widen(numbers.values[at]);
      put(step, value);
    }
  });
  leave_squares(squares, lost, partials);
}

template <class T, class Format>
__global__ void sum_kernel(__grid_constant__ const SummedShard sum,
                           __grid_constant__ const Received packets, int64_t block) {
  T* const dst = static_cast<T*>(sum.values);
  const int64_t codes_at = scale_bytes(sum.elems, block, Format::kScaleBytes);
  each_block(sum.elems, block, [&](const Block& here) {
    const int64_t codes_here = codes_at + here.first * Format::kBits / 8;
    for (int part = 0; part < here.elems; part += kHeld * kWarp) {
      float sums[kHeld];
      for (int source = 0; source < packets.count; ++source) {
        const std::byte* const packet = packets.first + source * packets.stride;
        const typename Format::Scale scale =
            Format::load_scale(reinterpret_cast<const uint16_t*>(packet) + here.number);
#pragma unroll
        for (int step = 0; step < kHeld; ++step) {
          const int i = part + Block::place(step);
          if (i >= here.elems) continue;
          const float value = Format::decode(packet + codes_here, i, scale);
          sums[step] = source == 0 ? value : sums[step] + value;
        }
      }
#pragma unroll
      for (int step = 0; step < kHeld; ++step) {
        const int i = part + Block::place(step);
        if (i >= here.elems) continue;
        float value = sums[step];
        if (sum.scales.count > 0) value = unscaled(value, sum.scales, here.first + i);
        dst[here.first + i] = narrow<T>(value);
      }
    }
  });
}

template <class Call>
void with_format(Codes codes, const Call& call) {
  switch (codes) {
    case Codes::bf16:
      return call(Bf16{});
    case Codes::int8:
      return call(Int<127>{});
    case Codes::int4:
      return call(Int<7>{});
    case Codes::sign:
      return call(Sign{});
  }
}

int64_t block_of(const DensePacket& format) {
  return format.codes == Codes::bf16 ? kWholeBlock : format.block;
}

__global__ void add_squares_kernel(const BlockSquares* partials, int64_t blocks,
                                   BlockSquares* totals) {
  double sums[2] = {0, 0};
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    sums[0] += partials[b].given;
    sums[1] += partials[b].lost;
  }
  team_sums<kThreads>(sums);
  if (threadIdx.x != 0 || !isfinite(sums[0]) || !isfinite(sums[1])) return;
  totals->given += sums[0];
  totals->lost += sums[1];
}

template <class T>
__global__ void look_kernel(const SlabParts parts, SlabPartial* partials) {
  double squares = 0;
  uint32_t largest = 0;
  for (int part = 0; part < parts.count; ++part) {
    const T* const values = static_cast<const T*>(parts.values) + part * parts.stride;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < parts.elems;
         i += int64_t{gridDim.x} * kThreads) {
      const float value = widen(values[i]);
      largest = max(largest, magnitude_of(value));
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  squares = team_sum<kThreads>(squares);
  const bool infinite = __syncthreads_or(largest >= kInfiniteBits) != 0;
  if (threadIdx.x == 0) partials[blockIdx.x] = {squares, infinite ? kInfiniteBits : 0};
}

__global__ void flags_kernel(const SlabPartial* partials, int64_t blocks, float limit,
                             SlabFlags* flags) {
  double squares = 0;
  bool infinite = false;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    squares += partials[b].squares;
    infinite = infinite || partials[b].largest >= kInfiniteBits;
  }
  squares = team_sum<kThreads>(squares);
  infinite = __syncthreads_or(infinite) != 0;
  if (threadIdx.x != 0) return;
  const double norm = sqrt(squares);
  flags->not_finite = infinite ? 1 : 0;
  flags->factor = limit > 0 && norm > static_cast<double>(limit)
                      ? static_cast<float>(static_cast<double>(limit) / norm)
                      : 1.0f;
}

}  // namespace

void add_squares(const BlockSquares* partials, int64_t blocks, BlockSquares* totals,
                 cudaStream_t stream) {
  launch(add_squares_kernel, grid_of(1), kThreads, 0, stream, partials, blocks, totals);
}

void look_at_slab(const SlabParts& parts, float limit, SlabPartial* partials, SlabFlags* flags,
                  cudaStream_t stream) {
  const int64_t blocks = wire_blocks(ceil_div(parts.elems, int64_t{kThreads} * 8));
  with_type(parts.type, [&](auto element) {
    launch(look_kernel<decltype(element)>, grid_of(blocks), kThreads, 0, stream, parts, partials);
  });
  launch(flags_kernel, grid_of(1), kThreads, 0, stream, partials, blocks, limit, flags);
}

void pack_dense(const DensePacket& format, const GivenShard& given, PhiloxKey draw,
                std::byte* packet, BlockSquares* partials, BlockSquares* totals,
                cudaStream_t stream) {
  const int64_t block = block_of(format);
  const int64_t blocks = wire_blocks(ceil_div(ceil_div(given.elems, block), int64_t{kWarps}));
  with_type(given.type, [&](auto element) {
    with_format(format.codes, [&](auto codes) {
      launch(pack_kernel<decltype(element), decltype(codes)>, grid_of(blocks), kThreads, 0, stream,
             given, block, format.stochastic, draw, packet, partials);
    });
  });
  if (blocks > 0) add_squares(partials, blocks, totals, stream);
}

void sum_dense(const DensePacket& format, const Received& packets, const SummedShard& sum,
               cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 132 * 16;
  const int64_t block = block_of(format);
  const int64_t blocks =
      std::min(ceil_div(ceil_div(sum.elems, block), int64_t{kWarps}), kMostBlocks);
  with_type(sum.type, [&](auto element) {
    with_format(format.codes, [&](auto codes) {
      launch(sum_kernel<decltype(element), decltype(codes)>, grid_of(blocks), kThreads, 0, stream,
             sum, packets, block);
    });
  });
}

}  // namespace onefold::cuda

#include "io/quantized.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/gguf.h"
#include "base/half.h"
#include "io/half.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr double kSmallestHalf = 0x1p-24;  // also the distance of the f16 numbers around 0

struct Q8Block {
  uint16_t d;
  std::array<int8_t, 32> q;
};
static_assert(sizeof(Q8Block) == 34);

struct Q4Block {
  static constexpr int kGroups = 8, kGroup = 32;
  uint16_t d, m;
  std::array<uint8_t, 12> scales;
  std::array<uint8_t, 128> q;

  // Of each group 6 bits of s and 6 of t. The first four groups' are the low bits of bytes 0 to 3
  // and 4 to 7; the last four have their low halves in bytes 8 to 11, and their high bits on top of
  // the others'.
  int scale(int group) const { return packed(group, 0); }
  int offset(int group) const { return packed(group, 4); }
  void set(int group, int s, int t) {
    const auto g = static_cast<size_t>(group);
    if (group < 4) {
      scales[g] = static_cast<uint8_t>((scales[g] & 0xC0) | s);
      scales[g + 4] = static_cast<uint8_t>((scales[g + 4] & 0xC0) | t);
    } else {
      scales[g + 4] = static_cast<uint8_t>((s & 15) | t << 4);
      scales[g - 4] = static_cast<uint8_t>((scales[g - 4] & 0x3F) | (s >> 4) << 6);
      scales[g] = static_cast<uint8_t>((scales[g] & 0x3F) | (t >> 4) << 6);
    }
  }
  // Groups go in pairs: the first of a pair has the low halves of 32 bytes, the second the high.
  int code(int group, int at) const {
    const uint8_t both = q[static_cast<size_t>(group / 2 * kGroup + at)];
    return group % 2 == 0 ? both & 15 : both >> 4;
  }
  void set_code(int group, int at, int code) {
    q[static_cast<size_t>(group / 2 * kGroup + at)] |=
        static_cast<uint8_t>(group % 2 == 0 ? code : code << 4);
  }

 private:
  int packed(int group, int base) const {
    const auto g = static_cast<size_t>(group);
    const auto b = static_cast<size_t>(base);
    if (group < 4) return scales[g + b] & 0x3F;
    const int low = base == 0 ? scales[g + 4] & 15 : scales[g + 4] >> 4;
    return low | (scales[g - 4 + b] >> 6) << 4;
  }
};
static_assert(sizeof(Q4Block) == 144);

void unpack(const Q8Block& block, std::span<float, 32> dst) {
  const float d = f16_to_f32(block.d);
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = d * static_cast<float>(block.q[i]);
}

void unpack(const Q4Block& block, std::span<float, 256> dst) {
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  for (int g = 0; g < Q4Block::kGroups; ++g) {
    const float s = d * static_cast<float>(block.scale(g));
    const float t = m * static_cast<float>(block.offset(g));
    for (int i = 0; i < Q4Block::kGroup; ++i)
      dst[static_cast<size_t>(g * Q4Block::kGroup + i)] =
          s * static_cast<float>(block.code(g, i)) - t;
  }
}

template <typename Block, size_t kElems>
void read_blocks(std::span<const std::byte> tensor, int64_t first, std::span<float> dst) {
  std::array<float, kElems> values;
  auto at = static_cast<size_t>(first);
  for (size_t done = 0; done < dst.size();) {
    const size_t block = at / kElems, skipped = at % kElems;
    Block packed;
    std::memcpy(&packed, tensor.subspan(block * sizeof(Block), sizeof(Block)).data(),
                sizeof(Block));
    unpack(packed, values);
    const size_t count = std::min(kElems - skipped, dst.size() - done);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(skipped), count,
                dst.begin() + static_cast<ptrdiff_t>(done));
    done += count;
    at += count;
  }
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// An f16 that is at least the value, so that codes need not be cut off: the nearest, or the next.
uint16_t half_at_least(float value) {
  const uint16_t bits = f32_to_f16(value);
  return f16_to_f32(bits) < value ? static_cast<uint16_t>(bits + 1) : bits;
}

bool pack(std::span<const float, 32> values, Q8Block& block) {
  const float largest = largest_magnitude(values);
  if (largest > 127 * kLargestHalf) return false;
  block.d = half_at_least(largest / 127);
  const float d = f16_to_f32(block.d);
  for (size_t i = 0; i < values.size(); ++i)
    block.q[i] = static_cast<int8_t>(
        d == 0 ? 0 : std::clamp(std::nearbyint(values[i] / d), -127.0f, 127.0f));
  return true;
}

// A group as steps of `scale` upwards from `low`, which is not above 0.
struct Grid {
  float scale = 0, low = 0;

  int code(float value) const {
    if (!(scale > 0)) return 0;
    return static_cast<int>(std::clamp(std::nearbyint((value - low) / scale), 0.0f, 15.0f));
  }
  float value(int code) const { return scale * static_cast<float>(code) + low; }
};

struct GridError {
  double squares = 0, largest = 0;
};

GridError error_of(const Grid& grid, std::span<const float> values) {
  GridError error;
  for (const float value : values) {
    const double distance = std::fabs(value - double{grid.value(grid.code(value))});
    error.squares += distance * distance;
    error.largest = std::max(error.largest, distance);
  }
  return error;
}

// The line through (code, value) with the least squares, not above 0 at code 0.
Grid fitted(const Grid& grid, std::span<const float> values) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const float value : values) {
    const double code = grid.code(value);
    n += 1, x += code, y += value, xx += code * code, xy += code * value;
  }
  const double spread = n * xx - x * x;
  if (spread <= 0) return grid;
  double scale = (n * xy - x * y) / spread;
  double low = (y - scale * x) / n;
  if (low > 0) {
    low = 0;
    scale = xy / xx;
  }
  if (!(scale > 0)) return grid;
  return {static_cast<float>(scale), static_cast<float>(low)};
}

constexpr float kWidest = 1.15f;

// From the least to the largest value in 15 steps, unless a grid of a little other width has less
// error in squares and no value farther away than one of those steps.
Grid best_grid(std::span<const float> values) {
  const auto [least, most] = std::ranges::minmax(values);
  Grid best;
  best.low = std::min(0.0f, least);
  const float width = std::max(0.0f, most) - best.low;
  if (!(width > 0)) return best;
  const float step = width / 15;
  best.scale = step;
  if (!std::isfinite(width)) return best;
  GridError error = error_of(best, values);
  const float low = best.low;
  for (const float steps : {13.5f, 14.0f, 14.5f, 15.0f, 15.5f, 16.0f, 16.5f}) {
    const Grid grid = fitted({width / steps, low}, values);
    if (grid.scale > kWidest * step || grid.low < low - step) continue;
    const GridError other = error_of(grid, values);
    if (other.squares >= error.squares || other.largest > step) continue;
    best = grid;
    error = other;
  }
  return best;
}

bool pack(std::span<const float, 256> values, Q4Block& block) {
  std::array<Grid, Q4Block::kGroups> grids;
  float scale = 0, offset = 0;
  for (int g = 0; g < Q4Block::kGroups; ++g) {
    Grid& grid = grids[static_cast<size_t>(g)];
    grid = best_grid(values.subspan(static_cast<size_t>(g) * Q4Block::kGroup, Q4Block::kGroup));
    scale = std::max(scale, grid.scale);
    offset = std::max(offset, -grid.low);
  }
  if (!(scale <= 63 * kLargestHalf) || !(offset <= 63 * kLargestHalf)) return false;
  block.d = half_at_least(scale / 63);
  block.m = half_at_least(offset / 63);
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  const auto in_steps = [](float value, float step) {
    return step == 0 ? 0 : static_cast<int>(std::min(63.0f, std::nearbyint(value / step)));
  };
  block.scales.fill(0);
  block.q.fill(0);
  for (int g = 0; g < Q4Block::kGroups; ++g) {
    const Grid& wanted = grids[static_cast<size_t>(g)];
    const int s = in_steps(wanted.scale, d), t = in_steps(-wanted.low, m);
    block.set(g, s, t);
    const Grid grid{d * static_cast<float>(s), -m * static_cast<float>(t)};
    for (int i = 0; i < Q4Block::kGroup; ++i)
      block.set_code(g, i, grid.code(values[static_cast<size_t>(g * Q4Block::kGroup + i)]));
  }
  return true;
}

template <typename Block, size_t kElems>
int64_t write_blocks(std::span<const float> src, std::span<std::byte> dst) {
  require(src.size() % kElems == 0 && dst.size() == src.size() / kElems * sizeof(Block),
          "{} values in {} bytes", src.size(), dst.size());
  int64_t lost = 0;
  for (size_t block = 0; block < src.size() / kElems; ++block) {
    const std::span<const float, kElems> values(src.data() + block * kElems, kElems);
    const auto bad = std::ranges::count_if(values, [](float v) { return !std::isfinite(v); });
    Block packed{};
    if (bad > 0)
      lost += bad;
    else if (!pack(values, packed))
      lost += static_cast<int64_t>(kElems);
    std::memcpy(dst.data() + block * sizeof(Block), &packed, sizeof(Block));
  }
  return lost;
}

}  // namespace

bool is_readable_dtype(const std::string& dtype) {
  return is_float_dtype(dtype) || dtype == "Q8_0" || dtype == "Q4_K";
}

int64_t dtype_bytes(const std::string& dtype, int64_t elems) {
  if (!is_readable_dtype(dtype)) return 0;
  const GgmlType* const type = ggml_type_named(dtype);
  if (type) return elems / type->elems * type->bytes;
  return elems * safetensors_dtype_bytes(dtype);
}

void read_values(const std::string& dtype, std::span<const std::byte> tensor, int64_t first,
                 std::span<float> dst) {
  if (dtype == "Q8_0") return read_blocks<Q8Block, 32>(tensor, first, dst);
  if (dtype == "Q4_K") return read_blocks<Q4Block, 256>(tensor, first, dst);
  const auto width = static_cast<size_t>(safetensors_dtype_bytes(dtype));
  to_f32(dtype, tensor.subspan(static_cast<size_t>(first) * width, dst.size() * width), dst);
}

int64_t quantize(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst) {
  if (dtype == "Q8_0") return write_blocks<Q8Block, 32>(src, dst);
  if (dtype == "Q4_K") return write_blocks<Q4Block, 256>(src, dst);
  internal_error("{} has no blocks", dtype);
}

double quantized_error(const std::string& dtype, double largest) {
  // Half a step of d, which is at most the next f16 above largest / 127.
  if (dtype == "Q8_0") return 0.5 * (largest / 127 * (1 + 0x1p-10) + kSmallestHalf);
  require(dtype == "Q4_K", "{} has no blocks", dtype);
  // One step of the grid; half a step of d, 15 codes away; half a step of m. The widest group goes
  // from -largest to largest, and d and m are at most the next f16 above a 63rd. What moves away
  // from a group's grid by d and m is rounded to another code, which adds no more than it takes
  // away.
  const double step = 2 * largest / 15;
  const double d = step * kWidest / 63 * (1 + 0x1p-10) + kSmallestHalf;
  const double m = (largest + step) / 63 * (1 + 0x1p-10) + kSmallestHalf;
  return step + 15 * d / 2 + m / 2;
}

}  // namespace onefold

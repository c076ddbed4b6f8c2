#include "engine/slab.h"

#include <algorithm>
#include <cmath>

namespace onefold {
namespace {

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

SlabLayout::SlabLayout(std::span<const ParamSpec> params, int ranks, int64_t align_elems, SlabOf of)
    : params_(params.begin(), params.end()), ranks_(ranks) {
  for (const ParamSpec& param : params_) {
    if (of != SlabOf::all && param.adapter != (of == SlabOf::adapters)) {
      offsets_.push_back(-1);
      continue;
    }
    offsets_.push_back(elems_);
    elems_ = round_up(elems_ + param.elems() + param.slack_rows * param.cols, align_elems);
  }
  elems_ = round_up(elems_, align_elems * ranks);
}

Tensor SlabLayout::view(Tensor slab, int param) const {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  require(holds(param), "{} is looked for in another slab", spec.name);
  return slab.col_range(offset(param), spec.elems()).reshaped(spec.rows, spec.cols);
}

std::vector<int64_t> SlabLayout::row_starts(int rank) const {
  std::vector<int64_t> starts = {0};
  const auto add = [&](int64_t at) {
    if (at > starts.back() && at < shard_elems()) starts.push_back(at);
  };
  for (const SlabPiece& piece : shard_pieces(rank)) {
    const int64_t cols = params_[static_cast<size_t>(piece.param)].cols;
    add(piece.offset);
    for (int64_t at = piece.first / cols * cols + cols; at < piece.first + piece.elems; at += cols)
      add(piece.offset + at - piece.first);
    add(piece.offset + piece.elems);
  }
  return starts;
}

std::vector<SlabPiece> SlabLayout::pieces(int64_t begin, int64_t end) const {
  std::vector<SlabPiece> result;
  for (size_t p = 0; p < params_.size(); ++p) {
    if (!holds(static_cast<int>(p))) continue;
    const int64_t start = offsets_[p];
    const int64_t from = std::max(begin, start), to = std::min(end, start + params_[p].elems());
    if (from < to) result.push_back({static_cast<int>(p), from - start, to - from, from - begin});
  }
  return result;
}

Slab::Slab(Ledger& ledger, const SlabLayout& layout, const Home& home, Kind kind, int rank,
           std::string name, int64_t block)
    : ledger_(ledger),
      layout_(layout),
      home_(home),
      kind_(kind),
      rank_(rank),
      name_(std::move(name)),
      block_(block) {}

// Whole blocks of a disk, so that bytes can go straight between it and memory.
int64_t Slab::home_bytes() const {
  const int64_t bytes = elems(home_.sharded) * dtype_bytes(home_.dtype);
  return home_.tier == Tier::disk ? disk_block_bytes(bytes) : bytes;
}

void Slab::hold() {
  if (!held_) held_ = ledger_.allocate(kind_, home_bytes(), name_, home_.tier);
}

void Slab::drop() {
  held_.reset();
  copy_.reset();
  staged_.reset();
}

void Slab::bring() {
  require(home_.offloaded() && !copy_, "{} is fetched twice, or lives on the device", name_);
  copy_ = ledger_.allocate(kind_, home_bytes(), name_);
}

void Slab::stage() {
  require(home_.sharded, "{} is whole and needs no copy", name_);
  require(!staged_, "{} is gathered twice", name_);
  staged_ = ledger_.allocate(Kind::communication, elems(false) * dtype_bytes(home_.dtype), name_);
}

void Slab::release() {
  require(copy_ || staged_, "{} is released and was not gathered", name_);
  copy_.reset();
  staged_.reset();
}

Tensor Slab::flat(const std::optional<Buffer>& buffer, bool shard) const {
  require(buffer.has_value(), "{} is used and is not there", name_);
  return buffer->as(1, elems(shard), home_.dtype);
}

Tensor Slab::at_home() const { return flat(held_, home_.sharded); }

Tensor Slab::here() const { return flat(home_.offloaded() ? copy_ : held_, home_.sharded); }

Tensor Slab::whole() const {
  require(staged_ || !home_.sharded, "{} is used and was not gathered", name_);
  return staged_ ? flat(staged_, false) : here();
}

Tensor Slab::shard_of(Tensor held) const {
  return home_.sharded ? held : held.col_range(rank_ * elems(true), elems(true));
}

Tensor Slab::home_shard() const { return shard_of(at_home()); }

Tensor Slab::shard() const { return shard_of(here()); }

Transfer Slab::transfer() const { return {home_.tier, at_home().data, here().data, home_bytes()}; }

Message Slab::message() const { return {whole().data, shard().data, elems(true), home_.dtype}; }

void initialise(const ParamSpec& param, const ModelSpec& spec, uint64_t seed, int64_t first,
                std::span<float> dst) {
  if (param.init == Init::zeros || param.init == Init::ones) {
    std::fill(dst.begin(), dst.end(), param.init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const PhiloxKey key = philox_key(seed, Draw::initialisation, param.layer_key, param.place_key);
  if (param.init == Init::fan_in) {
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(param.cols)));
    for (size_t i = 0; i < dst.size(); ++i)
      dst[i] = bound * (2 * philox_uniform(philox_word(key, static_cast<uint64_t>(first) + i)) - 1);
    return;
  }
  const double depth_scale = param.init == Init::residual
                                 ? 1.0 / std::sqrt(2.0 * static_cast<double>(spec.num_layers))
                                 : 1.0;
  const auto deviation = static_cast<float>(spec.init_std * depth_scale);
  philox_normals(key, static_cast<uint64_t>(first), dst);
  for (float& number : dst) number *= deviation;
}

}  // namespace onefold

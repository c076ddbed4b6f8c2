#include "device/tiers.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace onefold {
namespace {

// Of what passes through the host's memory on its way to or from a disk.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Calls piece(first, address, bytes) for elements of a contiguous tensor, in order.
template <class Piece>
void for_each_piece_of(Tensor tensor, const Piece& piece) {
  const Tensor flat = tensor.flat();
  const int64_t width = dtype_bytes(flat.dtype), most = kPieceBytes / width;
  for (int64_t first = 0; first < flat.cols; first += most)
    piece(first, static_cast<std::byte*>(flat.data) + first * width,
          static_cast<size_t>(std::min(most, flat.cols - first) * width));
}

}  // namespace

Tiers::Tiers(Device& device, const std::string& folder, Files::Requests requests)
    : device_(device), has_disk_(!folder.empty()) {
  if (!has_disk_ || device.dry()) return;
  disk_ = std::make_unique<Disk>(folder, requests);
  host_ = std::make_unique<LentMemory>(*device.memory(Tier::host), *disk_);
}

std::unique_ptr<LaneQueue> Tiers::open_lane() const {
  return disk_ && pass_through_host() ? std::make_unique<ThreadLane>() : device_.open_lane();
}

MemorySource* Tiers::source(Tier tier) const {
  if (!disk_) return device_.memory(tier);
  if (tier == Tier::disk) return disk_.get();
  return tier == Tier::host || device_.memory_is_the_hosts() ? host_.get() : device_.memory(tier);
}

// Piece by piece.
void Tiers::pass(const Transfer& transfer, Way way, std::span<std::byte> through) const {
  std::vector<std::byte> own;
  if (through.empty()) {
    own.resize(static_cast<size_t>(std::min(kPieceBytes, transfer.bytes)));
    through = own;
  }
  auto* const there = static_cast<std::byte*>(transfer.there);
  auto* const here = static_cast<std::byte*>(transfer.here);
  for (int64_t at = 0; at < transfer.bytes; at += static_cast<int64_t>(through.size())) {
    const int64_t bytes = std::min(static_cast<int64_t>(through.size()), transfer.bytes - at);
    const std::span<std::byte> piece = through.first(static_cast<size_t>(bytes));
    if (way == Way::in) {
      disk_->read(there + at, piece);
      device_.copy_now(here + at, piece.data(), bytes);
    } else {
      device_.copy_now(piece.data(), here + at, bytes);
      disk_->write(there + at, piece);
    }
  }
}

Ticket Tiers::copy(LaneQueue& lane, JobLabel label, const Transfer& transfer, Way way,
                   std::span<std::byte> through) const {
  label.bytes = transfer.bytes;
  label.over = transfer.tier == Tier::disk ? Link::disk : Link::host;
  label.out = way == Way::out;
  const auto [tier, there, here, bytes] = transfer;
  if (tier != Tier::disk || !disk_)
    return way == Way::in ? device_.copy(lane, std::move(label), here, there, bytes)
                          : device_.copy(lane, std::move(label), there, here, bytes);
  if (pass_through_host()) {
    // A thread's work, which no stream orders: computation must be done with the memory first.
    if (&lane == &device_.compute()) lane.wait(lane.mark().number);
    return lane.post(std::move(label), [=, this] { pass(transfer, way, through); });
  }
  auto* const memory = static_cast<std::byte*>(here);
  const auto size = static_cast<size_t>(bytes);
  return lane.post(std::move(label), [disk = disk_.get(), way, there = there, memory, size] {
    if (way == Way::in)
      disk->read(there, {memory, size});
    else
      disk->write(there, {memory, size});
  });
}

void Tiers::write(Tier tier, Tensor dst, const Device::Make& make, Device::Calls calls) const {
  if (tier == Tier::device || (tier == Tier::host && device_.memory_is_the_hosts()))
    return device_.write(dst, make, calls);
  if (tier == Tier::host && calls == Device::Calls::shared_out) return share_out(dst, make);
  if (tier == Tier::host)
    return for_each_piece_of(dst, [&](int64_t first, std::byte* at, size_t bytes) {
      make(first, {at, bytes});
    });
  std::vector<std::byte> piece;
  for_each_piece_of(dst, [&](int64_t first, std::byte* at, size_t bytes) {
    piece.resize(bytes);
    make(first, piece);
    disk_->write(at, piece);
  });
}

void Tiers::share_out(Tensor dst, const Device::Make& make) const {
  const Tensor flat = dst.flat();
  const int64_t width = dtype_bytes(flat.dtype), most = kPieceBytes / width;
  device_.pool()->run((flat.cols + most - 1) / most, [&](int64_t piece, int) {
    const int64_t first = piece * most, count = std::min(most, flat.cols - first);
    make(first,
         {static_cast<std::byte*>(flat.data) + first * width, static_cast<size_t>(count * width)});
  });
}

void Tiers::read(Tier tier, Tensor src, const Device::Take& take) const {
  if (tier == Tier::device) return device_.read(src, take);
  std::vector<std::byte> piece;
  for_each_piece_of(src, [&](int64_t first, const std::byte* at, size_t bytes) {
    if (tier == Tier::host) return take(first, {at, bytes});
    piece.resize(bytes);
    disk_->read(at, piece);
    take(first, piece);
  });
}

void Tiers::fill_with_zeros(Tier tier, Tensor dst) const {
  const auto zeros = [](int64_t, std::span<std::byte> piece) {
    std::fill(piece.begin(), piece.end(), std::byte{0});
  };
  write(tier, dst, zeros, Device::Calls::shared_out);
}

}  // namespace onefold

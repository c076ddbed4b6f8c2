#include "cuda/device_memory.h"

#include <algorithm>
#include <iterator>

#include "device/cuda_scratch.h"

namespace onefold::cuda {
DeviceMemory::DeviceMemory(const Card& card) : card_(card), memory_(card) {
  unmapped_.emplace(memory_.begin(), memory_.bytes());
}

DeviceMemory::~DeviceMemory() {
  // Nothing can be done about an error, and the next call would meet it too.
  (void)cudaDeviceSynchronize();
  for (const auto& [at, handle] : granules_) {
    memory_.unmap(at);
    memory_.release(handle);
  }
  release_spares();
}

void DeviceMemory::release_spares() {
  for (const Handle handle : spare_) memory_.release(handle);
  spare_.clear();
}

int64_t DeviceMemory::block_bytes(int64_t bytes) const { return whole_memory_blocks(bytes); }

void* DeviceMemory::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  void* block = cut(bytes);
  if (!block && grow(bytes)) block = cut(bytes);
  if (!block) return nullptr;
  held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  return block;
}

int64_t DeviceMemory::mapped_bytes() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(granules_.size() + spare_.size()) * memory_.granule_bytes();
}

// From the smallest free block that holds the request; what is left of it stays free.
void* DeviceMemory::cut(int64_t bytes) {
  const auto found = by_size_.lower_bound({bytes, nullptr});
  if (found == by_size_.end()) return nullptr;
  const auto [size, begin] = *found;
  erase_free(begin);
  if (size > bytes) add_free(begin + bytes, size - bytes);
  return begin;
}

// Maps memory so that a free block of this size is there.
bool DeviceMemory::grow(int64_t bytes) {
  card_.use();
  // A step that repeats moves nothing as long as it stays within a share of its peak above it.
  constexpr int64_t kSlack = 64;
  const int64_t peak = std::max(peak_bytes_, held_bytes_ + bytes);
  const std::optional<Place> found = peak <= memory_.card_bytes() ? place_for(bytes) : std::nullopt;
  if (!found) return false;
  const Place& place = *found;
  if (place.before > 0) erase_free(place.at - place.before);  // it does not move
  const bool grown = prepare(static_cast<size_t>(place.granules), peak + peak / kSlack);
  if (grown)
    map_granules(place);
  else
    release_spares();
  const int64_t mapped = grown ? place.granules * memory_.granule_bytes() : 0;
  if (place.before + mapped > 0) add_free(place.at - place.before, place.before + mapped);
  return grown;
}

// The first addresses with enough room.
std::optional<DeviceMemory::Place> DeviceMemory::place_for(int64_t bytes) const {
  const int64_t granule = memory_.granule_bytes();
  for (const auto& [at, room] : unmapped_) {
    Place place{.at = at};
    if (const auto above = free_.lower_bound(at); above != free_.begin()) {
      const auto [begin, size] = *std::prev(above);
      if (begin + size == at) place.before = size;
    }
    place.granules = (bytes - place.before + granule - 1) / granule;
    if (place.granules * granule <= room) return place;
  }
  return std::nullopt;
}

// Granules without an address: new ones up to the bound, then those of free blocks, then new ones
// as long as the card has any.
bool DeviceMemory::prepare(size_t granules, int64_t bound) {
  if (create(granules, bound)) return true;
  reclaim(granules - spare_.size());
  return create(granules, memory_.bytes());
}

bool DeviceMemory::create(size_t granules, int64_t bound) {
  while (spare_.size() < granules) {
    const auto all = static_cast<int64_t>(granules_.size() + spare_.size());
    if (all * memory_.granule_bytes() >= bound) return false;
    const std::optional<Handle> handle = memory_.create();
    if (!handle) return false;
    spare_.push_back(*handle);
  }
  return true;
}

// Takes whole granules from free blocks, the smallest blocks first.
void DeviceMemory::reclaim(size_t granules) {
  const int64_t granule = memory_.granule_bytes();
  check(cudaDeviceSynchronize(), "finish the card's work");
  const BySize blocks = by_size_;
  for (const auto& [size, begin] : blocks) {
    const int64_t skipped = (granule - (begin - memory_.begin()) % granule) % granule;
    const int64_t whole = std::min((size - skipped) / granule, static_cast<int64_t>(granules));
    if (whole <= 0) continue;
    erase_free(begin);
    const Address first = begin + skipped, end = first + whole * granule;
    for (Address at = first; at < end; at += granule) unmap_granule(at);
    if (skipped > 0) add_free(begin, skipped);
    if (begin + size > end) add_free(end, begin + size - end);
    granules -= static_cast<size_t>(whole);
    if (granules == 0) return;
  }
}

void DeviceMemory::unmap_granule(Address at) {
  const auto found = granules_.find(at);
  memory_.unmap(at);
  spare_.push_back(found->second);
  granules_.erase(found);
  auto range = unmapped_.emplace(at, memory_.granule_bytes()).first;
  if (const auto next = std::next(range);
      next != unmapped_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    unmapped_.erase(next);
  }
  if (range == unmapped_.begin()) return;
  if (const auto before = std::prev(range); before->first + before->second == range->first) {
    before->second += range->second;
    unmapped_.erase(range);
  }
}

void DeviceMemory::map_granules(const Place& place) {
  const int64_t granule = memory_.granule_bytes(), bytes = place.granules * granule;
  const auto range = std::prev(unmapped_.upper_bound(place.at));
  const Address begin = range->first, end = range->first + range->second;
  unmapped_.erase(range);
  if (begin < place.at) unmapped_.emplace(begin, place.at - begin);
  if (place.at + bytes < end) unmapped_.emplace(place.at + bytes, end - (place.at + bytes));
  for (Address at = place.at; at < place.at + bytes; at += granule) {
    memory_.map(at, spare_.back());
    granules_.emplace(at, spare_.back());
    spare_.pop_back();
  }
}

void DeviceMemory::give_back(void* block, int64_t bytes) {
  std::lock_guard lock(mutex_);
  held_bytes_ -= bytes;
  add_free(static_cast<Address>(block), bytes);
}

// Joins its neighbours.
void DeviceMemory::add_free(Address begin, int64_t bytes) {
  if (const auto next = free_.find(begin + bytes); next != free_.end()) {
    bytes += next->second;
    erase_free(next->first);
  }
  if (const auto above = free_.lower_bound(begin); above != free_.begin()) {
    const auto [before, size] = *std::prev(above);
    if (before + size == begin) {
      erase_free(before);
      begin = before;
      bytes += size;
    }
  }
  free_.emplace(begin, bytes);
  by_size_.emplace(bytes, begin);
}

void DeviceMemory::erase_free(Address begin) {
  const auto found = free_.find(begin);
  by_size_.erase({found->second, begin});
  free_.erase(found);
}

}  // namespace onefold::cuda

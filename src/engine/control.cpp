#include "engine/control.h"

#include <algorithm>

#include "base/clock.h"

namespace onefold {

std::vector<double> Control::exchange(std::string_view what, std::span<const double> mine) {
  std::vector<double> all;  // dry: every rank is like this one
  for (int rank = 0; rank < ranks(); ++rank) all.insert(all.end(), mine.begin(), mine.end());
  if (ranks() == 1) return all;
  const double begin = now_seconds();
  std::vector<double> shard(mine.begin(), mine.end());
  const Message message{all.data(), shard.data(), static_cast<int64_t>(mine.size()), DType::f64};
  channel_.all_gather(what, {&message, 1});
  seconds_ += now_seconds() - begin;
  return all;
}

std::vector<std::string> Control::collect(std::string_view what, const std::string& mine) {
  if (ranks() == 1) return {mine};
  const auto size = static_cast<double>(mine.size());
  const std::vector<double> sizes = exchange(what, {&size, 1});
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string shard = mine, all(longest * sizes.size(), ' ');
  shard.resize(longest);
  const Message message{all.data(), shard.data(), static_cast<int64_t>(longest), DType::u8};
  channel_.all_gather(what, {&message, 1});
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(all.substr(rank * longest, static_cast<size_t>(sizes[rank])));
  return texts;
}

}  // namespace onefold

#include "device/device_name.h"

#include <charconv>
#include <string_view>

#include "base/error.h"
#include "device/cuda_library.h"

namespace onefold {

DeviceName parse_device(const std::string& name) {
  if (name == "cpu" || name == "cuda") return {name, {}};
  constexpr std::string_view kCard = "cuda:";
  if (name.starts_with(kCard)) {
    int card = -1;
    const char *begin = name.data() + kCard.size(), *end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(begin, end, card);
    if (error == std::errc() && rest == end && card >= 0) return {"cuda", card};
  }
  user_error(
      "there is no device \"{}\"; devices are cpu, cuda (a card for each rank) and cuda:N (card N, "
      "counted from 0)",
      name);
}

std::string device_of_rank(const std::string& name, int rank, int ranks) {
  const DeviceName device = parse_device(name);
  if (device.kind == "cpu" || device.card) return name;
  const auto cards = static_cast<int>(cuda_cards().size());
  if (ranks > cards)
    user_error(
        "{} ranks of this machine want a card each, and this process sees {}; start fewer, or let "
        "them share one with the device cuda:N",
        ranks, cards);
  return name + ":" + std::to_string(rank);
}

}  // namespace onefold

#include "base/error.h"
#include "device/cuda_library.h"
#include "device/device_name.h"

namespace onefold {

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

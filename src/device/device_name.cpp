#include "device/device_name.h"

#include <charconv>
#include <string_view>

#include "base/error.h"

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

}  // namespace onefold

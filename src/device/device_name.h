// Devices by name: "cpu"; "cuda", a card for each rank of a machine; "cuda:N", card N of those that
// the process sees (CUDA_VISIBLE_DEVICES says which), shared by all ranks.
#pragma once

#include <optional>
#include <string>

namespace onefold {

struct DeviceName {
  std::string kind;  // cpu or cuda
  std::optional<int> card;
};
// UserError for a name that is none.
DeviceName parse_device(const std::string& name);

// The device of one of the ranks that share a machine: what open_device() is given. Of "cuda" it is
// the card with the rank's number; UserError where there are more ranks than cards.
std::string device_of_rank(const std::string& name, int rank, int ranks);

}  // namespace onefold

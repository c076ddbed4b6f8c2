// The control plane of a rank: small exchanges of host numbers and texts between all ranks, and the
// way to end them all. Training data never travels here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace onefold {

class Control {
 public:
  // The channel is one that no lane uses at the same time.
  Control(Communicator& communicator, Channel& channel)
      : communicator_(communicator), channel_(channel) {}

  int rank() const { return communicator_.rank(); }
  int ranks() const { return communicator_.ranks(); }

  // Every rank's numbers, [ranks][mine.size()] in rank order. All ranks call it together.
  std::vector<double> exchange(std::string_view what, std::span<const double> mine);
  // Every rank's text, in rank order. All ranks call it together.
  std::vector<std::string> collect(std::string_view what, const std::string& mine);
  // Ends the calls of the other ranks with this rank's failure, so that none waits for it.
  void abort(std::string_view why) noexcept { communicator_.abort(why); }

  double seconds() const { return seconds_; }  // spent in exchanges

 private:
  Communicator& communicator_;
  Channel& channel_;
  double seconds_ = 0;
};

}  // namespace onefold

// A communicator whose channels of some names do something before each call: they come late, or
// look at what a rank holds by then. What they do beside that is another's.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace onefold::test {

struct Late {
  std::vector<std::string> names;     // of channels
  std::function<void()> before_call;  // on the thread of the lane
};

class LateChannel final : public Channel {
 public:
  LateChannel(std::unique_ptr<Channel> of, std::function<void()> before_call)
      : Channel(of->rank(), of->ranks()),
        of_(std::move(of)),
        before_call_(std::move(before_call)) {}

 private:
  void run(const Call& call) override {
    before_call_();
    switch (call.collective) {
      case Collective::all_gather:
        return of_->all_gather(call.what, call.messages);
      case Collective::reduce_scatter:
        return of_->reduce_scatter(call.what, call.messages);
      case Collective::all_reduce:
        return of_->all_reduce(call.what, call.messages);
      case Collective::broadcast:
        return of_->broadcast(call.what, call.peer, call.to, call.bytes);
      case Collective::all_to_all:
        return of_->all_to_all(call.what, call.from, call.to, call.bytes);
      case Collective::send:
        return of_->send(call.what, call.peer, call.from, call.bytes);
      case Collective::receive:
        return of_->receive(call.what, call.peer, call.to, call.bytes);
      case Collective::barrier:
        return of_->barrier(call.what);
    }
  }

  const std::unique_ptr<Channel> of_;
  const std::function<void()> before_call_;
};

class LateCommunicator final : public Communicator {
 public:
  LateCommunicator(std::shared_ptr<Communicator> of, Late late)
      : Communicator(of->rank(), of->ranks(), of->options()),
        of_(std::move(of)),
        late_(std::move(late)) {}

  const char* transport() const override { return of_->transport(); }
  Place host() const override { return of_->host(); }
  Place place() const override { return of_->place(); }
  int64_t scratch_bytes() const override { return of_->scratch_bytes(); }
  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    std::unique_ptr<Channel> channel = of_->open(name, scratch);
    if (std::find(late_.names.begin(), late_.names.end(), name) == late_.names.end())
      return channel;
    return std::make_unique<LateChannel>(std::move(channel), late_.before_call);
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    return std::make_unique<LateCommunicator>(of_->group(members), late_);
  }
  std::string failure() const override { return of_->failure(); }
  void abort(std::string_view why) noexcept override { of_->abort(why); }

 private:
  const std::shared_ptr<Communicator> of_;
  const Late late_;
};

}  // namespace onefold::test

#include "engine/times.h"

namespace onefold {

void Times::collect(const std::array<LaneQueue*, kLanes>& lanes) {
  for (const Lane lane : kAllLanes) {
    LaneQueue* queue = lanes[static_cast<size_t>(lane)];
    if (!queue) continue;
    for (LaneSpan& span : queue->take_spans()) {
      const double seconds = span.end - span.begin;
      if (!span.awaited) {
        add_work(lane, span);
        if (!span.label.name.empty())
          trace_.add(lane, {std::move(span.label.name), span.begin, span.end, span.label.bytes});
        continue;
      }
      if (lane != Lane::compute) continue;  // a lane that waits for computation hides nothing
      verbs_.communication += seconds;
      for (const Lane other : kAllLanes)
        if (lanes[static_cast<size_t>(other)] == span.awaited) {
          exposed_[static_cast<size_t>(other)] += seconds;
          trace_.add(lane, {std::string("wait for ") + lane_name(other), span.begin, span.end});
        }
    }
  }
}

void Times::add_work(Lane lane, const LaneSpan& span) {
  const double seconds = span.end - span.begin;
  const auto verb = static_cast<Verb>(span.label.tag);
  if (verb == Verb::fetch || verb == Verb::spill) {
    CopyWork& copies = copies_[verb == Verb::spill ? 1 : 0];
    ++copies.count;
    copies.bytes += span.label.bytes;
    copies.seconds += seconds;
  }
  if (lane != Lane::compute) return;
  switch (verb) {
    case Verb::forward:
      verbs_.forward += seconds;
      break;
    case Verb::backward:
      verbs_.backward += seconds;
      break;
    case Verb::squares:
      verbs_.squares += seconds;
      break;
    case Verb::step:
      verbs_.step += seconds;
      break;
    case Verb::gather:
    case Verb::reduce:  // at its place, without a lane of its own
      exposed_[static_cast<size_t>(
          static_cast<Verb>(span.label.tag) == Verb::reduce ? Lane::reduce : Lane::gather)] +=
          seconds;
      verbs_.communication += seconds;
      break;
    case Verb::fetch:
    case Verb::spill:
      exposed_[static_cast<size_t>(verb == Verb::fetch ? Lane::fetch : Lane::spill)] += seconds;
      verbs_.communication += seconds;
      break;
    case Verb::clip:
      add_control(seconds);
      break;
    case Verb::send:
    case Verb::recv:  // of gradients, in the order of computation
      exposed_[static_cast<size_t>(verb == Verb::send ? Lane::send : Lane::recv)] += seconds;
      verbs_.communication += seconds;
      break;
    case Verb::exchange:
      exposed_[static_cast<size_t>(Lane::exchange)] += seconds;
      verbs_.communication += seconds;
      break;
    case Verb::release:
      break;
  }
}

}  // namespace onefold

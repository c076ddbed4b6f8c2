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
          trace_.add(lane, {std::move(span.label.name), span.begin, span.end, span.label.bytes,
                            span.label.action});
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

void Times::add_in_place(Lane lane, double seconds) {
  in_place_[static_cast<size_t>(lane)] += seconds;
  exposed_[static_cast<size_t>(lane)] += seconds;
  verbs_.communication += seconds;
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
      add_in_place(verb == Verb::reduce ? Lane::reduce : Lane::gather, seconds);
      break;
    case Verb::fetch:
    case Verb::spill:
      add_in_place(verb == Verb::fetch ? Lane::fetch : Lane::spill, seconds);
      break;
    case Verb::clip:
      add_control(seconds);
      break;
    case Verb::send:
    case Verb::recv:  // of gradients, in the order of computation
      add_in_place(verb == Verb::send ? Lane::send : Lane::recv, seconds);
      break;
    case Verb::exchange:
      add_in_place(Lane::exchange, seconds);
      break;
    case Verb::release:
      break;
  }
}

}  // namespace onefold

#include "cuda/issued_lane.h"

#include <utility>

namespace onefold::cuda {

IssuedLane::IssuedLane(const Card& card) : card_(card), stream_(/*urgent=*/true) {}

Ticket IssuedLane::post(JobLabel label, Job job) {
  const auto place = std::make_shared<Ticket>();
  const Ticket ticket =
      thread_.post({}, [this, place, label = std::move(label), job = std::move(job)]() mutable {
        card_.use();
        *place = stream_.post(std::move(label), std::move(job));
      });
  const std::lock_guard lock(mutex_);
  issued_[ticket.number] = place;
  return {this, ticket.number};
}

void IssuedLane::after(const Ticket& ticket) {
  if (!ticket.lane || ticket.lane == this) return;
  thread_.post({}, [this, ticket] {
    card_.use();
    stream_.after(ticket);
  });
}

Ticket IssuedLane::issued(int64_t number) {
  thread_.wait(number);
  const std::lock_guard lock(mutex_);
  // A mark may be behind the last job; what is forgotten is done.
  const auto behind = issued_.upper_bound(number);
  return behind == issued_.begin() ? Ticket{} : *std::prev(behind)->second;
}

void IssuedLane::wait(int64_t number) {
  const Ticket ticket = issued(number);
  if (ticket.lane) ticket.lane->wait(ticket.number);
}

std::vector<LaneSpan> IssuedLane::take_spans() {
  thread_.wait(thread_.mark().number);
  (void)thread_.take_spans();
  std::vector<LaneSpan> spans = stream_.take_spans();
  const std::lock_guard lock(mutex_);
  issued_.clear();
  return spans;
}

}  // namespace onefold::cuda

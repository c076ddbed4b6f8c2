#include "program/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/error.h"

namespace onefold {
namespace {

bool is_message(const Action& action) {
  return action.verb == Verb::send || action.verb == Verb::recv;
}

// What both sides call a message. A unit's gradient travels twice: to the rank that computes it,
// and back.
struct MessageKey {
  int unit, micro;
  bool of_backward, of_gradients, back;
  auto operator<=>(const MessageKey&) const = default;
};

// An action: of which rank, and its number there.
struct At {
  size_t rank, index;
};

struct Sides {
  std::optional<At> sender, receiver;
};

class Walker {
 public:
  Walker(const std::vector<Program>& programs, const std::vector<std::vector<UnitTraits>>& units,
         const ActionSeconds& seconds)
      : programs_(programs), units_(units), seconds_(seconds), ranks_(programs.size()) {
    result_.spans.resize(programs.size());
  }

  Timeline walk() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto& actions = programs_[rank].actions;
      for (size_t i = 0; i < actions.size(); ++i) {
        const bool known = i < ranks_[rank].jobs.size() && end_of({rank, i});
        if (!known)
          internal_error("stages wait for each other: rank {} at {}", rank,
                         describe(actions[i], fmt::format("unit {}", actions[i].unit)));
        const Job& done = job({rank, i});
        result_.spans[rank].push_back({*done.begin, *done.end});
        result_.seconds = std::max(result_.seconds, *done.end);
      }
    }
    return std::move(result_);
  }

 private:
  // An action that was handed to its lane.
  struct Job {
    double issued = 0;           // when computation was there
    double seconds = 0;          // that it takes
    std::vector<size_t> before;  // what it comes after: the one before it on its lane, tickets
    bool visited = false;
    std::optional<double> begin, end;  // once they are known
  };
  struct Rank {
    std::array<int, kLanes> last;   // action of each lane; -1: none
    std::map<int, size_t> tickets;  // their actions
    std::vector<Job> jobs;          // of the actions handed out so far
    Rank() { last.fill(-1); }
  };

  MessageKey key_of(size_t rank, const Action& action) const {
    const bool of_gradients = action.state == State::gradients;
    const bool here = units_[rank][static_cast<size_t>(action.unit)].here();
    return {action.unit, action.micro, action.of_backward, of_gradients,
            of_gradients && here == (action.verb == Verb::send)};
  }
  Job& job(const At& at) { return ranks_[at.rank].jobs[at.index]; }
  const Action& action(const At& at) const { return programs_[at.rank].actions[at.index]; }

  // None while it is not known yet: a message has another side, and lanes have an order.
  std::optional<double> begin_of(const At& at) {
    Job& own = job(at);
    if (own.begin || own.visited) return own.begin;
    own.visited = true;  // a circle is never known
    double begin = own.issued;
    bool known = true;
    for (const size_t before : own.before) {
      const std::optional<double> end = end_of({at.rank, before});
      known &= end.has_value();
      begin = std::max(begin, end.value_or(0));
    }
    own.visited = false;
    if (known) own.begin = begin;
    return own.begin;
  }

  std::optional<double> end_of(const At& at) {
    Job& own = job(at);
    if (own.end) return own.end;
    const std::optional<double> begin = begin_of(at);
    if (!begin) return {};
    if (!is_message(action(at))) return own.end = *begin + own.seconds;
    const Sides& sides = messages_[key_of(at.rank, action(at))];
    if (!sides.sender || !sides.receiver) return {};
    const std::optional<double> from = begin_of(*sides.sender), to = begin_of(*sides.receiver);
    if (!from || !to) return {};
    return own.end = std::max(*from, *to) + job(*sides.sender).seconds;
  }

  // Hands out the next action, if what computation itself must wait for before it is known.
  bool advance(size_t rank) {
    Rank& own = ranks_[rank];
    const size_t index = own.jobs.size();
    if (index == programs_[rank].actions.size()) return false;
    const Action& next = programs_[rank].actions[index];
    const int computed = own.last[static_cast<size_t>(Lane::compute)];
    Job job;
    if (computed >= 0) {
      const std::optional<double> end = end_of({rank, static_cast<size_t>(computed)});
      if (!end) return false;
      job.issued = *end;
    }
    int& last = own.last[static_cast<size_t>(next.lane)];
    if (last >= 0) job.before.push_back(static_cast<size_t>(last));
    for (const int ticket : next.waits)
      if (const auto found = own.tickets.find(ticket); found != own.tickets.end())
        job.before.push_back(found->second);
    if (next.lane == Lane::compute) {
      for (const size_t before : job.before)
        if (!end_of({rank, before})) return false;
      if (next.verb == Verb::clip) {
        for (const size_t before : job.before)
          job.issued = std::max(job.issued, *end_of({rank, before}));
        if (!meet(rank, job.issued)) return false;
      }
    }
    job.seconds = seconds_(static_cast<int>(rank), index);
    own.jobs.push_back(std::move(job));
    if (is_message(next)) {
      Sides& sides = messages_[key_of(rank, next)];
      (next.verb == Verb::send ? sides.sender : sides.receiver) = At{rank, index};
    }
    if (next.ticket >= 0) own.tickets[next.ticket] = index;
    last = static_cast<int>(index);
    return true;
  }

  // All ranks clip together.
  bool meet(size_t rank, double& begin) {
    clips_[rank] = begin;
    if (clips_.size() < ranks_.size()) return false;
    for (const auto& [other, time] : clips_) begin = std::max(begin, time);
    return true;
  }

  const std::vector<Program>& programs_;
  const std::vector<std::vector<UnitTraits>>& units_;
  const ActionSeconds& seconds_;
  std::vector<Rank> ranks_;
  std::map<MessageKey, Sides> messages_;
  std::map<size_t, double> clips_;
  Timeline result_;
};

}  // namespace

double Timeline::idle_share(const std::vector<Program>& programs) const {
  double busy = 0;
  for (size_t rank = 0; rank < spans.size(); ++rank)
    for (size_t i = 0; i < spans[rank].size(); ++i) {
      const Action& action = programs[rank].actions[i];
      if (action.lane == Lane::compute && !is_message(action))
        busy += spans[rank][i].end - spans[rank][i].begin;
    }
  return seconds > 0 ? 1 - busy / (seconds * static_cast<double>(spans.size())) : 0;
}

Timeline timeline(const std::vector<Program>& programs,
                  const std::vector<std::vector<UnitTraits>>& units, const ActionSeconds& seconds) {
  return Walker(programs, units, seconds).walk();
}

}  // namespace onefold

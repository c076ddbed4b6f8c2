#include "comm/call_record.h"

#include <algorithm>

#include "base/text.h"

namespace onefold {
namespace {

std::string rank_list(std::span<const int> ranks) {
  if (ranks.empty()) return "a rank";
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) seed = (seed ^ byte[i]) * 1099511628211u;
  return seed;
}

void CallRecord::assign(const Channel::Call& call) {
  collective = call.collective;
  peer = call.peer;
  bytes = call.bytes;
  messages = static_cast<int64_t>(call.messages.size());
  sizes = 0;
  dtype = call.messages.empty() ? DType::f32 : call.messages[0].dtype;
  for (const Message& message : call.messages) {
    bytes += message.shard_bytes();
    sizes = hash_bytes(&message.shard_elems, sizeof(message.shard_elems), sizes);
    sizes = hash_bytes(&message.dtype, sizeof(message.dtype), sizes);
  }
  what.assign(call.what);
}

bool CallRecord::agrees_with(const CallRecord& other) const {
  return collective == other.collective && peer == other.peer && bytes == other.bytes &&
         messages == other.messages && sizes == other.sizes && what == other.what;
}

bool CallRecord::delivers_to(const CallRecord& receive) const {
  return collective == Collective::send && receive.collective == Collective::receive &&
         bytes == receive.bytes && what == receive.what;
}

std::string CallRecord::text() const {
  std::string side;
  if (collective == Collective::send) side = fmt::format(" to rank {}", peer);
  if (collective == Collective::receive || collective == Collective::broadcast)
    side = fmt::format(" from rank {}", peer);
  std::string text = fmt::format("{}{} \"{}\"", collective_name(collective), side, what);
  if (collective == Collective::barrier) return text;
  if (messages > 1) return text + fmt::format(" ({} bytes in {} messages)", bytes, messages);
  return text + fmt::format(" ({} bytes)", bytes);
}

std::string disagreement(int rank, const CallRecord& call, int other_rank,
                         const CallRecord& other) {
  // Messages of the same total: the texts alone would look the same.
  std::string difference;
  if (call.text() == other.text())
    difference = call.dtype == other.dtype
                     ? " with other sizes or types of its messages"
                     : fmt::format(" with elements of {} instead of {}", dtype_name(other.dtype),
                                   dtype_name(call.dtype));
  return fmt::format(
      "rank {} calls {}, rank {} calls {}{}: ranks must make the same calls in the "
      "same order; are they running the same configuration and data?",
      rank, call.text(), other_rank, other.text(), difference);
}

std::string channel_name(const std::string& name, const RankGroup& group) {
  return group.name.empty() ? name : fmt::format("{}, {}", name, group.text());
}

std::string missing_text(std::span<const int> missing, const std::string& call,
                         const std::string& channel, double seconds, std::span<const int> waiting,
                         const std::string& last) {
  const bool left = seconds < 0;
  return fmt::format("{} {} {} on channel \"{}\"{}, where {} wait{}; {}. {}", rank_list(missing),
                     left ? "left before" : "did not reach", call, channel,
                     left ? "" : fmt::format(" within {} seconds", seconds), rank_list(waiting),
                     waiting.size() == 1 ? "s" : "", last,
                     left ? "What ended it is in its own output"
                          : "Its own output may show why; if it is only slow, allow more time");
}

std::string late_text(std::vector<int> late, std::span<const int> idle,
                      const std::function<std::string(const std::vector<int>& missing)>& text) {
  const auto waits = [&](int r) { return std::find(idle.begin(), idle.end(), r) == idle.end(); };
  if (!std::all_of(late.begin(), late.end(), waits)) {
    std::erase_if(late, waits);
    return text(late);
  }
  if (idle.empty()) return text(late);
  const bool one = idle.size() == 1;
  return fmt::format("{} {} in no call, and all others wait, for {} or for each other: ",
                     rank_list(idle), one ? "is" : "are", one ? "it" : "them") +
         text(late);
}

}  // namespace onefold

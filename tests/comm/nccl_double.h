// A table of NCCL's functions behind which ranks that are threads exchange memory among themselves
// (comm/local.h): the host's, or that of one card that they share. Its calls wait for their end,
// where NCCL's do not.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/local.h"
#include "comm/nccl_api.h"

namespace onefold {

namespace test::nccl_double {

struct Port {
  struct Message {
    void* data;
    int64_t bytes;
  };
  std::shared_ptr<Communicator> ranks;
  std::unique_ptr<Channel> channel;
  RankMemory* memory = nullptr;
  bool grouped = false;
  std::map<int, std::deque<Message>> sends, receives;  // of the group under way, by peer
  std::vector<onefold::Message> gathers;
  std::atomic<bool> aborted{false};
};

inline Port* own(NcclPort* port) { return reinterpret_cast<Port*>(port); }

// What goes wrong, and when: calls are counted over all ranks.
struct Faults {
  std::atomic<int> fails_at{-1};  // this call returns an error
  std::atomic<int> error_at{-1};  // after this call, error() reports one
  std::atomic<int> calls{0};
};
inline Faults& faults() {
  static Faults all;
  return all;
}

// Runs `work`; what it throws is the error of the library.
template <class Work>
const char* guarded(Port* port, const Work& work) {
  thread_local std::string text;
  if (port->aborted) return "the communicator was ended";
  const int call = faults().calls++;
  if (call == faults().fails_at) return "unhandled system error";
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
}

inline std::map<std::string, std::shared_ptr<LocalGroup>>& groups() {
  static std::map<std::string, std::shared_ptr<LocalGroup>> all;
  return all;
}
inline std::mutex& groups_mutex() {
  static std::mutex mutex;
  return mutex;
}

inline const char* library() { return "a double of NCCL"; }

inline const char* make_id(NcclId* id) {
  static std::atomic<int> count{0};
  std::snprintf(id->bytes, sizeof(id->bytes), "group %d", count++);
  return nullptr;
}

inline const char* open(NcclPort** port, const NcclId* id, int rank, int ranks,
                        RankMemory* memory) {
  std::shared_ptr<LocalGroup> group;
  {
    const std::lock_guard lock(groups_mutex());
    auto& slot = groups()[id->bytes];
    if (!slot) slot = std::make_shared<LocalGroup>(ranks);
    group = slot;
  }
  auto made = std::make_unique<Port>();
  const char* wrong = guarded(made.get(), [&] {
    made->ranks = group->join(rank);
    made->memory = memory;
    made->channel = made->ranks->open_on(*memory, "double", nullptr);
  });
  if (wrong == nullptr) *port = reinterpret_cast<NcclPort*>(made.release());
  return wrong;
}

inline void close(NcclPort* port) { delete own(port); }

inline void abort(NcclPort* port) {
  if (!own(port)->aborted.exchange(true)) own(port)->ranks->abort("the communicator was ended");
}

inline const char* error(NcclPort*) {
  const int at = faults().error_at;
  return at >= 0 && faults().calls > at ? "remote process exited or there was a network error"
                                        : nullptr;
}

// Messages between pairs, in an order in which no rank waits for one that waits for it.
inline void exchange(Port* port) {
  const int rank = port->ranks->rank();
  const auto send = [&](int peer) {
    for (const auto& [data, bytes] : port->sends[peer]) port->channel->send("m", peer, data, bytes);
  };
  const auto receive = [&](int peer) {
    for (const auto& [data, bytes] : port->receives[peer])
      port->channel->receive("m", peer, data, bytes);
  };
  for (int peer = 0; peer < port->ranks->ranks(); ++peer) {
    if (peer == rank) {
      for (size_t i = 0; i < port->sends[rank].size(); ++i)
        port->memory->copy(port->sends[rank][i].data, port->receives[rank][i].data,
                           port->sends[rank][i].bytes);
      continue;
    }
    peer > rank ? send(peer) : receive(peer);
    peer > rank ? receive(peer) : send(peer);
  }
  port->sends.clear();
  port->receives.clear();
}

inline const char* begin(NcclPort* port) {
  own(port)->grouped = true;
  return nullptr;
}

inline const char* end(NcclPort* port) {
  return guarded(own(port), [&] {
    own(port)->grouped = false;
    if (!own(port)->gathers.empty()) own(port)->channel->all_gather("g", own(port)->gathers);
    own(port)->gathers.clear();
    exchange(own(port));
  });
}

inline const char* end_unless_grouped(NcclPort* port) {
  return own(port)->grouped ? nullptr : end(port);
}

inline const char* all_gather(NcclPort* port, const void* shard, void* whole, int64_t bytes) {
  own(port)->gathers.push_back({whole, const_cast<void*>(shard), bytes, DType::u8});
  return end_unless_grouped(port);
}
inline const char* broadcast(NcclPort* port, void* data, int64_t bytes, int root) {
  return guarded(own(port), [&] { own(port)->channel->broadcast("b", root, data, bytes); });
}
inline const char* send(NcclPort* port, const void* data, int64_t bytes, int to) {
  own(port)->sends[to].push_back({const_cast<void*>(data), bytes});
  return end_unless_grouped(port);
}
inline const char* receive(NcclPort* port, void* data, int64_t bytes, int from) {
  own(port)->receives[from].push_back({data, bytes});
  return end_unless_grouped(port);
}
inline const char* reduce_scatter(NcclPort* port, const void* whole, void* shard, int64_t elems,
                                  DType dtype) {
  const onefold::Message message{const_cast<void*>(whole), shard, elems, dtype};
  return guarded(own(port), [&] { own(port)->channel->reduce_scatter("s", {&message, 1}); });
}
inline const char* all_reduce(NcclPort* port, void* whole, int64_t elems, DType dtype) {
  const onefold::Message message{whole, nullptr, elems / own(port)->ranks->ranks(), dtype};
  return guarded(own(port), [&] { own(port)->channel->all_reduce("s", {&message, 1}); });
}

inline constexpr NcclApi kApi = {library,        make_id,   open,       close,     abort, error,
                                 begin,          end,       all_gather, broadcast, send,  receive,
                                 reduce_scatter, all_reduce};

}  // namespace test::nccl_double
}  // namespace onefold

#include "comm/binding.h"

#include <hwloc.h>

#include <climits>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace onefold {
namespace {

// The machine as this process may use it.
class Machine {
 public:
  Machine() {
    if (hwloc_topology_init(&topology_) != 0 || hwloc_topology_load(topology_) != 0)
      user_error("hwloc cannot read this machine's topology; check that /sys is mounted");
    const Set allowed = make_set();
    // Of the whole process, not of this thread: the caller may be a thread bound already.
    if (hwloc_get_cpubind(topology_, allowed.get(), HWLOC_CPUBIND_PROCESS) == 0)
      hwloc_topology_restrict(topology_, allowed.get(), 0);
  }
  ~Machine() { hwloc_topology_destroy(topology_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int cores() const { return hwloc_bitmap_weight(hwloc_topology_get_topology_cpuset(topology_)); }

  // Where binding is not permitted, the size of the share is still the number of threads to use.
  int bind(int rank, int ranks) const {
    std::vector<hwloc_cpuset_t> raw(static_cast<size_t>(ranks));
    hwloc_obj_t root = hwloc_get_root_obj(topology_);
    if (hwloc_distrib(topology_, &root, 1, raw.data(), static_cast<unsigned>(ranks), INT_MAX, 0) !=
        0)
      internal_error("hwloc cannot divide {} cores among {} ranks", cores(), ranks);
    const std::vector<Set> shares(raw.begin(), raw.end());
    const Set& own = shares[static_cast<size_t>(rank)];
    hwloc_set_cpubind(topology_, own.get(), HWLOC_CPUBIND_THREAD);
    return hwloc_bitmap_weight(own.get());
  }

 private:
  struct Free {
    void operator()(hwloc_bitmap_s* set) const { hwloc_bitmap_free(set); }
  };
  struct Set : std::unique_ptr<hwloc_bitmap_s, Free> {
    Set(hwloc_bitmap_t set) : std::unique_ptr<hwloc_bitmap_s, Free>(set) {}  // NOLINT: implicit
  };
  static Set make_set() { return {hwloc_bitmap_alloc()}; }

  hwloc_topology_t topology_ = nullptr;
};

}  // namespace

int bind_rank(int rank, int ranks) {
  require(rank >= 0 && rank < ranks, "binding rank {} of {}", rank, ranks);
  static std::mutex mutex;  // hwloc topologies are not thread-safe
  const std::lock_guard lock(mutex);
  static const Machine machine;
  if (ranks > machine.cores()) return 1;
  return machine.bind(rank, ranks);
}

}  // namespace onefold

#include "comm/mpi.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "comm/launcher.h"
#include "comm/mpi_channel.h"
#include "comm/mpi_library.h"

namespace onefold {
namespace {

// This rank's place among those that may use the same cores of the same machine. A launcher may
// have given each rank cores of its own.
Place find_place(const MpiApi& api) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  Place place;
  api.place(hash_bytes(&cores, sizeof(cores)), &place.rank, &place.ranks);
  return place;
}

// MPI reports which ranks share a machine's memory. A library that is configured not to use shared
// memory reports each rank as alone; then the launcher's variables are used, if they describe the
// same number of ranks.
Place find_host(const MpiApi& api) {
  Place place;
  api.place(0, &place.rank, &place.ranks);
  const Launched launched = read_launcher();
  if (launched.ranks == api.ranks() && launched.local_rank && launched.local_ranks &&
      *launched.local_rank<*launched.local_ranks&& * launched.local_ranks> place.ranks)
    place = {*launched.local_rank, *launched.local_ranks};
  return place;
}

// Some of the ranks.
class MpiGroup final : public Communicator {
 public:
  MpiGroup(MpiState& state, const RankGroup& members)
      : Communicator(members.index_of(state.rank), members.size(), state.options),
        state_(state),
        members_(members) {
    require(rank() >= 0, "rank {} makes a {} that it is not in", state.rank, members.text());
  }
  const char* transport() const override { return "mpi"; }
  int64_t scratch_bytes() const override { return mpi_scratch_bytes(ranks()); }
  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    if (state_.failed()) state_.throw_failure();
    return std::make_unique<MpiChannel>(state_, name, scratch, members_);
  }
  void abort(std::string_view why) noexcept override { state_.end_process(why); }
  std::string failure() const override { return state_.failure(); }

 private:
  MpiState& state_;
  const RankGroup members_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const MpiApi& api, const CommOptions& options)
      : Communicator(api.rank(), api.ranks(), options),
        host_(find_host(api)),
        place_(find_place(api)),
        state_(api, options, place_) {
    for (int rank = 0; rank < ranks(); ++rank) all_.members.push_back(rank);
    state_.open();
  }

  ~MpiCommunicator() override {
    if (state_.failed() || std::uncaught_exceptions() > 0) {
      state_.abandon();
    } else {
      state_.close();
      state_.api.finish();
    }
  }

  const char* transport() const override { return "mpi"; }
  Place host() const override { return host_; }
  Place place() const override { return place_; }
  int64_t scratch_bytes() const override { return mpi_scratch_bytes(ranks()); }

  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    if (state_.failed()) state_.throw_failure();
    return std::make_unique<MpiChannel>(state_, name, scratch, all_);
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    return std::make_unique<MpiGroup>(state_, members);
  }

  void abort(std::string_view why) noexcept override { state_.end_process(why); }
  std::string failure() const override { return state_.failure(); }

 private:
  const Place host_, place_;
  RankGroup all_;
  MpiState state_;
};

}  // namespace

bool mpi_launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(name) != nullptr) return true;
  return read_launcher().ranks.value_or(1) > 1;
}

std::string mpi_status() {
  const MpiLibrary& library = mpi_library();
  return library.api != nullptr ? library.api->library() : library.problem;
}

std::unique_ptr<Communicator> join_mpi(const CommOptions& options) {
  const MpiLibrary& library = mpi_library();
  if (library.api == nullptr)
    user_error("this process was started as one of several MPI ranks, but {}", library.problem);
  if (const char* problem = library.api->start())
    user_error("MPI does not start: {}; ranks as threads of one process need no MPI", problem);
  // Without this check, a launcher that the library does not support would start that many runs of
  // one rank each.
  const int started = read_launcher().ranks.value_or(1);
  if (library.api->ranks() == 1 && started > 1)
    user_error(
        "{} processes were started together, but {} finds only one: use the mpirun that belongs "
        "to it, or srun --mpi=pmix",
        started, library.api->library());
  return std::make_unique<MpiCommunicator>(*library.api, options);
}

}  // namespace onefold

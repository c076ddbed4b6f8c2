#include "comm/mpi.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "comm/mpi_channel.h"
#include "comm/mpi_library.h"

namespace onefold {
namespace {

// Among the ranks that may use the same cores of the same machine: the launcher may have given each
// its own.
Place find_place(const MpiApi& api) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  Place place;
  api.place(hash_bytes(&cores, sizeof(cores)), &place.rank, &place.ranks);
  return place;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const MpiApi& api, const CommOptions& options)
      : Communicator(api.rank(), api.ranks()),
        place_(find_place(api)),
        state_(api, options, place_) {
    state_.open();
  }

  ~MpiCommunicator() override {
    if (state_.failed() || std::uncaught_exceptions() > 0) {
      state_.abandon();
    } else {
      state_.say_goodbye();
      state_.api.finish();
    }
  }

  const char* transport() const override { return "mpi"; }
  Place place() const override { return place_; }
  int64_t scratch_bytes() const override { return mpi_scratch_bytes(ranks()); }

  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    if (state_.failed()) state_.throw_failure();
    return std::make_unique<MpiChannel>(state_, name, scratch);
  }

  void abort(std::string_view why) noexcept override { state_.end_process(why); }

 private:
  const Place place_;
  MpiState state_;
};

// How many processes a launcher says it has started; 0 if none says so.
int launched_ranks() {
  int most = 0;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* value = std::getenv(name)) most = std::max(most, std::atoi(value));
  return most;
}

}  // namespace

bool mpi_launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(name) != nullptr) return true;
  return launched_ranks() > 1;
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
  // A launcher that this library does not know starts as many runs of one rank, in silence.
  if (library.api->ranks() == 1 && launched_ranks() > 1)
    user_error(
        "{} processes were started together, but {} sees only one: use the mpirun that belongs "
        "to it, or srun --mpi=pmix",
        launched_ranks(), library.api->library());
  return std::make_unique<MpiCommunicator>(*library.api, options);
}

}  // namespace onefold

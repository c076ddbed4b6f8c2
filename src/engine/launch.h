// The ranks of a run: threads of this process, or the processes that mpirun or srun has started.
// The first rank that fails stops the others, and its error is reported first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"

namespace onefold {

using RankBody = std::function<void(std::shared_ptr<Communicator>)>;

class Ranks {
 public:
  // `asked`: the --ranks of the command line, 0 if it was not given. Joins MPI if this process was
  // started by its launcher; --ranks must then agree.
  Ranks(int asked, const CommOptions& options);
  ~Ranks();

  int count() const { return count_; }
  // Ranks that share the memory of this machine.
  int ranks_here() const { return ranks_here_; }
  // Cores of each rank: the same for all threads, so that all hold the same.
  int cores() const { return cores_; }
  const char* transport() const { return mpi_ ? "MPI" : "threads"; }
  // Of each channel that carries this device's memory.
  int64_t scratch_bytes(const std::string& device) const;
  // Whether this process is the one that reads, prints and writes: all thread ranks' process is.
  bool leads() const { return !mpi_ || mpi_->rank() == 0; }

  // Under MPI: the other processes wait here until the leading one has run `prepare`, so that an
  // error in the configuration is reported once.
  void after_leader(const std::function<void()>& prepare);

  // Under MPI: whether every process was told the same. Each says what it knows, as JSON; what
  // differs is an AgreedError that names ranks and keys. All processes call it together.
  void require_alike(const Json& mine);

  // Runs the body on each rank of this process, bound to its share of the cores, and waits for all.
  // Throws the first failure that was not caused by another rank's. An AgreedError is thrown by the
  // leading process alone. A thread that hangs, and so does not end even then, ends the process.
  void run(const RankBody& body);

 private:
  void run_threads(const RankBody& body);

  int count_ = 1, cores_ = 1, ranks_here_ = 1;
  CommOptions options_;
  std::shared_ptr<Communicator> mpi_;
  std::vector<char> start_scratch_;
  std::unique_ptr<Channel> start_;
};

}  // namespace onefold

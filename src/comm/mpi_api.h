// What the MPI plugin (src/comm_mpi, libonefold_mpi.so) provides to the rest of Onefold: a table of
// functions. All code that depends on MPI's headers is behind it, so the program starts where MPI
// is missing. Code that throws, and whatever can be tested without MPI, is in front of it.
#pragma once

#include <cstdint>

namespace onefold {

// Changes with every change of the table: a plugin of another build is refused.
inline constexpr int kMpiApiVersion = 2;

// One channel: a communicator of its own, and some lists of messages in flight ("groups").
struct MpiPort;
inline constexpr int kMpiGroups = 3;
inline constexpr int kMpiAnyRank = -1;

struct MpiApi {
  int version;

  const char* (*library)();  // name and version of the MPI library; works before start()
  const char* (*start)();    // null, or what is wrong
  void (*finish)();
  void (*end_all)(int exit_code);
  int (*rank)();
  int (*ranks)();
  // Of the ranks on this machine that pass the same key: how many there are, and the number of this
  // one among them. All ranks call it at once.
  void (*place)(uint64_t key, int* rank, int* ranks);

  // open() begins to create the port; it is ready when group 0 is done. All ranks must open it.
  MpiPort* (*open)();
  void (*close)(MpiPort*);

  // Add a message to a group; its number in the group counts from 0. At most 2 GiB - 1 bytes.
  void (*send)(MpiPort*, int group, const void* data, int64_t bytes, int to, int tag);
  void (*receive)(MpiPort*, int group, void* data, int64_t bytes, int from, int tag);
  // Makes progress. 1: the whole group is done, and empty again; 0: not yet; -1: see error().
  int (*poll)(MpiPort*, int group);
  int (*is_pending)(MpiPort*, int group, int message);
  // Asks MPI to cancel the group's messages, and clears errors. Until poll() returns 1, MPI may
  // still read and write the messages' memory. The creation of a port cannot be cancelled: then the
  // group is emptied, and the port must never be used or closed.
  void (*cancel)(MpiPort*, int group);
  const char* (*error)(MpiPort*);

  // MPI's own collectives on floats, for comparison: returns when done. `elems` as MPI counts them:
  // of a rank's shard, of its piece, of the whole, of the data, or of a block.
  int (*native)(MpiPort*, int collective, const float* from, float* to, int64_t elems);
};

}  // namespace onefold

// The plugin's only symbol.
extern "C" const onefold::MpiApi* onefold_mpi_api();

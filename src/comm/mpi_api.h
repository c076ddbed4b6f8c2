// What the MPI plugin (src/comm_mpi, libonefold_mpi.so) gives the rest of Onefold: a table of
// functions. Everything that knows MPI is behind it, so the program starts where MPI is missing,
// and everything that can be tested or must throw is in front of it.
#pragma once

#include <cstdint>

namespace onefold {

// Changes with every change of the table: a plugin of another build is refused.
inline constexpr int kMpiApiVersion = 2;

// One channel: a communicator of its own, and some lists of messages under way ("groups").
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
  // Of the ranks on this machine that gave the same key: how many there are, and which is ours. All
  // ranks at once.
  void (*place)(uint64_t key, int* rank, int* ranks);

  // open() begins to make the port; it is ready when group 0 is done. All ranks must open it.
  MpiPort* (*open)();
  void (*close)(MpiPort*);

  // Add a message to a group; its number in the group counts from 0. At most 2 GiB - 1 bytes.
  void (*send)(MpiPort*, int group, const void* data, int64_t bytes, int to, int tag);
  void (*receive)(MpiPort*, int group, void* data, int64_t bytes, int from, int tag);
  // Moves things on. 1: the whole group is done, and empty again; 0: not yet; -1: see error().
  int (*poll)(MpiPort*, int group);
  int (*is_pending)(MpiPort*, int group, int message);
  // Asks MPI to give up what is under way, and forgets errors. Until poll() says that the group is
  // done, MPI may still read and write the messages' memory. A port that is still being made is
  // left alone, for good: then the group is empty, and the port must not be closed.
  void (*cancel)(MpiPort*, int group);
  const char* (*error)(MpiPort*);

  // MPI's own collectives on floats, for comparison: returns when done. `elems` as MPI counts them:
  // of a rank's shard, of its piece, of the whole, of the data, or of a block.
  int (*native)(MpiPort*, int collective, const float* from, float* to, int64_t elems);
};

}  // namespace onefold

// The plugin's only symbol.
extern "C" const onefold::MpiApi* onefold_mpi_api();

// What NCCL is to Onefold: a table of functions. The library is found at run time (nccl_library.h),
// so the program starts where it is missing; a test puts an exchange of its own behind the table.
// Code that throws, and whatever can be tested without NCCL, is in front of it.
#pragma once

#include <cstdint>

#include "kernels/rank_memory.h"
#include "tensor/tensor.h"

namespace onefold {

// By which the ranks of one channel find each other.
struct NcclId {
  char bytes[128];
};

// One channel: a communicator of NCCL's, whose work is put on the stream of a lane.
struct NcclPort;

// A function that returns text returns null, or what is wrong. Calls put work on the lane's stream
// and do not wait for it. They are made on the thread that chose the card.
struct NcclApi {
  const char* (*library)();  // name and version
  const char* (*make_id)(NcclId* id);
  // All ranks call it at once; returns when all have.
  const char* (*open)(NcclPort** port, const NcclId* id, int rank, int ranks, RankMemory* memory);
  // When all work is done.
  void (*close)(NcclPort* port);
  // Ends the work that is under way, whatever it waits for; from any thread. Only close() may
  // follow.
  void (*abort)(NcclPort* port);
  // What has gone wrong with work that is under way; from any thread.
  const char* (*error)(NcclPort* port);

  // Calls between begin() and end() are one: none waits for another.
  const char* (*begin)(NcclPort* port);
  const char* (*end)(NcclPort* port);
  const char* (*all_gather)(NcclPort* port, const void* shard, void* whole, int64_t shard_bytes);
  const char* (*broadcast)(NcclPort* port, void* data, int64_t bytes, int root);
  const char* (*send)(NcclPort* port, const void* data, int64_t bytes, int to);
  const char* (*receive)(NcclPort* port, void* data, int64_t bytes, int from);
  // Sums in the library's own order.
  const char* (*reduce_scatter)(NcclPort* port, const void* whole, void* shard, int64_t shard_elems,
                                DType dtype);
  const char* (*all_reduce)(NcclPort* port, void* whole, int64_t elems, DType dtype);
};

}  // namespace onefold

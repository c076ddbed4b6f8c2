// libonefold_mpi.so: the functions of comm/mpi_api.h over the MPI library. A plugin, so that only a
// run under mpirun needs MPI installed. It only forwards: the order of messages, sums, checks and
// errors are in comm/mpi_channel.cpp.
#include <mpi.h>

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi_api.h"

namespace onefold {

struct MpiPort {
  MPI_Comm comm = MPI_COMM_NULL;
  bool opening = true;  // group 0 holds the request that creates comm
  std::vector<MPI_Request> groups[kMpiGroups];
  std::vector<int> done;  // scratch of poll()
  std::vector<MPI_Status> statuses;
  std::string error;

  bool ok(int code) {
    if (code == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    error.assign(text, static_cast<size_t>(length));
    return false;
  }
};

namespace {

const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  for (char& c : text)  // "Open MPI v4.1.4, package: ..., repo rev: ..., date"
    if (c == ',' || c == '\n') c = '\0';
  return text;
}

const char* start() {
  int given = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS)
    return "MPI_Init_thread failed";
  if (given < MPI_THREAD_MULTIPLE)
    return "this MPI library does not support calls from several threads (MPI_THREAD_MULTIPLE)";
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return nullptr;
}

void finish() { MPI_Finalize(); }
void end_all(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

int rank() {
  int result = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &result);
  return result;
}

int ranks() {
  int result = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &result);
  return result;
}

void place(uint64_t key, int* rank, int* ranks) {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int own = 0, size = 0;
  MPI_Comm_rank(host, &own);
  MPI_Comm_size(host, &size);
  std::vector<uint64_t> keys(static_cast<size_t>(size));
  MPI_Allgather(&key, 1, MPI_UINT64_T, keys.data(), 1, MPI_UINT64_T, host);
  *rank = *ranks = 0;
  for (int r = 0; r < size; ++r) {
    if (keys[static_cast<size_t>(r)] != key) continue;
    if (r < own) ++*rank;
    ++*ranks;
  }
  MPI_Comm_free(&host);
}

MpiPort* open() {
  auto* port = new MpiPort;
  port->groups[0].push_back(MPI_REQUEST_NULL);
  port->ok(MPI_Comm_idup(MPI_COMM_WORLD, &port->comm, &port->groups[0].back()));
  return port;
}

void close(MpiPort* port) {
  MPI_Comm_free(&port->comm);
  delete port;
}

void send(MpiPort* port, int group, const void* data, int64_t bytes, int to, int tag) {
  auto& requests = port->groups[group];
  requests.push_back(MPI_REQUEST_NULL);
  port->ok(
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, port->comm, &requests.back()));
}

void receive(MpiPort* port, int group, void* data, int64_t bytes, int from, int tag) {
  auto& requests = port->groups[group];
  requests.push_back(MPI_REQUEST_NULL);
  port->ok(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE,
                     from == kMpiAnyRank ? MPI_ANY_SOURCE : from, tag, port->comm,
                     &requests.back()));
}

// Testsome, not Testall: it marks the requests that are done, so that missing ranks can be named.
int poll(MpiPort* port, int group) {
  if (!port->error.empty()) return -1;
  auto& requests = port->groups[group];
  if (requests.empty()) return 1;
  port->done.resize(requests.size());
  port->statuses.resize(requests.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                port->done.data(), port->statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) {
      if (port->ok(port->statuses[static_cast<size_t>(i)].MPI_ERROR)) continue;
      // It is complete, and must not be tested again.
      requests[static_cast<size_t>(port->done[static_cast<size_t>(i)])] = MPI_REQUEST_NULL;
    }
    if (!port->error.empty()) return -1;
  }
  if (!port->ok(code)) return -1;
  for (const MPI_Request& request : requests)
    if (request != MPI_REQUEST_NULL) return 0;
  requests.clear();
  port->opening = false;
  return 1;
}

int is_pending(MpiPort* port, int group, int message) {
  const auto& requests = port->groups[group];
  return static_cast<size_t>(message) < requests.size() &&
         requests[static_cast<size_t>(message)] != MPI_REQUEST_NULL;
}

// A cancelled request is complete only when a test reports it: a receive that has been matched
// already is written to the end, and Open MPI cancels no sends at all. The requests are not freed
// instead, because then nothing would report when MPI no longer uses their memory.
void cancel(MpiPort* port, int group) {
  port->error.clear();
  auto& requests = port->groups[group];
  if (port->opening) requests.clear();  // MPI_Cancel does not apply to MPI_Comm_idup
  for (MPI_Request& request : requests)
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
}

const char* error(MpiPort* port) { return port->error.c_str(); }

int native(MpiPort* port, int collective, const float* from, float* to, int64_t elems) {
  const auto n = static_cast<int>(elems);
  switch (static_cast<Collective>(collective)) {
    case Collective::all_gather:
      return MPI_Allgather(from, n, MPI_FLOAT, to, n, MPI_FLOAT, port->comm);
    case Collective::reduce_scatter:
      return MPI_Reduce_scatter_block(from, to, n, MPI_FLOAT, MPI_SUM, port->comm);
    case Collective::all_reduce:
      return MPI_Allreduce(MPI_IN_PLACE, to, n, MPI_FLOAT, MPI_SUM, port->comm);
    case Collective::broadcast:
      return MPI_Bcast(to, n, MPI_FLOAT, 0, port->comm);
    case Collective::all_to_all:
      return MPI_Alltoall(from, n, MPI_FLOAT, to, n, MPI_FLOAT, port->comm);
    default:
      return MPI_Barrier(port->comm);
  }
}

constexpr MpiApi kApi = {kMpiApiVersion, library,    start,  finish, end_all, rank,
                         ranks,          place,      open,   close,  send,    receive,
                         poll,           is_pending, cancel, error,  native};

}  // namespace
}  // namespace onefold

extern "C" __attribute__((visibility("default"))) const onefold::MpiApi* onefold_mpi_api() {
  return &onefold::kApi;
}

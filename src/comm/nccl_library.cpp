#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <type_traits>

#include "base/plugin.h"

namespace onefold {
namespace nccl_table {
namespace {

// NCCL's binary interface, as its version 2 keeps it: a communicator and a stream are pointers, an
// identifier is 128 bytes that are passed by value, enumerations are ints.
using Comm = void*;
using Stream = void*;
constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kBytes = 1, kF16 = 6, kF32 = 7, kF64 = 8, kBf16 = 9;  // types
constexpr int kSum = 0;

struct Functions {
  int (*version)(int*);
  int (*make_id)(NcclId*);
  int (*init)(Comm*, int ranks, NcclId, int rank);
  int (*destroy)(Comm);
  int (*abort)(Comm);
  int (*async_error)(Comm, int*);
  const char* (*text)(int);
  const char* (*last_error)(Comm);
  int (*begin)();
  int (*end)();
  int (*all_gather)(const void*, void*, size_t, int type, Comm, Stream);
  int (*broadcast)(const void*, void*, size_t, int type, int root, Comm, Stream);
  int (*send)(const void*, size_t, int type, int to, Comm, Stream);
  int (*receive)(void*, size_t, int type, int from, Comm, Stream);
  int (*reduce_scatter)(const void*, void*, size_t, int type, int op, Comm, Stream);
  int (*all_reduce)(const void*, void*, size_t, int type, int op, Comm, Stream);
};
Functions nccl{};

int type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return kF16;
    case DType::bf16:
      return kBf16;
    case DType::f64:
      return kF64;
    default:
      return kF32;
  }
}

// The text lives until the thread's next one.
const char* problem(int status) {
  if (status == kSuccess || status == kInProgress) return nullptr;
  thread_local std::string text;
  const char* last = nccl.last_error(nullptr);
  text = last != nullptr && *last != '\0' ? fmt::format("{} ({})", nccl.text(status), last)
                                          : nccl.text(status);
  return text.c_str();
}

struct Port {
  std::atomic<Comm> comm{nullptr};  // null: aborted
  Stream stream = nullptr;
};

Port* own(NcclPort* port) { return reinterpret_cast<Port*>(port); }

const char* library() {
  static const std::string text = [] {
    int version = 0;
    (void)nccl.version(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  }();
  return text.c_str();
}

const char* make_id(NcclId* id) { return problem(nccl.make_id(id)); }

const char* open(NcclPort** port, const NcclId* id, int rank, int ranks, RankMemory* memory) {
  auto made = std::make_unique<Port>();
  made->stream = memory->stream();
  Comm comm = nullptr;
  if (const char* wrong = problem(nccl.init(&comm, ranks, *id, rank))) return wrong;
  made->comm = comm;
  *port = reinterpret_cast<NcclPort*>(made.release());
  return nullptr;
}

void close(NcclPort* port) {
  if (Comm comm = own(port)->comm.exchange(nullptr)) (void)nccl.destroy(comm);
  delete own(port);
}

void abort(NcclPort* port) {
  if (Comm comm = own(port)->comm.exchange(nullptr)) (void)nccl.abort(comm);
}

const char* error(NcclPort* port) {
  const Comm comm = own(port)->comm.load();
  if (comm == nullptr) return "it was ended";
  int status = kSuccess;
  const int asked = nccl.async_error(comm, &status);
  return problem(asked != kSuccess ? asked : status);
}

const char* begin(NcclPort*) { return problem(nccl.begin()); }
const char* end(NcclPort*) { return problem(nccl.end()); }

const char* all_gather(NcclPort* port, const void* shard, void* whole, int64_t shard_bytes) {
  return problem(nccl.all_gather(shard, whole, static_cast<size_t>(shard_bytes), kBytes,
                                 own(port)->comm, own(port)->stream));
}

const char* broadcast(NcclPort* port, void* data, int64_t bytes, int root) {
  return problem(nccl.broadcast(data, data, static_cast<size_t>(bytes), kBytes, root,
                                own(port)->comm, own(port)->stream));
}

const char* send(NcclPort* port, const void* data, int64_t bytes, int to) {
  return problem(
      nccl.send(data, static_cast<size_t>(bytes), kBytes, to, own(port)->comm, own(port)->stream));
}

const char* receive(NcclPort* port, void* data, int64_t bytes, int from) {
  return problem(nccl.receive(data, static_cast<size_t>(bytes), kBytes, from, own(port)->comm,
                              own(port)->stream));
}

const char* reduce_scatter(NcclPort* port, const void* whole, void* shard, int64_t shard_elems,
                           DType dtype) {
  return problem(nccl.reduce_scatter(whole, shard, static_cast<size_t>(shard_elems), type_of(dtype),
                                     kSum, own(port)->comm, own(port)->stream));
}

const char* all_reduce(NcclPort* port, void* whole, int64_t elems, DType dtype) {
  return problem(nccl.all_reduce(whole, whole, static_cast<size_t>(elems), type_of(dtype), kSum,
                                 own(port)->comm, own(port)->stream));
}

constexpr NcclApi kApi = {library,        make_id,   open,       close,     abort, error,
                          begin,          end,       all_gather, broadcast, send,  receive,
                          reduce_scatter, all_reduce};

constexpr const char* kLibrary = "libnccl.so.2";

// Never unloaded: ports may still be open.
NcclLibrary load() {
  void* handle = open_library(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return {nullptr, fmt::format("NCCL does not load: {}. Install it (the package libnccl2, or the "
                                 "wheel nvidia-nccl-cu13)",
                                 dlerror())};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(nccl.version, "ncclGetVersion");
  find(nccl.make_id, "ncclGetUniqueId");
  find(nccl.init, "ncclCommInitRank");
  find(nccl.destroy, "ncclCommDestroy");
  find(nccl.abort, "ncclCommAbort");
  find(nccl.async_error, "ncclCommGetAsyncError");
  find(nccl.text, "ncclGetErrorString");
  find(nccl.last_error, "ncclGetLastError");
  find(nccl.begin, "ncclGroupStart");
  find(nccl.end, "ncclGroupEnd");
  find(nccl.all_gather, "ncclAllGather");
  find(nccl.broadcast, "ncclBroadcast");
  find(nccl.send, "ncclSend");
  find(nccl.receive, "ncclRecv");
  find(nccl.reduce_scatter, "ncclReduceScatter");
  find(nccl.all_reduce, "ncclAllReduce");
  if (!missing.empty())
    return {nullptr, fmt::format("{} lacks {}: install NCCL 2.13 or later", kLibrary, missing)};
  return {&kApi, ""};
}

}  // namespace
}  // namespace nccl_table

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = nccl_table::load();
  return library;
}

}  // namespace onefold

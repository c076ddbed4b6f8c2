// Preloaded before CUDA's libraries: counts their calls by kind, and lets one of them fail.
// ONEFOLD_FAILING_CALL="launch 57": the 57th launch of a kernel. ONEFOLD_KILLED_AT, likewise: where
// the process is killed. ONEFOLD_CALLS_FILE: where the counts go at the end. Knows nothing of
// CUDA's headers: arguments are passed on as they come.
#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Errors as CUDA numbers them.
constexpr int kOutOfMemory = 2, kIllegalAddress = 700, kLaunchFailure = 719, kExecutionFailed = 13;

struct Kind {
  const char* name;
  int error;
  std::atomic<int64_t> calls{0};
  Kind(const char* name, int error) : name(name), error(error) {}
};
Kind kinds[] = {{"launch", kLaunchFailure}, {"product", kExecutionFailed},
                {"copy", kIllegalAddress},  {"memory", kOutOfMemory},
                {"pinned", kOutOfMemory},   {"wait", kIllegalAddress}};
enum { kLaunch, kProduct, kCopy, kMemory, kPinned, kWait };

thread_local int pending = 0;  // what cudaGetLastError returns next

// Whether `wanted` ("launch 57", or null) is this call of the kind.
bool is_this(const char* wanted, const Kind& kind, int64_t call) {
  if (wanted == nullptr) return false;
  const char* const space = std::strchr(wanted, ' ');
  const auto length = static_cast<size_t>(space - wanted);
  return std::strlen(kind.name) == length && std::memcmp(wanted, kind.name, length) == 0 &&
         call == std::atoll(space);
}

int failure(int which) {
  static const char* const failing = std::getenv("ONEFOLD_FAILING_CALL");
  static const char* const killed = std::getenv("ONEFOLD_KILLED_AT");
  Kind& kind = kinds[which];
  const int64_t call = ++kind.calls;
  if (is_this(killed, kind, call)) ::raise(SIGKILL);
  return is_this(failing, kind, call) ? kind.error : 0;
}

// Of the library that the plugin has loaded: it is not among the program's own, where RTLD_NEXT
// looks.
template <class Function>
Function* next(const char* name, const char* library = "libcudart.so.13") {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded ? reinterpret_cast<Function*>(dlsym(loaded, name)) : nullptr;
}

using Pointer = void*;
using MemCreate = int(Pointer, size_t, Pointer, unsigned long long);
MemCreate* mem_create = nullptr;
int failing_mem_create(Pointer handle, size_t bytes, Pointer properties, unsigned long long flags) {
  if (const int error = failure(kMemory)) return error;
  return mem_create(handle, bytes, properties, flags);
}

[[gnu::destructor]] void write_counts() {
  const char* const path = std::getenv("ONEFOLD_CALLS_FILE");
  FILE* const file = path ? std::fopen(path, "w") : nullptr;
  if (!file) return;
  for (const Kind& kind : kinds)
    std::fprintf(file, "%s %lld\n", kind.name, static_cast<long long>(kind.calls));
  std::fclose(file);
}

}  // namespace

struct Dim3 {
  unsigned x, y, z;
};

extern "C" {

int __cudaLaunchKernel(Pointer kernel, Dim3 grid, Dim3 block, Pointer* args, size_t bytes,
                       Pointer stream) {
  using Call = int(Pointer, Dim3, Dim3, Pointer*, size_t, Pointer);
  static auto* const call = next<Call>("__cudaLaunchKernel");
  if (const int error = failure(kLaunch)) return pending = error;
  return call(kernel, grid, block, args, bytes, stream);
}

int cudaLaunchKernelExC(Pointer config, Pointer kernel, Pointer* args) {
  static auto* const call = next<int(Pointer, Pointer, Pointer*)>("cudaLaunchKernelExC");
  if (const int error = failure(kLaunch)) return pending = error;
  return call(config, kernel, args);
}

int cudaGetLastError() {
  static auto* const call = next<int()>("cudaGetLastError");
  const int real = call(), made_up = pending;
  pending = 0;
  return made_up ? made_up : real;
}

int cudaMemcpyAsync(Pointer dst, Pointer src, size_t bytes, int kind, Pointer stream) {
  static auto* const call = next<int(Pointer, Pointer, size_t, int, Pointer)>("cudaMemcpyAsync");
  if (const int error = failure(kCopy)) return error;
  return call(dst, src, bytes, kind, stream);
}

int cudaMallocHost(Pointer* block, size_t bytes) {
  static auto* const call = next<int(Pointer*, size_t)>("cudaMallocHost");
  if (const int error = failure(kPinned)) return error;
  return call(block, bytes);
}

int cudaStreamSynchronize(Pointer stream) {
  static auto* const call = next<int(Pointer)>("cudaStreamSynchronize");
  if (const int error = failure(kWait)) return error;
  return call(stream);
}

int cudaGetDriverEntryPointByVersion(const char* name, Pointer* function, unsigned version,
                                     unsigned long long flags, Pointer found) {
  using Call = int(const char*, Pointer*, unsigned, unsigned long long, Pointer);
  static auto* const call = next<Call>("cudaGetDriverEntryPointByVersion");
  const int status = call(name, function, version, flags, found);
  if (status == 0 && std::strcmp(name, "cuMemCreate") == 0 && *function) {
    mem_create = reinterpret_cast<MemCreate*>(*function);
    *function = reinterpret_cast<Pointer>(&failing_mem_create);
  }
  return status;
}

int cublasLtMatmul(Pointer handle, Pointer product, Pointer alpha, Pointer a, Pointer a_layout,
                   Pointer b, Pointer b_layout, Pointer beta, Pointer c, Pointer c_layout,
                   Pointer d, Pointer d_layout, Pointer algorithm, Pointer workspace, size_t bytes,
                   Pointer stream) {
  using Call = int(Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer,
                   Pointer, Pointer, Pointer, Pointer, Pointer, size_t, Pointer);
  static auto* const call = next<Call>("cublasLtMatmul", "libcublasLt.so.13");
  if (const int error = failure(kProduct)) return error;
  return call(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
              algorithm, workspace, bytes, stream);
}

}  // extern "C"

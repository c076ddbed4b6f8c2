// What a profiler does to see ranges: NVTX loads this library, which takes the calls and writes
// their names to the file ONEFOLD_RANGES, a line for each beginning and "." for each end.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* ranges() {
  static std::FILE* const file = std::fopen(std::getenv("ONEFOLD_RANGES"), "w");
  return file;
}

int NVTX_API push(const char* name) {
  std::fprintf(ranges(), "%s\n", name);
  std::fflush(ranges());
  return 0;
}

int NVTX_API pop() {
  std::fprintf(ranges(), ".\n");
  std::fflush(ranges());
  return 0;
}

template <class Function>
void take(NvtxFunctionTable table, int id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  take(table, NVTX_CBID_CORE_RangePushA, push);
  take(table, NVTX_CBID_CORE_RangePop, pop);
  return 1;
}

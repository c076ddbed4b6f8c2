#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "cuda/device_memory.h"

namespace onefold::cuda {
namespace {

// Of the driver's library, which the runtime has loaded: linking to it would keep the plugin from
// loading where there is none.
template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kVersion = 12000;
  check(cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found),
        "ask the driver for a function");
  require(found == cudaDriverEntryPointSuccess && function, "the driver has no {}", name);
  return reinterpret_cast<Function*>(function);
}

#define ONEFOLD_DRIVER(name) static auto* const call = driver_function<decltype(name)>(#name)

void check_driver(CUresult status, const char* what) {
  require(status == CUDA_SUCCESS, "the driver could not {}: error {}", what,
          static_cast<int>(status));
}

CUmemAllocationProp properties(const Card& card) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = card.number();
  return prop;
}

CUdeviceptr address_of(const char* at) { return reinterpret_cast<CUdeviceptr>(at); }

}  // namespace

// A granule is the driver's least, or a share of the card: thousands of them are quickly made.
MappedMemory::MappedMemory(const Card& card) : card_(card) {
  card_.use();
  size_t free = 0, total = 0, least = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the card's memory");
  const CUmemAllocationProp prop = properties(card_);
  {
    ONEFOLD_DRIVER(cuMemGetAllocationGranularity);
    check_driver(call(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "tell the size of its pages");
  }
  constexpr size_t kGranules = 4096, kTimes = 16;  // addresses for what lies scattered
  const size_t granule = (total / kGranules + least - 1) / least * least;
  const size_t bytes = total / granule * granule * kTimes;
  ONEFOLD_DRIVER(cuMemAddressReserve);
  CUdeviceptr begin = 0;
  check_driver(call(&begin, bytes, 0, 0, 0), "reserve addresses");
  begin_ = reinterpret_cast<char*>(begin);
  bytes_ = static_cast<int64_t>(bytes);
  granule_ = static_cast<int64_t>(granule);
  card_bytes_ = static_cast<int64_t>(total);
}

MappedMemory::~MappedMemory() {
  ONEFOLD_DRIVER(cuMemAddressFree);
  (void)call(address_of(begin_), static_cast<size_t>(bytes_));
}

std::optional<MappedMemory::Handle> MappedMemory::create() const {
  ONEFOLD_DRIVER(cuMemCreate);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = properties(card_);
  const CUresult status = call(&handle, static_cast<size_t>(granule_), &prop, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check_driver(status, "give memory");
  return handle;
}

void MappedMemory::release(Handle handle) const {
  ONEFOLD_DRIVER(cuMemRelease);
  (void)call(handle);
}

void MappedMemory::map(char* at, Handle handle) const {
  const auto bytes = static_cast<size_t>(granule_);
  {
    ONEFOLD_DRIVER(cuMemMap);
    check_driver(call(address_of(at), bytes, 0, handle, 0), "map memory");
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = card_.number();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ONEFOLD_DRIVER(cuMemSetAccess);
  check_driver(call(address_of(at), bytes, &access, 1), "allow the use of memory");
}

void MappedMemory::unmap(char* at) const {
  ONEFOLD_DRIVER(cuMemUnmap);
  (void)call(address_of(at), static_cast<size_t>(granule_));
}

}  // namespace onefold::cuda

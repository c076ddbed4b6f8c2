# interface_hash.h: a hash of the headers by which program and CUDA plugin know each other's classes. A plugin that was
# built with others would call the wrong functions; it is refused instead. Computed when CMake configures, which it does
# again after each change of one of them.
set(interface_headers kernels/kernels.h kernels/rank_memory.h kernels/packer.h kernels/packing.h
  kernels/packer_scratch.h kernels/wire_format.h device/device.h device/lane.h device/hardware.h device/cuda_api.h tensor/tensor.h tensor/memory_source.h tensor/ledger.h base/philox.h base/thread_pool.h)
set(interface_text "")
foreach(header ${interface_headers})
  file(SHA256 ${CMAKE_SOURCE_DIR}/src/${header} hash)
  string(APPEND interface_text "${header} ${hash}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${header})
endforeach()
string(SHA256 ONEFOLD_INTERFACE_HASH "${interface_text}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/interface/interface_hash.h
  CONTENT "#pragma once\n#define ONEFOLD_INTERFACE_HASH \"@ONEFOLD_INTERFACE_HASH@\"\n" @ONLY)

# TARGET may include interface_hash.h.
function(onefold_interface_hash target)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated/interface)
endfunction()

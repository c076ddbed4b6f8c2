# The device cuda is a plugin, found at run time: the program starts without CUDA, and says what it lacks. Built where
# there is a CUDA toolkit.
if(ONEFOLD_SANITIZE)  # the sanitizers of the host see nothing of the card; compute-sanitizer does
  return()
endif()
# NVIDIA's wheels, where scripts/cuda.sh has installed them because the system has no toolkit.
set(ONEFOLD_CUDA_WHEELS ${CMAKE_SOURCE_DIR}/build/cuda CACHE PATH "Folder of NVIDIA's wheels")
find_package(CUDAToolkit 13 QUIET)
if(NOT CUDAToolkit_FOUND AND EXISTS ${ONEFOLD_CUDA_WHEELS}/complete)
  set(CUDAToolkit_ROOT ${ONEFOLD_CUDA_WHEELS}/nvidia/cu13)
  find_package(CUDAToolkit 13 QUIET)
endif()
if(NOT CUDAToolkit_FOUND)
  message(STATUS "No CUDA toolkit: the device cuda is not built")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
# For which cards: CMake's list of architectures; `release`: every card since 2020, and PTX for what comes after them.
# Empty: the cards of this machine, or Hopper where there are none.
set(ONEFOLD_CUDA_ARCHITECTURES "" CACHE STRING "Cards to compile for: 90a-real;100, or release")
set(architectures ${ONEFOLD_CUDA_ARCHITECTURES})
if(architectures STREQUAL "release")
  set(architectures 80-real 89-real 90a-real 100 120)
elseif(NOT architectures)
  find_program(NVIDIA_SMI nvidia-smi)
  mark_as_advanced(NVIDIA_SMI)
  if(NVIDIA_SMI)
    execute_process(COMMAND ${NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE capabilities
      ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+[.][0-9]" architectures "${capabilities}")
    list(REMOVE_DUPLICATES architectures)
    list(TRANSFORM architectures REPLACE "[.]" "")
    list(FILTER architectures EXCLUDE REGEX "^[1-7][0-9]$")  # which the kernels cannot do with
    list(TRANSFORM architectures REPLACE "^90$" "90a")
    list(TRANSFORM architectures APPEND "-real")
  endif()
  if(NOT architectures)
    set(architectures 90a-real)
  endif()
endif()
message(STATUS "The device cuda is compiled for ${architectures}")
set(CMAKE_CUDA_ARCHITECTURES ${architectures})
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# Attention in 16 bits is cuDNN's where its headers and those of its frontend are found (the wheel nvidia-cudnn-frontend,
# or the folder ONEFOLD_CUDNN_FRONTEND); the library itself is looked for at run time.
set(ONEFOLD_CUDNN_FRONTEND "" CACHE PATH "Folder of cudnn_frontend.h")
find_package(Python3 QUIET COMPONENTS Interpreter)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${ONEFOLD_CUDA_WHEELS}/nvidia/cudnn/include)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${ONEFOLD_CUDNN_FRONTEND} ${CUDAToolkit_INCLUDE_DIRS}
  ${ONEFOLD_CUDA_WHEELS}/include ${Python3_SITELIB}/include)
mark_as_advanced(CUDNN_INCLUDE CUDNN_FRONTEND_INCLUDE)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/cuda/*.cu)
if(CUDNN_INCLUDE AND CUDNN_FRONTEND_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/no_cudnn[.]cpp$")
else()
  message(STATUS "No headers of cuDNN and its frontend: attention in 16 bits will run on slower kernels")
  list(FILTER cuda_sources EXCLUDE REGEX "/cudnn_attention[.]cpp$")
endif()
# Ranges for profilers, where NVTX's headers are found (the wheel nvidia-nvtx, or the toolkit's own).
find_path(NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${ONEFOLD_CUDA_WHEELS}/nvidia/cu13/include
  ${ONEFOLD_CUDA_WHEELS}/nvidia/nvtx/include)
mark_as_advanced(NVTX_INCLUDE)
if(NVTX_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/no_ranges[.]cpp$")
else()
  list(FILTER cuda_sources EXCLUDE REGEX "/ranges[.]cpp$")
endif()
# The plugin and the program must size things alike: the same file is in both.
add_library(onefold_cuda MODULE ${cuda_sources} ${CMAKE_SOURCE_DIR}/src/device/cuda_scratch.cpp
  ${CMAKE_SOURCE_DIR}/src/device/cuda_architectures.cpp ${CMAKE_SOURCE_DIR}/src/device/lane.cpp
  ${CMAKE_SOURCE_DIR}/src/tensor/memory_source.cpp)
onefold_own_folder(onefold_cuda cuda)
onefold_interface_hash(onefold_cuda)
if(CUDNN_INCLUDE AND CUDNN_FRONTEND_INCLUDE)
  target_include_directories(onefold_cuda SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
endif()
if(NVTX_INCLUDE)
  target_include_directories(onefold_cuda SYSTEM PRIVATE ${NVTX_INCLUDE})
endif()
target_link_libraries(onefold_cuda PRIVATE onefold_device_headers onefold_base CUDA::cudart CUDA::cublasLt ${CMAKE_DL_LIBS})
list(JOIN architectures " " architecture_words)
target_compile_definitions(onefold_cuda PRIVATE ONEFOLD_CUDA_ARCHITECTURES="${architecture_words}")
target_link_options(onefold_cuda PRIVATE -Wl,--as-needed -Wl,--exclude-libs,ALL)
target_compile_options(onefold_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off>
  # --fmad: as -ffp-contract. Functions that are constexpr (Philox) run on the card too.
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
# Its headers take most of a minute to optimise, for calls that only start kernels.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cuda/cudnn_attention.cpp PROPERTIES
  COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
install(TARGETS onefold_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

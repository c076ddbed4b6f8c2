# The device cuda is a plugin, found at run time: the program starts without CUDA, and says what it lacks. Built where
# there is a CUDA toolkit. Code for sm_90 (Hopper), and PTX for what comes after it.
if(ONEFOLD_SANITIZE)  # the sanitizers of the host see nothing of the card; compute-sanitizer does
  return()
endif()
find_package(CUDAToolkit 13 QUIET)
if(NOT CUDAToolkit_FOUND)
  message(STATUS "No CUDA toolkit: the device cuda is not built")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
set(CMAKE_CUDA_ARCHITECTURES 90)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/cuda/*.cu)
add_library(onefold_cuda MODULE ${cuda_sources})
onefold_own_folder(onefold_cuda cuda)
target_link_libraries(onefold_cuda PRIVATE onefold_device_headers onefold_base CUDA::cudart CUDA::cublasLt)
target_link_options(onefold_cuda PRIVATE -Wl,--as-needed -Wl,--exclude-libs,ALL)
target_compile_options(onefold_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off>
  # --fmad: as -ffp-contract. Functions that are constexpr (Philox) run on the card too.
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
install(TARGETS onefold_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

# onefold_layer(NAME DEPENDS ... PRIVATE ...): the object library of src/NAME. All sources below the folder belong
# to it (globbed: a new file needs no edit here). A layer sees the headers of the layers it names, and no others' symbols.

function(onefold_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
    # GCC 12 sees in std::string what is not there
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
    -ffp-contract=off)     # the compiler must not fuse on its own: bits would depend on its mood
  if(ONEFOLD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ONEFOLD_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${ONEFOLD_SANITIZE})
  endif()
endfunction()

# What no run spends time in (tests, command line, configuration) is compiled for the compiler's speed, not its own.
function(onefold_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Headers that half of all sources would read again: parsing them once takes a third off a clean build. Targets with the
# same flags share one. Not for kernels, which include themselves once for each SIMD target.
set(ONEFOLD_COMMON_HEADERS <algorithm> <cstdint> <functional> <map> <memory> <optional> <span> <string> <vector>
  <fmt/format.h> <nlohmann/json.hpp>)

function(onefold_layer name)
  cmake_parse_arguments(L "" "" "DEPENDS;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  add_library(onefold_${name} STATIC ${sources})
  target_include_directories(onefold_${name} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)
  set(deps)
  foreach(d ${L_DEPENDS})
    if(d MATCHES "::")
      list(APPEND deps ${d})
    else()
      list(APPEND deps onefold_${d})
    endif()
  endforeach()
  target_link_libraries(onefold_${name} PUBLIC ${deps} PRIVATE ${L_PRIVATE})
  onefold_warnings(onefold_${name})
  if(name MATCHES "^(kernel_cases|config|run)$")
    onefold_cold(onefold_${name})
  endif()
  if(name STREQUAL "base")
    target_precompile_headers(onefold_base PRIVATE ${ONEFOLD_COMMON_HEADERS})
  elseif(NOT name STREQUAL "kernels")
    target_precompile_headers(onefold_${name} REUSE_FROM onefold_base)
  endif()
  set_property(GLOBAL APPEND PROPERTY ONEFOLD_LAYERS onefold_${name})
endfunction()

# Adds build_commit(): the commit of the sources, "-dirty" if they differ from it, as of the last configuration.
function(onefold_build_commit target)
  set(ONEFOLD_COMMIT "")
  find_program(GIT git)
  if(GIT AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
                    OUTPUT_VARIABLE ONEFOLD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/cmake/build_commit.cpp.in ${CMAKE_BINARY_DIR}/generated/build_commit.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated/build_commit.cpp)
endfunction()

# The library that other programs link: shared, so that they need none of our dependencies, exporting the public API alone.
# Installed with its headers as a CMake package.
function(onefold_library)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/api/*.cpp)
  add_library(onefold SHARED ${sources})
  add_library(onefold::onefold ALIAS onefold)
  target_link_libraries(onefold PRIVATE onefold_run)
  target_link_options(onefold PRIVATE -Wl,--exclude-libs,ALL)
  target_include_directories(onefold INTERFACE
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(onefold INTERFACE cxx_std_20)
  set_target_properties(onefold PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  onefold_warnings(onefold)

  include(GNUInstallDirs)
  include(CMakePackageConfigHelpers)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/onefold)
  install(TARGETS onefold EXPORT onefoldTargets)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/onefold DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT onefoldTargets NAMESPACE onefold:: DESTINATION ${package})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/onefoldConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_SOURCE_DIR}/cmake/onefoldConfig.cmake ${CMAKE_BINARY_DIR}/onefoldConfigVersion.cmake
          DESTINATION ${package})
endfunction()

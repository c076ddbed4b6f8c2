# What a layer is made of, and what it sees.
#
#   onefold_layer(NAME [COLD] [NO_COMMON_HEADERS] DEPENDS layers and libraries... PRIVATE libraries...)
#
# makes the static library onefold_NAME of all sources below src/NAME (globbed: a new file needs no edit here).
#
# A layer sees its own folder, and the headers at the top of the folders of the layers that it depends on, directly or
# through others. Any other header is not found by the compiler: there is no include path to src/, but folders of links
# in the build tree,
#   layers/own/NAME/NAME        the whole of src/NAME, for onefold_NAME alone
#   layers/public/NAME/NAME/*.h the headers at the top of src/NAME, for whoever depends on it
# so that headers in subfolders (kernels/cpu) are private to their layer.
#
# onefold_NAME_headers carries the second without the code, for plugins, which find the code in the program.

function(onefold_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
    # false positives of GCC 12 in std::string
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overread>
    -ffp-contract=off)     # where the compiler fuses by itself differs by version, target and inlining: other bits
  if(ONEFOLD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ONEFOLD_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${ONEFOLD_SANITIZE})
    # Each compiler has a way of its own to tell its code.
    target_compile_definitions(${target} PRIVATE ONEFOLD_SANITIZED)
    if(ONEFOLD_SANITIZE MATCHES "address")
      target_compile_definitions(${target} PRIVATE ONEFOLD_ASAN)
    endif()
  endif()
endfunction()

# For code in which no run spends time (tests, command line, configuration): it compiles faster, and runs slower.
function(onefold_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Headers that half of all sources would read again: parsing them once takes a third off a clean build. Targets with the
# same flags share one. NO_COMMON_HEADERS is for kernels, which include themselves once for each SIMD target.
set(ONEFOLD_COMMON_HEADERS <algorithm> <cstdint> <functional> <map> <memory> <optional> <span> <string> <vector>
  <fmt/format.h> <nlohmann/json.hpp>)

# Several files at a time share what their headers cost: a clean build takes half the time.
function(onefold_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ONEFOLD_UNITY} UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# A target sees all of src/FOLDER as FOLDER/....
function(onefold_own_folder target folder)
  set(own ${CMAKE_BINARY_DIR}/layers/own/${folder})
  file(MAKE_DIRECTORY ${own})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${folder} ${own}/${folder} SYMBOLIC)
  target_include_directories(${target} PRIVATE ${own})
endfunction()

function(onefold_public_headers name)
  set(public ${CMAKE_BINARY_DIR}/layers/public/${name})
  file(MAKE_DIRECTORY ${public}/${name})
  file(GLOB headers RELATIVE ${CMAKE_SOURCE_DIR}/src/${name} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.h)
  file(GLOB links RELATIVE ${public}/${name} ${public}/${name}/*)
  foreach(link ${links})
    if(NOT link IN_LIST headers)  # removed or renamed since the last configuration
      file(REMOVE ${public}/${name}/${link})
    endif()
  endforeach()
  foreach(header ${headers})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${name}/${header} ${public}/${name}/${header} SYMBOLIC)
  endforeach()
  add_library(onefold_${name}_headers INTERFACE)
  target_include_directories(onefold_${name}_headers INTERFACE ${public})
endfunction()

function(onefold_layer name)
  cmake_parse_arguments(L "COLD;NO_COMMON_HEADERS" "" "DEPENDS;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  add_library(onefold_${name} STATIC ${sources})
  onefold_own_folder(onefold_${name} ${name})
  onefold_public_headers(${name})
  target_link_libraries(onefold_${name} PUBLIC onefold_${name}_headers PRIVATE ${L_PRIVATE})
  foreach(d ${L_DEPENDS})
    if(d MATCHES "::")
      target_link_libraries(onefold_${name} PUBLIC ${d})
    else()
      target_link_libraries(onefold_${name} PUBLIC onefold_${d})
      target_link_libraries(onefold_${name}_headers INTERFACE onefold_${d}_headers)
    endif()
  endforeach()
  onefold_warnings(onefold_${name})
  if(L_COLD)
    onefold_cold(onefold_${name})
  endif()
  # Under a sanitizer time goes into kernels and what they are compared with; the rest only has to compile, and shares
  # the common headers, which have the flags that they were compiled with.
  if(ONEFOLD_SANITIZE AND name MATCHES "^(tensor|kernels|kernel_cases)$")
    target_compile_options(onefold_${name} PRIVATE -O1)
    set(L_NO_COMMON_HEADERS TRUE)
  endif()
  # Kernels include themselves; their cases and the model's units give one name several meanings.
  if(NOT name MATCHES "^(kernels|kernel_cases|model)$")
    onefold_unity(onefold_${name})
  endif()
  if(ONEFOLD_FUZZ AND NOT L_NO_COMMON_HEADERS)  # those that share headers have the same flags
    target_compile_options(onefold_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(name STREQUAL "base")
    target_precompile_headers(onefold_base PRIVATE ${ONEFOLD_COMMON_HEADERS})
  elseif(NOT L_NO_COMMON_HEADERS)
    target_precompile_headers(onefold_${name} REUSE_FROM onefold_base)
  endif()
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
  file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # of several parts on Debian
  configure_file(${CMAKE_SOURCE_DIR}/cmake/onefold.pc.in ${CMAKE_BINARY_DIR}/onefold.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/onefold.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

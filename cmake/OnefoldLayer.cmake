# onefold_layer(NAME DEPENDS ... PRIVATE ...): the object library of src/NAME. All sources below the folder belong
# to it (globbed: a new file needs no edit here). A layer sees the headers of the layers it names, and no others' symbols.

function(onefold_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
                                           -ffp-contract=off)
  if(ONEFOLD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ONEFOLD_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${ONEFOLD_SANITIZE})
  endif()
endfunction()

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
  set_property(GLOBAL APPEND PROPERTY ONEFOLD_LAYERS onefold_${name})
endfunction()

# The library that programs link: one archive of all layers, with the public headers, installable as a CMake package.
function(onefold_library)
  get_property(layers GLOBAL PROPERTY ONEFOLD_LAYERS)
  add_library(onefold INTERFACE)
  list(REVERSE layers)
  target_link_libraries(onefold INTERFACE ${layers})
endfunction()

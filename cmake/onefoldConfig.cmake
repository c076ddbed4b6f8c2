# find_package(onefold) gives the target onefold::onefold. The library is shared and brings its own dependencies.
include(${CMAKE_CURRENT_LIST_DIR}/onefoldTargets.cmake)

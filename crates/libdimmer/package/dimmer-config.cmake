# find_package(dimmer) gives the targets dimmer::dimmer and dimmer::static. They are found from where this file lies, so what
# is installed may be moved.
get_filename_component(_dimmer_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET dimmer::dimmer)
  add_library(dimmer::dimmer SHARED IMPORTED)
  set_target_properties(dimmer::dimmer PROPERTIES
    IMPORTED_LOCATION "${_dimmer_prefix}/lib/libdimmer.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_dimmer_prefix}/include")
  add_library(dimmer::static STATIC IMPORTED)
  set_target_properties(dimmer::static PROPERTIES
    IMPORTED_LOCATION "${_dimmer_prefix}/lib/libdimmer.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_dimmer_prefix}/include"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m"
    # A shared object does not export what it has from here.
    INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,libdimmer.a")
endif()
unset(_dimmer_prefix)

# find_package(utracefs) -> utracefs::utracefs (shared), utracefs::static
get_filename_component(_utracefs_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
# below lib, or lib/TRIPLET
foreach(_utracefs_up "../include" "../../include")
  get_filename_component(_utracefs_include "${_utracefs_lib}/${_utracefs_up}" ABSOLUTE)
  if(EXISTS "${_utracefs_include}/utracefs.h")
    break()
  endif()
endforeach()

include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET utracefs::utracefs)
  add_library(utracefs::utracefs SHARED IMPORTED)
  set_target_properties(utracefs::utracefs PROPERTIES
    IMPORTED_LOCATION "${_utracefs_lib}/libutracefs.so.0"
    IMPORTED_SONAME "libutracefs.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_utracefs_include}")
endif()
if(NOT TARGET utracefs::static)
  add_library(utracefs::static STATIC IMPORTED)
  set_target_properties(utracefs::static PROPERTIES
    IMPORTED_LOCATION "${_utracefs_lib}/libutracefs.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_utracefs_include}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()

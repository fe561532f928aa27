# Third-party libraries, each used behind one file or folder of ours (docs/architecture.md).
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)

add_library(tg_dependencies INTERFACE)
set(tg_pc_libs "") # what a program needs beside libtgrad.a; tgrad.pc names it

# tg_static(<out> <pkg-config prefix>): the archives of a module. HDF5 names none of those it is made of.
function(tg_static out prefix)
    set(archives)
    set(names ${${prefix}_LIBRARIES})
    if("hdf5" IN_LIST names)
        list(APPEND names sz aec z)
    endif()
    foreach(name ${names})
        find_library(TG_ARCHIVE_${name} lib${name}.a HINTS ${${prefix}_LIBRARY_DIRS} REQUIRED)
        list(APPEND archives ${TG_ARCHIVE_${name}})
    endforeach()
    set(${out} ${archives} PARENT_SCOPE)
endfunction()

# tg_use(<pkg-config module> [alternative ..]): link the first one found.
function(tg_use)
    foreach(module ${ARGN})
        string(MAKE_C_IDENTIFIER "TG_PC_${module}" prefix)
        pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
        if(${prefix}_FOUND AND TG_STANDALONE)
            tg_static(archives ${prefix})
            target_include_directories(tg_dependencies SYSTEM INTERFACE ${${prefix}_INCLUDE_DIRS})
            target_link_libraries(tg_dependencies INTERFACE ${archives})
            return()
        elseif(${prefix}_FOUND)
            target_link_libraries(tg_dependencies INTERFACE PkgConfig::${prefix})
            set(tg_pc_libs ${tg_pc_libs} ${${prefix}_LDFLAGS} PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "no pkg-config module of: ${ARGN}. Run scripts/setup to install what is missing.")
endfunction()

tg_use(lapacke)
tg_use(openblas)
if(TG_FFTW)
    tg_use(fftw3f)
    tg_use(fftw3)
endif()
tg_use(hdf5-serial hdf5)
tg_use(zlib)
tg_use(jansson)
tg_use(libfyaml)
if(TG_STANDALONE) # LAPACK is Fortran
    target_link_libraries(tg_dependencies INTERFACE gfortran)
    target_link_options(tg_dependencies INTERFACE LINKER:--exclude-libs,ALL,--gc-sections)
endif()
target_link_libraries(tg_dependencies INTERFACE OpenMP::OpenMP_C Threads::Threads ${CMAKE_DL_LIBS} m)

# What starts often links HDF5 as an archive, where there is one that links: the program, and the process that
# reads HDF5 files. The shared library loads three dozen others, which takes most of the time of a start.
set(tg_hdf5_archives "")
foreach(name hdf5 sz aec z)
    find_library(TG_ARCHIVE_${name} lib${name}.a HINTS ${TG_PC_hdf5_serial_LIBRARY_DIRS} ${TG_PC_hdf5_LIBRARY_DIRS})
    list(APPEND tg_hdf5_archives ${TG_ARCHIVE_${name}})
endforeach()
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${TG_PC_hdf5_serial_INCLUDE_DIRS} ${TG_PC_hdf5_INCLUDE_DIRS})
set(CMAKE_REQUIRED_LIBRARIES ${tg_hdf5_archives} m ${CMAKE_DL_LIBS} Threads::Threads)
check_c_source_compiles("#include <hdf5.h>
    int main(void) { return H5open() < 0; }" TG_HDF5_ARCHIVE_LINKS)
if(NOT TG_HDF5_ARCHIVE_LINKS)
    set(tg_hdf5_archives "")
endif()
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)

# What only the program needs: pictures.
pkg_check_modules(TG_PNG REQUIRED IMPORTED_TARGET libpng)

# Third-party libraries, each used behind one file or folder of ours (docs/architecture.md).
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)

add_library(tg_dependencies INTERFACE)
set(tg_pc_libs "") # what a program needs beside libtgrad.a; tgrad.pc names it

# tg_use(<pkg-config module> [alternative ..]): link the first one found.
function(tg_use)
    foreach(module ${ARGN})
        string(MAKE_C_IDENTIFIER "TG_PC_${module}" prefix)
        pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
        if(${prefix}_FOUND)
            target_link_libraries(tg_dependencies INTERFACE PkgConfig::${prefix})
            set(tg_pc_libs ${tg_pc_libs} ${${prefix}_LDFLAGS} PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "no pkg-config module of: ${ARGN}. Run scripts/setup to install what is missing.")
endfunction()

tg_use(openblas)
tg_use(lapacke)
if(TG_FFTW)
    tg_use(fftw3f)
    tg_use(fftw3)
endif()
tg_use(hdf5-serial hdf5)
tg_use(jansson)
tg_use(libfyaml)
target_link_libraries(tg_dependencies INTERFACE OpenMP::OpenMP_C Threads::Threads ${CMAKE_DL_LIBS} m)

# What only the program needs: pictures.
pkg_check_modules(TG_PNG REQUIRED IMPORTED_TARGET libpng)

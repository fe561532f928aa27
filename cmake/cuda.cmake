# The CUDA backend: objects of nvcc, linked by the C compiler.
# TG_CUDA_ARCHS says for which GPUs. The default is machine code for sm_80 (A100) and sm_90 (H100, H200),
# and PTX of the latter for what comes after.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TG_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(NOT TG_NVCC)
        message(FATAL_ERROR "TG_CUDA needs nvcc of the CUDA toolkit, which is neither on the PATH "
                            "nor in /usr/local/cuda/bin; set CUDACXX to its path.")
    endif()
    set(CMAKE_CUDA_COMPILER ${TG_NVCC})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()
set(TG_CUDA_ARCHS "${CMAKE_CUDA_ARCHITECTURES}" CACHE STRING
    "GPUs to compile for: 90 is machine code and PTX for sm_90, 90-real the code alone")
set(CMAKE_CUDA_ARCHITECTURES "${TG_CUDA_ARCHS}")
if(TG_STANDALONE) # runs where CUDA is not installed
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(tg_cudart CUDA::cudart_static)
else()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    set(tg_cudart CUDA::cudart)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# The flags of the C part that C++ knows as well, for the host side of each .cu file.
set(tg_cuda_host_flags -Wall -Wextra -Wshadow -fvisibility=hidden -ffp-contract=off
    ${tg_hardening})
list(JOIN tg_cuda_host_flags "," tg_cuda_host_flags)
target_compile_options(tg_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${tg_cuda_host_flags}>")
target_compile_definitions(tg_options INTERFACE TG_WITH_CUDA)
target_compile_features(tg_options INTERFACE cuda_std_17)
target_link_libraries(tg_dependencies INTERFACE ${tg_cudart} stdc++)
list(APPEND tg_pc_libs -L${CUDAToolkit_LIBRARY_DIR} -lcudart -lstdc++)
# The toolkit's folder is often not in the path of the system's loader; cuBLAS and cuSOLVER are opened from
# there at run time.
list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
list(APPEND CMAKE_INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})

set(cuda_folder ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${cuda_folder}/*.cu)
# Kernels of sm90/ use instructions that only machine code for sm_90a has; without them other ways are
# taken, and the files compile to nothing that is called.
file(GLOB sm90_sources CONFIGURE_DEPENDS ${cuda_folder}/sm90/*.cu)
list(REMOVE_ITEM cuda_sources ${sm90_sources})
add_library(tgrad_cuda_objects OBJECT ${cuda_sources})
add_library(tgrad_cuda_sm90a OBJECT ${sm90_sources})
foreach(target tgrad_cuda_objects tgrad_cuda_sm90a)
    target_include_directories(${target} PRIVATE src include)
    target_link_libraries(${target} PRIVATE tg_options tg_dependencies)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
if(";${CMAKE_CUDA_ARCHITECTURES}" MATCHES ";90")
    set_target_properties(tgrad_cuda_sm90a PROPERTIES CUDA_ARCHITECTURES 90a-real)
    set_source_files_properties(${cuda_folder}/core/device.cu PROPERTIES COMPILE_DEFINITIONS TG_CUDA_SM90A)
endif()
# What draws random numbers or encodes moments has the bits of the host: products and sums are
# rounded one by one.
set_source_files_properties(${cuda_folder}/optim/adam_8bit.cu ${cuda_folder}/optim/rules.cu ${cuda_folder}/core/random.cu
                            ${cuda_folder}/compress/top_k.cu ${cuda_folder}/core/quantize.cu PROPERTIES COMPILE_OPTIONS -fmad=false)

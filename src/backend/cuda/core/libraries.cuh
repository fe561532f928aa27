/* cuBLAS and cuSOLVER, opened at run time: a program that uses no GPU starts without their hundreds
 * of megabytes, and where they are missing the other backends work. */
#ifndef TG_BACKEND_CUDA_CORE_LIBRARIES_CUH
#define TG_BACKEND_CUDA_CORE_LIBRARIES_CUH

#include "backend/cuda/core/cuda.cuh"

struct cuda_functions {
#define CUDA_BLAS(name)   decltype(&::name) name;
#define CUDA_SOLVER(name) decltype(&::name) name;
#include "backend/cuda/core/libraries.def"
};

/* The functions, of the whole process; there are some where a backend is open. */
extern cuda_functions cuda_libraries;

/* Opens both, those of the process if it has them; false with the reason if one is missing. */
bool cuda_libraries_open(char *reason, size_t capacity);

#endif

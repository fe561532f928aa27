/* The kernels for CPUs with AVX2, FMA and F16C; empty tables where the compiler has none. */
#ifdef __AVX2__
#define CPU_TABLE(name) name##_avx2
#define CPU_NAME        "AVX2"
#include "backend/cpu/kernels.inc"
#else
#include "backend/cpu/compress.h"
#include "backend/cpu/spectral_product.h"
const cpu_kernels cpu_kernels_avx2 = {0};
const cpu_nn_kernels cpu_nn_avx2 = {0};
const cpu_compress_kernels cpu_compress_avx2 = {0};
const cpu_tile_kernels cpu_tile_avx2 = {0};
#endif

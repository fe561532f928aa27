/* Kernels of compressed gradients for CPUs with AVX2 and FMA; an empty table where the compiler has
 * none. */
#ifdef __AVX2__
#include "backend/cpu/compress_kernels.inc"

const cpu_compress_kernels cpu_compress_avx2 = {
    .product_f32 = product_f32,
    .product_c64 = product_c64,
    .product_few_c64 = product_c64,
    .stretch_f32 = stretch_f32,
    .stretch_c64 = stretch_c64,
    .dot_f32 = dot_f32,
    .dot_c64 = dot_c64,
    .kept_f32 = kept_f32,
    .kept_c64 = kept_c64,
};
#else
#include "backend/cpu/compress.h"
const cpu_compress_kernels cpu_compress_avx2 = {0};
#endif

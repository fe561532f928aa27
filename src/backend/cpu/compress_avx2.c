/* Kernels of compressed gradients for CPUs with AVX2 and FMA; an empty table where the compiler has
 * none. */
#ifdef __AVX2__
#include "backend/cpu/compress_kernels.inc"

const cpu_compress_kernels cpu_compress_avx2 = CPU_COMPRESS_KERNELS(product_c64);
#else
#include "backend/cpu/compress.h"
const cpu_compress_kernels cpu_compress_avx2 = {0};
#endif

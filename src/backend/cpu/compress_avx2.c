/* Kernels of compressed gradients for CPUs with AVX2 and FMA; an empty table where the compiler has
 * none. */
#ifdef __AVX2__
#define CPU_COMPRESS_KERNELS cpu_compress_avx2
#include "backend/cpu/compress_kernels.inc"
#else
#include "backend/cpu/compress.h"
const cpu_compress_kernels cpu_compress_avx2 = {0};
#endif

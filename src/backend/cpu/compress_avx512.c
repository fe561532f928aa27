/* Kernels of compressed gradients for CPUs with AVX-512; an empty table where the compiler has
 * none. */
#ifdef __AVX512F__
#define CPU_COMPRESS_KERNELS cpu_compress_avx512
#include "backend/cpu/compress_kernels.inc"
#else
#include "backend/cpu/compress.h"
const cpu_compress_kernels cpu_compress_avx512 = {0};
#endif

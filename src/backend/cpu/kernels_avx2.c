/* The kernels for CPUs with AVX2, FMA and F16C; an empty table where the compiler has none. */
#ifdef __AVX2__
#define CPU_KERNELS cpu_kernels_avx2
#define CPU_NAME    "AVX2"
#include "backend/cpu/kernels.inc"
#else
#include "backend/cpu/cpu.h"
const cpu_kernels cpu_kernels_avx2 = {0};
#endif

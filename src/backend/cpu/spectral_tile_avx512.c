/* The tile kernels for CPUs with AVX-512; an empty table where the compiler has none. */
#ifdef __AVX512F__
#define CPU_TILE_KERNELS cpu_tile_avx512
#include "backend/cpu/spectral_tile.inc"
#else
#include "backend/cpu/spectral_product.h"
const cpu_tile_kernels cpu_tile_avx512 = {0};
#endif

/* The tile kernels for CPUs with AVX2 and FMA; an empty table where the compiler has none. */
#ifdef __AVX2__
#define CPU_TILE_KERNELS cpu_tile_avx2
#include "backend/cpu/spectral_tile.inc"
#else
#include "backend/cpu/spectral_product.h"
const cpu_tile_kernels cpu_tile_avx2 = {0};
#endif

/* The tile kernels for any CPU. */
#define CPU_TILE_KERNELS cpu_tile_plain
#include "backend/cpu/spectral_tile.inc"

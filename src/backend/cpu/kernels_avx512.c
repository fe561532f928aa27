/* The kernels that gain by AVX-512, with the same bits as AVX2; empty tables where the compiler has
 * none. */
#include "backend/cpu/compress.h"
#include "backend/cpu/spectral_product.h"

#ifdef __AVX512VL__
#define CPU_TABLE(name) name##_avx512
#include "backend/cpu/vector.inc"

#include "backend/cpu/compress_kernels.inc"
#include "backend/cpu/nn_kernels.inc"
#include "backend/cpu/spectral_tile.inc"
#else
const cpu_nn_kernels cpu_nn_avx512 = {0};
const cpu_compress_kernels cpu_compress_avx512 = {0};
const cpu_tile_kernels cpu_tile_avx512 = {0};
#endif

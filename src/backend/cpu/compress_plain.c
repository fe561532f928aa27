/* Kernels of compressed gradients for any CPU. */
#include "backend/cpu/compress_kernels.inc"

const cpu_compress_kernels cpu_compress_plain = CPU_COMPRESS_KERNELS(product_c64);

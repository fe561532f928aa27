/* The kernels for any CPU. */
#define CPU_KERNELS cpu_kernels_plain
#define CPU_NAME    "plain"
#include "backend/cpu/kernels.inc"

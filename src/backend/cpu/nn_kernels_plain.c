/* The neural-operator kernels for any CPU. */
#define CPU_NN_KERNELS cpu_nn_kernels_plain
#define CPU_NAME       "plain"
#include "backend/cpu/nn_kernels.inc"

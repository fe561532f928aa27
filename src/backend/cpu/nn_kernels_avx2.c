/* The neural-operator kernels for CPUs with AVX2 and FMA; an empty table where the compiler has
 * none. */
#ifdef __AVX2__
#define CPU_NN_KERNELS cpu_nn_kernels_avx2
#define CPU_NAME       "AVX2"
#include "backend/cpu/nn_kernels.inc"
#else
#include "backend/cpu/nn.h"
const cpu_nn_kernels cpu_nn_kernels_avx2 = {0};
#endif

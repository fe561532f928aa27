/* The kernels for any CPU. */
#define CPU_TABLE(name) name##_plain
#define CPU_NAME        "plain"
#include "backend/cpu/kernels.inc"

/* Scripts (side.h) on the GPU, against the cpu backend, which is tested against ref elsewhere and
 * takes seconds where ref takes minutes. */
#ifndef TEST_SUPPORT_GPU_H
#define TEST_SUPPORT_GPU_H

#include "support/side.h"

/* Whether there is one; says why not. */
bool t_gpu_here(void);

/* Begin and end of a group of tests; products are rounded to TF32, or are those of f32. */
int t_gpu_begin(void **state);
int t_gpu_begin_fp32(void **state);
int t_gpu_end(void **state);

/* Runs a script on the CPU and twice on the GPU: near the first, and twice the same bits. With
 * TEST_ONCE once on the GPU, with TEST_PICKS only if this call is picked. */
void t_gpu_compare(tg_dtype dtype, void (*script)(t_side *s, const void *what), const void *what);

#endif

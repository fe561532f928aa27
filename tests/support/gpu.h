/* Scripts (side.h) on the GPU, against the cpu backend: that one is proved by ref in tests of its
 * own, and takes seconds where ref takes minutes. */
#ifndef TEST_SUPPORT_GPU_H
#define TEST_SUPPORT_GPU_H

#include "support/side.h"

/* Whether there is one; says why not. And whether it is a Hopper GPU, which has paths of its own.
 */
bool t_gpu_here(void);
bool t_gpu_is_hopper(void);

/* Whether a call since the beginning of the group took that path of an op (backend/path.h). */
bool t_gpu_took(const char *op, const char *path);

/* Begin and end of a group of tests; products are rounded to TF32, or are those of f32. */
int t_gpu_begin(void **state);
int t_gpu_begin_fp32(void **state);
int t_gpu_end(void **state);

/* Runs a script on the CPU and twice on the GPU: near the first, and twice the same bits. With
 * TEST_ONCE once on the GPU, with TEST_PICKS only if this call is picked. */
void t_gpu_compare(tg_dtype dtype, void (*script)(t_side *s, const void *what), const void *what);

#endif

/* Small datasets for tests, written by the library's own writers: element i (flat) of an array is a
 * formula of i, exact in f32, so that a test knows what to expect anywhere. Failures end the test.
 */
#ifndef TEST_SUPPORT_SETS_H
#define TEST_SUPPORT_SETS_H

#include "support/cmocka.h"
#include "tgrad/data.h"

/* The call succeeds; otherwise the test fails with the context's message. */
#define set_ok(ctx, call) set_ok_at((ctx), __FILE__, __LINE__, (call))
void set_ok_at(tg_context *ctx, const char *file, int line, tg_status status);

/* The context's message has this part. */
void set_expect_sentence(tg_context *ctx, const char *part);

/* Real and imaginary part of element i of x (side 0) or y (side 1); 16-bit integers are
 * set_integer of it. */
double set_value(int side, int64_t i);
double set_imag(int side, int64_t i);
int16_t set_integer(int64_t i);

/* Writes x and y of those shapes into a file of that name in the test folder, by its ending; a name
 * NAME_x.npy makes NAME_y.npy too. dtype: f32, f64, c64 or i16. The path stays valid until 8 more
 * calls of test_path. */
const char *set_write(tg_context *ctx, const char *name, tg_dtype dtype, const tg_shape *x,
                      const tg_shape *y);

/* The shape of a list of sizes. */
#define SET_SHAPE(...)                                                                             \
    tg_shape_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* Opens a set whose y is in the same file. */
tg_dataset *set_open(tg_context *ctx, const char *path, const tg_dataset_config *config);

/* Each of 2 and 3 processes that share the samples, or of one for each row, gets its rows of them,
 * cached and streamed; `cache` bytes are needed to read the file. */
void set_check_slabs(tg_context *ctx, const char *path, const tg_dataset_config *config,
                     size_t cache);

/* `count` floats of NaN, from malloc. */
float *set_floats(size_t count);

#endif

/* One array in a file of any format, or in memory, read by ranges of samples as f32 or c64;
 * datasets are made of these. */
#ifndef TG_IO_ARRAY_H
#define TG_IO_ARRAY_H

#include "tgrad/io.h"

typedef struct tg_array tg_array;

/* How to interpret the dimensions of a stored array; all false: as stored. */
typedef struct tg_array_form {
    bool is_reversed;  /* HDF5: last dimension first, as MATLAB stores them; read whole */
    bool is_time_last; /* also: (samples, grid.., times) becomes (samples, times, grid..) */
    bool is_numbered;  /* HDF5: one array of that name per group, "0000/data": one sample each */
} tg_array_form;

/* Opens the array `name` of a file, or the array of an npy file. An array in Fortran order, whose
 * samples are scattered over the file, or compressed in an npz file is read whole here, if it has
 * at most `whole_bytes`. `form` NULL: as stored. */
tg_status tg_array_open(tg_context *ctx, const char *path, const char *name,
                        const tg_array_form *form, size_t whole_bytes, tg_array **out);
/* The same for an array of the caller, who must keep it alive. `label` names it in errors. */
tg_status tg_array_wrap(tg_context *ctx, const tg_tensor *tensor, const char *label,
                        tg_array **out);
void tg_array_close(tg_array **array);

size_t tg_array_bytes(const tg_array *array);   /* held while open, category data */
tg_dtype tg_array_dtype(const tg_array *array); /* as stored */
const tg_shape *tg_array_shape(const tg_array *array);
const char *tg_array_label(const tg_array *array); /* "path: name", for errors */

/* Of dimension `dim`, indices [first, first + count). */
typedef struct tg_array_slab {
    int dim;
    int64_t first, count;
} tg_array_slab;

/* Rows [first, first + count), converted to the nearest of `dtype`; real values as complex get
 * im = 0. The first `lead` dimensions, 0 to 2, count rows: none, samples, or samples and times.
 * `slab`, of a later dimension: only these elements of each row; NULL: all. */
tg_status tg_array_read(tg_array *array, int lead, int64_t first, int64_t count,
                        const tg_array_slab *slab, tg_dtype dtype, void *data);

#endif

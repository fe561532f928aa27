/* HDF5 as its reader and writer share it: the guard around every use of the library, and our dtypes
 * as HDF5 types. Only the files src/io/hdf5_* include hdf5.h. */
#ifndef TG_IO_HDF5_TYPES_H
#define TG_IO_HDF5_TYPES_H

/* The same signatures in every version since 1.10. */
#define H5_USE_110_API
#include <hdf5.h>

#include "tgrad/io.h"

#define TG_H5_REASON 160 /* capacity that tg_h5_reason needs */

/* The caller's error printer of this thread and its plug-in settings. */
typedef struct tg_h5_guard {
    H5E_auto2_t print;
    void *print_data;
    unsigned plugins;
} tg_h5_guard;

/* Between enter and leave, one thread is inside HDF5 (it need not be built thread-safe), no errors
 * are printed and no plug-ins loaded; leave restores the caller's settings. */
void tg_h5_enter(tg_h5_guard *guard);
void tg_h5_leave(tg_h5_guard *guard);

/* The innermost message of HDF5's error stack. Returns text. */
const char *tg_h5_reason(char text[TG_H5_REASON]);

/* The dtype nearest to an HDF5 type; false for types that are not numbers. */
bool tg_h5_dtype_of(hid_t type, tg_dtype *out);

/* A new HDF5 type (to be closed with H5Tclose) for elements of a dtype in memory and in written
 * files: complex is compound {r, i}, bool is enum {FALSE, TRUE} as in h5py; < 0 on failure. */
hid_t tg_h5_type_of(tg_dtype dtype);
/* The same for reading elements of type `stored`: HDF5 matches the parts of a complex number by
 * name, which MATLAB calls {real, imag}. */
hid_t tg_h5_type_to_read(tg_dtype dtype, hid_t stored);

#endif

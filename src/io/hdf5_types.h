/* HDF5, what its reader and its writer share: the guard around every use of the library, and our
 * dtypes as HDF5 types. hdf5.h is seen by the files src/io/hdf5_* only. */
#ifndef TG_IO_HDF5_TYPES_H
#define TG_IO_HDF5_TYPES_H

/* The same signatures from every version of the library since 1.10. */
#define H5_USE_110_API
#include <hdf5.h>

#include "tgrad/io.h"

#define TG_H5_REASON 160 /* capacity that tg_h5_reason needs */

/* What the caller had: the error printer of its thread, and which plug-ins may be loaded. */
typedef struct tg_h5_guard {
    H5E_auto2_t print;
    void *print_data;
    unsigned plugins;
} tg_h5_guard;

/* Between the two, HDF5 is ours alone (it need not be built thread-safe), prints no errors and
 * loads no plug-ins; afterwards both are what they were. */
void tg_h5_enter(tg_h5_guard *guard);
void tg_h5_leave(tg_h5_guard *guard);

/* The innermost message of HDF5's error stack. Returns text. */
const char *tg_h5_reason(char text[TG_H5_REASON]);

/* The dtype nearest to an HDF5 type; false for types that are not numbers. */
bool tg_h5_dtype_of(hid_t type, tg_dtype *out);

/* A new HDF5 type (to be closed with H5Tclose) for elements of a dtype in memory and in files we
 * write: complex is compound {r, i}, bool is enum {FALSE, TRUE} as h5py has it; < 0 on failure. */
hid_t tg_h5_type_of(tg_dtype dtype);
/* The same for reading elements of type `stored`: HDF5 finds the parts of a complex number by their
 * names, which are {real, imag} in files of MATLAB. */
hid_t tg_h5_type_to_read(tg_dtype dtype, hid_t stored);

#endif

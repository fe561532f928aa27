/* A file driver for HDF5 that writes into an atomic file. */
#ifndef TG_IO_HDF5_DRIVER_H
#define TG_IO_HDF5_DRIVER_H

#include "io/file.h"
#include "io/hdf5_types.h"

typedef struct tg_h5_sink {
    tg_atomic_file *file;
    tg_status status; /* the first failure of the system, its sentence in the context */
    hid_t driver;
} tg_h5_sink;

/* Properties (to be closed with H5Pclose) with which H5Fcreate writes into `file`, whatever its
 * path; < 0 on failure. The sink must outlive the HDF5 file. */
hid_t tg_h5_sink_open(tg_h5_sink *sink, tg_atomic_file *file);
void tg_h5_sink_close(tg_h5_sink *sink);

#endif

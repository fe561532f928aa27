/* What the file formats share with each other inside src/io. */
#ifndef TG_IO_FORMATS_H
#define TG_IO_FORMATS_H

#include "tgrad/io.h"

/* A bool is one byte, 0 or 1; anything else in a file is an error. `what` names the tensor. */
tg_status tg_check_bools(tg_context *ctx, const char *label, const char *what,
                         const tg_tensor *tensor);

/* Version of the HDF5 library in use, "1.10.8"; returns text (hdf5_types.c). */
const char *tg_h5_version(char *text, size_t capacity);

#endif

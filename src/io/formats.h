/* What the file formats share with each other inside src/io. */
#ifndef TG_IO_FORMATS_H
#define TG_IO_FORMATS_H

#include "tgrad/io.h"

/* A bool is one byte, 0 or 1; anything else in a file is an error. `what` names the tensor. */
tg_status tg_check_bools(tg_context *ctx, const char *label, const char *what,
                         const tg_tensor *tensor);

/* Takes the text and number attributes of the root group over as metadata (hdf5_read.c). */
tg_status tg_h5_read_attributes(tg_h5 *file, tg_archive *archive);

#endif

/* HDF5 files whose numbers come later: the datasets are allocated in the file, and their numbers
 * are written there with plain writes, in any order, from any thread or a later process. Files
 * larger than memory can be written so, and continued. */
#ifndef TG_IO_HDF5_SPACE_H
#define TG_IO_HDF5_SPACE_H

#include "tgrad/io.h"

typedef struct tg_h5_space {
    const char *name;
    tg_dtype dtype;
    tg_shape shape;  /* at least one element */
    uint64_t offset; /* out: of the first element in the file; row-major, little-endian */
} tg_h5_space;

/* Writes `archive` (tensors and metadata; atomically, as tg_h5_write does) and `count` more
 * datasets that read as zeros until they are written. The same arguments give the same bytes and
 * offsets. */
TG_NODISCARD tg_status tg_h5_write_spaces(tg_context *ctx, const char *path,
                                          const tg_archive *archive, tg_h5_space *spaces,
                                          int count);

#endif

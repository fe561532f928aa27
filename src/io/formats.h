/* Internals that the file formats share. */
#ifndef TG_IO_FORMATS_H
#define TG_IO_FORMATS_H

#include "io/file.h"
#include "tgrad/io.h"

/* A bool is one byte, 0 or 1; anything else in a file is an error. `what` names the tensor. */
tg_status tg_check_bools(tg_context *ctx, const char *label, const char *what,
                         const tg_tensor *tensor);

/* The place of an array in a file, as one run of bytes. */
typedef struct tg_raw_array {
    tg_dtype dtype;
    tg_shape shape;
    uint64_t offset;  /* file offset of its first byte */
    bool is_swapped;  /* big-endian */
    bool is_fortran;  /* first dimension fastest; otherwise C order */
    const char *name; /* for errors, or NULL; owned by the caller */
} tg_raw_array;

/* Describe the array of an npy file and a named tensor of a safetensors file, without the data. */
tg_status tg_npy_locate(const tg_source *source, tg_raw_array *out);
tg_status tg_safetensors_locate(const tg_source *source, const char *name, tg_raw_array *out);

/* The same for an npy file of `size` bytes, of which `start` has the beginning. */
tg_status tg_npy_locate_in(const tg_source *start, uint64_t size, tg_raw_array *out);

/* Read from memory; `label`, or "memory", stands for the path in errors. */
TG_NODISCARD tg_status tg_npy_parse(tg_context *ctx, const char *label, const void *bytes,
                                    size_t size, tg_tensor *out);
TG_NODISCARD tg_status tg_safetensors_parse(tg_context *ctx, const char *label, const void *bytes,
                                            size_t size, tg_archive **out);

/* Adds a copy of a tensor. */
TG_NODISCARD tg_status tg_archive_add(tg_archive *archive, const char *name,
                                      const tg_tensor *tensor);

/* The array of an npy file, in C order and the host's byte order. */
tg_status tg_npy_read_source(const tg_source *source, tg_tensor *out);

/* Elements [first, first + count) of an array, converted to `dtype` piece by piece in `piece`
 * (piece_bytes, a multiple of every element's size) unless they are read as stored. */
tg_status tg_raw_read(const tg_source *source, const tg_raw_array *raw, int64_t first,
                      int64_t count, void *piece, size_t piece_bytes, tg_dtype dtype, void *data);

/* tg_h5_read_range within one sample: elements [first, first + count) of its second dimension. */
tg_status tg_h5_read_inner(tg_h5 *file, const char *name, int64_t sample, int64_t first,
                           int64_t count, tg_dtype dtype, void *data);

/* Swaps the bytes of every number; a complex element has two. */
void tg_swap_bytes(tg_dtype dtype, void *data, int64_t count);

/* Version of the HDF5 library in use, "1.10.8"; returns text (hdf5_types.c). */
const char *tg_h5_version(char *text, size_t capacity);

/* Version of libfyaml, "0.7.12" (config.c). */
const char *tg_yaml_version(void);

#endif

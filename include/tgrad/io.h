/* Files: npy, safetensors and HDF5.
 *
 * Files are hostile input: every length, shape and offset is checked, and a bad file gives an error
 * that names the file, the field, the expected and the actual content. Writers are atomic: a
 * temporary file in the same folder is written, synced and renamed over the target, so that a
 * reader sees the old file or the new one, never a part. */
#ifndef TGRAD_IO_H
#define TGRAD_IO_H

#include "tgrad/tensor.h"

TG_C_BEGIN

/* ---- The content of a file: named tensors and text metadata, in the order of insertion. ---- */

typedef struct tg_archive tg_archive;

TG_API TG_NODISCARD tg_status tg_archive_create(tg_context *ctx, tg_archive **out);
TG_API void tg_archive_destroy(tg_archive **archive);

TG_API int64_t tg_archive_count(const tg_archive *archive);
TG_API const char *tg_archive_name(const tg_archive *archive, int64_t index);
TG_API const tg_tensor *tg_archive_tensor(const tg_archive *archive, int64_t index);

/* The tensor of that name, or NULL. */
TG_API const tg_tensor *tg_archive_find(const tg_archive *archive, const char *name);

/* Moves a tensor in: *tensor becomes all zero, also on failure. Repeated names are an error. */
TG_API TG_NODISCARD tg_status tg_archive_take(tg_archive *archive, const char *name,
                                              tg_tensor *tensor);
/* Adds a view: the memory must live until the archive is written or destroyed. */
TG_API TG_NODISCARD tg_status tg_archive_add_view(tg_archive *archive, const char *name,
                                                  const tg_tensor *tensor);

/* Metadata: UTF-8 text by key. Setting a key again replaces it. */
TG_API TG_NODISCARD tg_status tg_archive_set_meta(tg_archive *archive, const char *key,
                                                  const char *value);
TG_API const char *tg_archive_meta(const tg_archive *archive, const char *key); /* NULL if none */
TG_API int64_t tg_archive_meta_count(const tg_archive *archive);
TG_API const char *tg_archive_meta_key(const tg_archive *archive, int64_t index);
TG_API const char *tg_archive_meta_value(const tg_archive *archive, int64_t index);

/* ---- safetensors: dtypes BOOL .. I64, F16, BF16, F32, F64, C64 as they are; the complex types the
 * format lacks (c128, cbf16, cf16) are stored as their real type with a last dimension of 2 and
 * named in the metadata key "tgrad.complex" (names separated by a line end). ---- */

TG_API TG_NODISCARD tg_status tg_safetensors_read(tg_context *ctx, const char *path,
                                                  tg_archive **out);
TG_API TG_NODISCARD tg_status tg_safetensors_write(tg_context *ctx, const char *path,
                                                   const tg_archive *archive);

/* ---- npy: versions 1 to 3, either byte order, C and Fortran order (C order once read). ---- */

TG_API TG_NODISCARD tg_status tg_npy_read(tg_context *ctx, const char *path, tg_tensor *out);
TG_API TG_NODISCARD tg_status tg_npy_write(tg_context *ctx, const char *path,
                                           const tg_tensor *tensor);

/* ---- HDF5: named datasets (also in groups: "a/b"), read whole or by a range of samples. ---- */

typedef struct tg_h5 tg_h5; /* an open file, read-only */

TG_API TG_NODISCARD tg_status tg_h5_open(tg_context *ctx, const char *path, tg_h5 **out);
TG_API void tg_h5_close(tg_h5 **file);

/* Names of all numeric datasets, depth first in alphabetical order. */
TG_API int64_t tg_h5_count(const tg_h5 *file);
TG_API const char *tg_h5_name(const tg_h5 *file, int64_t index);

/* dtype (the nearest of ours) and shape of a dataset. */
TG_API TG_NODISCARD tg_status tg_h5_describe(tg_h5 *file, const char *name, tg_dtype *dtype,
                                             tg_shape *shape);
/* Reads samples [first, first + count) of the outermost dimension, converted to `dtype` (TG_F32,
 * TG_F64, or TG_C64 / TG_C128 for compound {r, i} data), into memory of the caller. */
TG_API TG_NODISCARD tg_status tg_h5_read_range(tg_h5 *file, const char *name, int64_t first,
                                               int64_t count, tg_dtype dtype, void *data);
/* Reads a whole dataset in its own dtype. */
TG_API TG_NODISCARD tg_status tg_h5_read(tg_h5 *file, const char *name, tg_tensor *out);

/* Takes the text and number attributes of the root group over as metadata of `archive`. */
TG_API TG_NODISCARD tg_status tg_h5_read_meta(tg_h5 *file, tg_archive *archive);

typedef struct tg_h5_write_config {
    size_t size; /* of the struct, see status.h */
    int gzip;    /* compression level 0 (none, default) .. 9 */
} tg_h5_write_config;

/* Writes every tensor as a dataset of its name and every metadata pair as a text attribute of the
 * root group. `config` NULL means the default. */
TG_API TG_NODISCARD tg_status tg_h5_write(tg_context *ctx, const char *path,
                                          const tg_archive *archive,
                                          const tg_h5_write_config *config);

/* ---- Any format by the file's content (reading) or the path's ending (writing): .npy,
 * .safetensors, .h5 / .hdf5. An npy file reads as one tensor named "data"; writing npy needs
 * exactly one tensor. Zip files of numpy.savez and torch.save are read only; numbers and texts of
 * the latter become metadata, a dict in a dict "outer/inner", and its pickle runs no code. ---- */

TG_API TG_NODISCARD tg_status tg_archive_read(tg_context *ctx, const char *path, tg_archive **out);
TG_API TG_NODISCARD tg_status tg_archive_write(tg_context *ctx, const char *path,
                                               const tg_archive *archive);

typedef enum tg_file_format {
    TG_FILE_NPY,
    TG_FILE_SAFETENSORS,
    TG_FILE_HDF5,
    TG_FILE_NPZ,   /* of numpy.savez and savez_compressed; read only */
    TG_FILE_TORCH, /* of torch.save, tensors in dicts and lists; read only */
    TG_FILE_FORMATS
} tg_file_format;

TG_API const char *tg_file_format_name(tg_file_format format); /* "npy", .., "torch" */

/* The format of an existing file by its content, and of a path by its ending: how tg_archive_read
 * and tg_archive_write choose. */
TG_API TG_NODISCARD tg_status tg_file_detect(tg_context *ctx, const char *path,
                                             tg_file_format *out);
TG_API TG_NODISCARD tg_status tg_file_format_of_path(tg_context *ctx, const char *path,
                                                     tg_file_format *out);

/* Writes the libraries of the formats and their versions, "HDF5 1.10.8, ..", into
 * text, always terminated; returns text. */
TG_API const char *tg_io_libraries(char *text, size_t capacity);

TG_C_END
#endif

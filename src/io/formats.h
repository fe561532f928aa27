/* Internals that the file formats share. */
#ifndef TG_IO_FORMATS_H
#define TG_IO_FORMATS_H

#include "base/context.h"
#include "io/file.h"
#include "io/name_index.h"
#include "tgrad/io.h"

#define TG_SHAPE_TEXT(shape) tg_shape_text((shape), (char[128]){0}, 128)

/* ---- a zip file: its list of members and their bytes ---- */

typedef struct tg_zip_member {
    uint64_t header; /* offset of its local header */
    uint64_t packed; /* bytes in the file */
    uint64_t size;   /* bytes of its content */
    uint32_t crc;
    bool is_deflated; /* otherwise stored */
} tg_zip_member;

typedef struct tg_zip {
    tg_context *ctx;
    const tg_source *source; /* owned by the caller */
    tg_names members;        /* records: tg_zip_member */
} tg_zip;

/* Whether a file that begins with these bytes (4 suffice) is a zip file. */
bool tg_zip_starts(const void *bytes, size_t size);

/* Reads the list of members. A file that is damaged, encrypted, multi-volume or compressed other
 * than by deflate is an error. Must be closed even on failure. */
TG_NODISCARD tg_status tg_zip_open(const tg_source *source, tg_zip *out);
void tg_zip_close(tg_zip *zip);

const tg_zip_member *tg_zip_member_at(const tg_zip *zip, int64_t index);

/* A stored member as a source, which lives as long as the file's. */
TG_NODISCARD tg_status tg_zip_source(const tg_zip *zip, int64_t index, tg_source *out);

/* The first `count` bytes of a member, unpacked; reading all of them verifies the checksum. */
TG_NODISCARD tg_status tg_zip_read(const tg_zip *zip, int64_t index, void *bytes, size_t count);

/* ---- raw arrays, of every format but HDF5 (raw_file.c) ---- */

/* An array in a file, as one run of bytes. */
typedef struct tg_raw_array {
    tg_dtype dtype;
    tg_shape shape;
    uint64_t offset;   /* of its first element: in the file, or in a member once it is unpacked */
    bool is_swapped;   /* big-endian */
    bool is_scattered; /* not in C order, but with `stride` elements between neighbours */
    int64_t stride[TG_MAX_NDIM];
    bool is_packed; /* in a compressed member of a zip file */
    int64_t member; /* that one */
} tg_raw_array;

typedef struct tg_raw_file {
    tg_context *ctx;
    const tg_source *source; /* owned by the caller */
    tg_file_format format;
    tg_names arrays;  /* records: tg_raw_array */
    tg_archive *meta; /* numbers and texts beside them, as metadata */
    tg_zip zip;       /* of npz and torch files */
} tg_raw_file;

/* Lists the arrays of a file: of npz the member "x.npy" as "x", of torch a dict in a dict as
 * "outer/inner", of npy its array as "data". Must be closed even on failure. */
TG_NODISCARD tg_status tg_raw_open(const tg_source *source, tg_file_format format,
                                   tg_raw_file *out);
void tg_raw_close(tg_raw_file *file);

/* Finds an array by name (in an npy file, by any name); the error lists those present. */
TG_NODISCARD tg_status tg_raw_find(const tg_raw_file *file, const char *name,
                                   const tg_raw_array **out);

/* A whole array, in C order and the host's byte order. */
TG_NODISCARD tg_status tg_raw_read_whole(const tg_raw_file *file, const tg_raw_array *raw,
                                         tg_tensor *out);

/* All arrays and the metadata of a file, in one call. */
TG_NODISCARD tg_status tg_raw_read_all(const tg_source *source, tg_file_format format,
                                       tg_archive **out);

/* A box of an array: elements [first, first + count) of every dimension. */
typedef struct tg_array_box {
    int64_t first[TG_MAX_NDIM], count[TG_MAX_NDIM];
} tg_array_box;

/* The whole array. */
tg_array_box tg_array_box_of(const tg_shape *shape);

/* The elements of a box, which must fit in an array that is neither scattered nor packed, converted
 * to `dtype` piece by piece in `piece` (piece_bytes, a multiple of every element's size) unless
 * they are read as stored. `label` names the array in errors. */
tg_status tg_raw_read(const tg_source *source, const tg_raw_array *raw, const char *label,
                      const tg_array_box *box, void *piece, size_t piece_bytes, tg_dtype dtype,
                      void *data);

/* The formats: each adds its arrays to the file. */
tg_status tg_npy_list(tg_raw_file *file);
tg_status tg_safetensors_list(tg_raw_file *file);
tg_status tg_npz_list(tg_raw_file *file);
tg_status tg_torch_list(tg_raw_file *file);

/* The array of an npy file of `size` bytes, of which `start` has the beginning. */
tg_status tg_npy_locate(const tg_source *start, uint64_t size, tg_raw_array *out);

/* npz or torch; the error reports the actual content of the zip file. */
TG_NODISCARD tg_status tg_zip_format(const tg_zip *zip, tg_file_format *out);

/* ---- tensors ---- */

/* A bool is one byte, 0 or 1; anything else in a file is an error. `name` is the tensor's. */
tg_status tg_check_bools(tg_context *ctx, const char *label, const char *name,
                         const tg_tensor *tensor);

/* out[i, j, ..] = in[i stride[0] + j stride[1] + ..], in elements of the dtype of `out`. */
void tg_copy_strided(const tg_tensor *out, const void *in, const int64_t *stride);

/* Adds a copy of a tensor. */
TG_NODISCARD tg_status tg_archive_add(tg_archive *archive, const char *name,
                                      const tg_tensor *tensor);

/* ---- HDF5 ---- */

/* tg_h5_read_range, for a box. */
TG_NODISCARD tg_status tg_h5_read_box(tg_h5 *file, const char *name, const tg_array_box *box,
                                      tg_dtype dtype, void *data);

/* Version of the HDF5 library in use, "1.10.8"; returns text (hdf5_types.c). */
const char *tg_h5_version(char *text, size_t capacity);

/* Version of libfyaml, "0.7.12" (config.c). */
const char *tg_yaml_version(void);

/* HDF5 files whose numbers come later: the datasets are allocated in the file, and their numbers
 * are written there with plain writes, in any order, from any thread or a later process. Files
 * larger than memory can be written so, and continued. */
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

/* Scalars over steps in event files that TensorBoard reads.
 *
 * Each tg_events_open makes a new file in the folder, never touching older ones: TensorBoard shows
 * all files of a folder as one run, so a resumed run continues where the last one stopped, and a
 * crash costs at most the records that were not flushed. */

typedef struct tg_events tg_events;

/* Makes the folder if it is not there (its parent must be), and a file in it. */
TG_NODISCARD tg_status tg_events_open(tg_context *ctx, const char *folder, tg_events **out);

/* One value; tags such as "test/l2_16" are grouped by the part before the slash. Any value is
 * written, NaN and Inf too, as the nearest f32. */
TG_NODISCARD tg_status tg_events_scalar(tg_events *events, const char *tag, int64_t step,
                                        double value);

/* Flushes the records written so far to the system, whole records only. */
TG_NODISCARD tg_status tg_events_flush(tg_events *events);

/* Flushes and ends. With errors of the last flush in the status; *events is NULL in any case. */
tg_status tg_events_close(tg_events **events);

const char *tg_events_path(const tg_events *events); /* of the file */

/* ---- pickle, for torch files ----
 *
 * The data in a Python pickle: numbers, text, tuples, lists, dicts, and torch tensors. Nothing is
 * called or imported: a pickle may refer to a short list of names, whose results are built here. */

typedef enum tg_pickle_kind {
    TG_PICKLE_NONE,
    TG_PICKLE_BOOL,
    TG_PICKLE_INT,
    TG_PICKLE_REAL,
    TG_PICKLE_TEXT,
    TG_PICKLE_TUPLE,
    TG_PICKLE_LIST,
    TG_PICKLE_DICT,    /* its items: key, value, key, value, .. */
    TG_PICKLE_GLOBAL,  /* a known name */
    TG_PICKLE_STORAGE, /* elements of one dtype in a member of the file */
    TG_PICKLE_TENSOR,
    TG_PICKLE_MARK, /* of the stack machine; not in results */
} tg_pickle_kind;

typedef struct tg_pickle_value {
    tg_pickle_kind kind;
    int64_t integer; /* int, bool; number of elements of a storage; index of a known name */
    double real;
    int64_t text;        /* offset of a text in `texts`; of a storage: the name of its member */
    int64_t first, last; /* cells of a tuple, list or dict, -1: none */
    int64_t count;       /* of them */
    tg_dtype dtype;      /* of a storage */
    int64_t storage;     /* of a tensor: the value that holds its elements, */
    int64_t offset;      /* its first element there, */
    tg_shape shape;
    int64_t stride[TG_MAX_NDIM]; /* and elements between neighbours */
} tg_pickle_value;

typedef struct tg_pickle_cell {
    int64_t value, next; /* next: -1 at the end */
} tg_pickle_cell;

typedef struct tg_pickle {
    tg_context *ctx;
    tg_pickle_value *values;
    tg_pickle_cell *cells;
    char *texts; /* each zero-terminated */
    int64_t value_count, cell_count, text_bytes;
    int64_t value_capacity, cell_capacity, text_capacity;
    int64_t root; /* the top-level value */
} tg_pickle;

/* `source` is the file that has it, for errors. Must be freed even on failure. */
TG_NODISCARD tg_status tg_pickle_parse(const tg_source *source, const void *bytes, size_t size,
                                       tg_pickle *out);
void tg_pickle_free(tg_pickle *pickle);

#endif

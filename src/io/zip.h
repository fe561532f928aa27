/* A zip file: its list of members and their bytes (zip.c), and the tensors in one that was written
 * by savez of numpy (.npz) or torch.save (.pt) (zipped.c). */
#ifndef TG_IO_ZIP_H
#define TG_IO_ZIP_H

#include "io/formats.h"
#include "io/name_index.h"

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
    tg_names names;
    tg_zip_member *members; /* (capacity), the first names.count are in use */
    int64_t capacity;
} tg_zip;

/* Whether a file that begins with these bytes (4 suffice) is a zip file. */
bool tg_zip_starts(const void *bytes, size_t size);

/* Reads the list of members. A file that is damaged, encrypted, multi-volume or compressed other
 * than by deflate is an error. Must be closed even on failure. */
TG_NODISCARD tg_status tg_zip_open(const tg_source *source, tg_zip *out);
void tg_zip_close(tg_zip *zip);

/* A stored member as a source, which lives as long as the file's. */
TG_NODISCARD tg_status tg_zip_source(const tg_zip *zip, int64_t index, tg_source *out);

/* The first `count` bytes of a member, unpacked; reading all of them verifies the checksum. */
TG_NODISCARD tg_status tg_zip_read(const tg_zip *zip, int64_t index, void *bytes, size_t count);

/* ---- tensors ---- */

typedef struct tg_zipped_tensor {
    tg_raw_array raw; /* its offset counts from the start of the file */
    int64_t member;   /* the member that holds its bytes */
    bool is_in_place; /* tg_raw_read can read it from the file; otherwise it is read whole */
    int64_t offset;   /* torch: its first element in the member, */
    int64_t stride[TG_MAX_NDIM]; /* and elements between neighbours */
} tg_zipped_tensor;

typedef struct tg_zipped {
    tg_context *ctx;
    const tg_source *source; /* owned by the caller */
    tg_file_format format;   /* TG_FILE_NPZ or TG_FILE_TORCH */
    tg_zip zip;
    tg_names names;            /* of the tensors */
    tg_zipped_tensor *tensors; /* (capacity), the first names.count are in use */
    int64_t capacity;
    tg_archive *meta; /* numbers and texts beside them, as metadata */
} tg_zipped;

/* Lists the tensors of the file: an npz file's member "x.npy" as "x", a torch file's dict in a dict
 * as "outer/inner". Must be closed even on failure. */
TG_NODISCARD tg_status tg_zipped_open(const tg_source *source, tg_zipped *out);
void tg_zipped_close(tg_zipped *file);

/* Finds a tensor by name; the error lists those present. */
TG_NODISCARD tg_status tg_zipped_find(const tg_zipped *file, const char *name,
                                      const tg_zipped_tensor **out);

/* A whole tensor in C order. */
TG_NODISCARD tg_status tg_zipped_read(const tg_zipped *file, const tg_zipped_tensor *tensor,
                                      tg_tensor *out);

/* All tensors and the metadata, which move out of the file. */
TG_NODISCARD tg_status tg_zipped_read_all(tg_zipped *file, tg_archive **out);

/* npz or torch; the error reports the actual content of the zip file. */
TG_NODISCARD tg_status tg_zipped_detect(const tg_source *source, tg_file_format *out);

#endif

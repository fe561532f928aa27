/* A zip file: its list of members and their bytes. */
#ifndef TG_IO_ZIP_H
#define TG_IO_ZIP_H

#include "io/file.h"
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

#endif

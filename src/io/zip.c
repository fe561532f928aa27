/* zip: the container of numpy's savez and torch.save. From the end of the file:
 *
 *   end record (22 bytes and a comment): number of members, offset of their list;
 *   with sizes or offsets of 4 GiB and more a second end record, which a locator before the first
 *   one points at, and 64-bit values in an extra field of each entry ("zip64");
 *   list: 46 bytes for each member, its name, extra fields, a comment;
 *   members: 30 bytes, name, extra fields, content, stored or deflated.
 *
 * The list is authoritative; the members' own headers only locate the content. All numbers are
 * little-endian. */
#include "io/formats.h"

#include <string.h>
#include <zlib.h>

#include "base/memory.h"

enum {
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    MAX_COMMENT = 0xffff,
    MAX_LIST_BYTES = 64 << 20, /* bytes */
    MAX_RATIO = 1040,          /* of deflate: more is impossible */
    PIECE_BYTES = 16 << 10,    /* packed bytes read at once */
    STORED = 0,
    DEFLATED = 8,
    ZIP64 = 1,              /* number of the extra field */
    ENCRYPTED = 1,          /* flag */
    NO_NUMBER = 0xffffffff, /* 32 bits: the number is in the extra field */
};

static tg_status damaged(const tg_zip *zip, const char *reason) {
    return tg_fail_file(zip->source, TG_E_FORMAT, "damaged zip file: %s", reason);
}

bool tg_zip_starts(const void *bytes, size_t size) {
    return size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
}

void tg_zip_close(tg_zip *zip) {
    tg_names_clear(&zip->members);
}

const tg_zip_member *tg_zip_member_at(const tg_zip *zip, int64_t index) {
    return tg_names_record(&zip->members, index);
}

/* ---- the list ---- */

typedef struct list_place {
    uint64_t offset, bytes, members;
} list_place;

/* The second end record, if the locator before the first one points at it. */
static tg_status read_end64(const tg_zip *zip, uint64_t end, list_place *place) {
    unsigned char locator[LOCATOR_BYTES], record[END64_BYTES];
    if (end < LOCATOR_BYTES) {
        return damaged(zip, "the end record of large files is missing");
    }
    TG_CALL(tg_source_read(zip->source, end - LOCATOR_BYTES, locator, sizeof locator));
    if (memcmp(locator, "PK\6\7", 4) != 0) {
        return damaged(zip, "the end record of large files is missing");
    }
    TG_CALL(tg_source_read(zip->source, tg_get_number(locator + 8, 8), record, sizeof record));
    if (memcmp(record, "PK\6\6", 4) != 0) {
        return damaged(zip, "the end record of large files is not where it should be");
    }
    *place = (list_place){.members = tg_get_number(record + 32, 8),
                          .bytes = tg_get_number(record + 40, 8),
                          .offset = tg_get_number(record + 48, 8)};
    return TG_OK;
}

/* The end record is the last thing that begins with its signature. */
static tg_status find_list(const tg_zip *zip, list_place *place) {
    tg_status status = TG_OK;
    unsigned char *tail = NULL;
    const uint64_t size = zip->source->size;
    const size_t limit = END_BYTES + MAX_COMMENT;
    const size_t bytes = size < limit ? (size_t)size : limit;
    TG_TRY(TG_ALLOC(zip->ctx, TG_MEM_OTHER, tail, bytes));
    TG_TRY(tg_source_read(zip->source, size - bytes, tail, bytes));
    size_t at = bytes;
    while (at > 0 && (at + END_BYTES - 1 > bytes || memcmp(tail + at - 1, "PK\5\6", 4) != 0)) {
        at--;
    }
    if (at == 0) {
        status = damaged(zip, "there is no end record; was it copied whole?");
        goto fail;
    }
    const unsigned char *record = tail + at - 1;
    *place = (list_place){.members = tg_get_number(record + 10, 2),
                          .bytes = tg_get_number(record + 12, 4),
                          .offset = tg_get_number(record + 16, 4)};
    if (place->members == 0xffff || place->bytes == NO_NUMBER || place->offset == NO_NUMBER) {
        TG_TRY(read_end64(zip, size - bytes + (at - 1), place));
    }
    if (place->bytes > MAX_LIST_BYTES || place->offset > size ||
        place->bytes > size - place->offset || place->members > place->bytes / ENTRY_BYTES) {
        status = damaged(zip, "the list of members does not fit in it");
    }
fail:
    TG_FREE(zip->ctx, tail);
    return status;
}

/* 64-bit values of the fields that overflow the entry, in this order. */
static bool read_extra(const unsigned char *extra, size_t bytes, tg_zip_member *member) {
    uint64_t *const values[] = {&member->size, &member->packed, &member->header};
    while (bytes >= 4) {
        const size_t size = (size_t)tg_get_number(extra + 2, 2);
        if (size > bytes - 4) {
            break;
        }
        if (tg_get_number(extra, 2) == ZIP64) {
            size_t used = 0;
            for (int i = 0; i < 3; i++) {
                if (*values[i] == NO_NUMBER && used + 8 > size) {
                    return false;
                }
                if (*values[i] == NO_NUMBER) {
                    *values[i] = tg_get_number(extra + 4 + used, 8);
                    used += 8;
                }
            }
            return true;
        }
        extra += 4 + size;
        bytes -= 4 + size;
    }
    return member->size != NO_NUMBER && member->packed != NO_NUMBER && member->header != NO_NUMBER;
}

static tg_status check_member(const tg_zip *zip, const char *name, const unsigned char *entry,
                              const tg_zip_member *m) {
    const int method = (int)tg_get_number(entry + 10, 2);
    if (tg_get_number(entry + 8, 2) & ENCRYPTED) {
        return tg_fail_file(zip->source, TG_E_UNSUPPORTED, "member '%s' is encrypted",
                            TG_QUOTED(name));
    }
    if (method != STORED && method != DEFLATED) {
        return tg_fail_file(zip->source, TG_E_UNSUPPORTED,
                            "member '%s': expected it stored (0) or deflated (8), found method %d",
                            TG_QUOTED(name), method);
    }
    const bool is_sound =
        m->packed <= zip->source->size && m->header <= zip->source->size &&
        (m->is_deflated ? m->size / MAX_RATIO <= m->packed : m->size == m->packed);
    return is_sound ? TG_OK
                    : tg_fail_file(zip->source, TG_E_FORMAT,
                                   "damaged zip file: member '%s' of %llu bytes cannot be its "
                                   "%llu bytes unpacked",
                                   TG_QUOTED(name), (unsigned long long)m->size,
                                   (unsigned long long)m->packed);
}

/* Reads the entry of the list at *at and advances; folders, whose names end in '/', are not
 * members. */
static tg_status read_entry(tg_zip *zip, const unsigned char **at, const unsigned char *end) {
    const unsigned char *entry = *at;
    char name[1024];
    if (end - entry < ENTRY_BYTES || memcmp(entry, "PK\1\2", 4) != 0) {
        return damaged(zip, "an entry of its list is invalid");
    }
    const size_t length = (size_t)tg_get_number(entry + 28, 2),
                 extra = (size_t)tg_get_number(entry + 30, 2);
    const size_t rest = length + extra + (size_t)tg_get_number(entry + 32, 2);
    if ((size_t)(end - entry) - ENTRY_BYTES < rest || length >= sizeof name) {
        return damaged(zip, "an entry of its list is too long");
    }
    memcpy(name, entry + ENTRY_BYTES, length);
    name[length] = '\0';
    tg_zip_member member = {.crc = (uint32_t)tg_get_number(entry + 16, 4),
                            .packed = tg_get_number(entry + 20, 4),
                            .size = tg_get_number(entry + 24, 4),
                            .header = tg_get_number(entry + 42, 4),
                            .is_deflated = tg_get_number(entry + 10, 2) == DEFLATED};
    if (!read_extra(entry + ENTRY_BYTES + length, extra, &member)) {
        return damaged(zip, "an entry of its list has no sizes");
    }
    if (length == 0 || name[length - 1] != '/') {
        TG_CALL(check_member(zip, name, entry, &member));
        TG_CALL(tg_names_add(&zip->members, "member", name, &member));
    }
    *at = entry + ENTRY_BYTES + rest;
    return TG_OK;
}

tg_status tg_zip_open(const tg_source *source, tg_zip *out) {
    tg_status status = TG_OK;
    list_place place = {0};
    unsigned char *list = NULL;
    *out = (tg_zip){.ctx = source->ctx,
                    .source = source,
                    .members = {.ctx = source->ctx, .record_bytes = sizeof(tg_zip_member)}};
    TG_TRY(find_list(out, &place));
    TG_TRY(TG_ALLOC(out->ctx, TG_MEM_OTHER, list, place.bytes));
    TG_TRY(tg_source_read(source, place.offset, list, (size_t)place.bytes));
    const unsigned char *at = list;
    for (uint64_t i = 0; i < place.members; i++) {
        TG_TRY(read_entry(out, &at, list + place.bytes));
    }
fail:
    TG_FREE(source->ctx, list);
    return status;
}

/* ---- members ---- */

/* The packed bytes of a member as a source. */
static tg_status find_content(const tg_zip *zip, int64_t index, tg_source *out) {
    const tg_zip_member *m = tg_zip_member_at(zip, index);
    unsigned char local[LOCAL_BYTES];
    *out = *zip->source;
    TG_CALL(tg_source_read(zip->source, m->header, local, sizeof local));
    const uint64_t at =
        m->header + LOCAL_BYTES + tg_get_number(local + 26, 2) + tg_get_number(local + 28, 2);
    if (memcmp(local, "PK\3\4", 4) != 0 || at > zip->source->size ||
        m->packed > zip->source->size - at) {
        return damaged(zip, "a member is not where the list has it");
    }
    out->base += at;
    out->size = m->packed;
    return TG_OK;
}

tg_status tg_zip_source(const tg_zip *zip, int64_t index, tg_source *out) {
    if (tg_zip_member_at(zip, index)->is_deflated) {
        return tg_fail_file(zip->source, TG_E_UNSUPPORTED,
                            "member '%s' is compressed, which is not supported here; write it "
                            "stored",
                            TG_QUOTED(tg_names_item(&zip->members, index)));
    }
    return find_content(zip, index, out);
}

static tg_status inflate_start(const tg_zip *zip, const tg_source *packed, z_stream *stream,
                               unsigned char *bytes, size_t count) {
    unsigned char piece[PIECE_BYTES];
    uint64_t taken = 0;
    size_t made = 0;
    int result = Z_OK;
    while (made < count && result == Z_OK) {
        const uint64_t left = packed->size - taken;
        const size_t step = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        TG_CALL(tg_source_read(packed, taken, piece, step));
        taken += step;
        stream->next_in = piece;
        stream->avail_in = (uInt)step;
        do { /* zlib counts the space in 32 bits */
            const size_t room = count - made < (1u << 30) ? count - made : 1u << 30;
            stream->next_out = bytes + made;
            stream->avail_out = (uInt)room;
            result = inflate(stream, Z_NO_FLUSH);
            made += room - stream->avail_out;
        } while (result == Z_OK && stream->avail_in > 0 && made < count);
        result = result == Z_BUF_ERROR && left > step ? Z_OK : result;
    }
    return made == count ? TG_OK : damaged(zip, "a compressed member ends early or is not deflate");
}

static bool checksum_agrees(const tg_zip_member *m, const unsigned char *bytes) {
    uLong crc = crc32(0, NULL, 0);
    for (uint64_t at = 0, step = 0; at < m->size; at += step) {
        step = m->size - at < (1u << 30) ? m->size - at : 1u << 30;
        crc = crc32(crc, bytes + at, (uInt)step);
    }
    return crc == m->crc;
}

tg_status tg_zip_read(const tg_zip *zip, int64_t index, void *bytes, size_t count) {
    const tg_zip_member *m = tg_zip_member_at(zip, index);
    tg_source packed = {.fd = -1};
    TG_CALL(find_content(zip, index, &packed));
    if (count > m->size) {
        return damaged(zip, "a member is too short");
    }
    if (m->is_deflated) {
        z_stream stream = {0};
        if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
            return tg_fail(zip->ctx, TG_E_MEMORY, "%s: no memory to unpack it", packed.label);
        }
        const tg_status status = inflate_start(zip, &packed, &stream, bytes, count);
        inflateEnd(&stream);
        TG_CALL(status);
    } else {
        TG_CALL(tg_source_read(&packed, 0, bytes, count));
    }
    if (count == m->size && !checksum_agrees(m, bytes)) {
        return tg_fail_file(zip->source, TG_E_FORMAT, "damaged zip file: checksum of member '%s'",
                            TG_QUOTED(tg_names_item(&zip->members, index)));
    }
    return TG_OK;
}

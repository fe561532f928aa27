/* TensorBoard event files. A file is a row of records,
 *
 *   length of the data (8 bytes, little-endian), masked CRC-32C of these 8 bytes (4), data,
 *   masked CRC-32C of the data (4);
 *
 * the data of a record is one protobuf message Event: 1 wall_time (double), 2 step (int64), and
 * 3 file_version (text, first record only) or 5 summary { 1 value { 1 tag (text), 2 simple_value
 * (float) } }. Records are buffered and appended whole; those that could not be are kept for the
 * next attempt. */
#include "io/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

enum {
    BUFFER = 1 << 16,    /* bytes of buffered records */
    MAX_TAG_BYTES = 255, /* bytes */
    RECORD = 512,        /* maximum bytes of a record */
};

struct tg_events {
    tg_context *ctx;
    char *path;
    unsigned char *buffer;
    size_t used; /* of the buffer */
};

/* ---- records ---- */

/* CRC-32C (Castagnoli), bit by bit: records are short. */
static uint32_t crc32c(const unsigned char *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

/* The format masks its checksums, so that checksums of data with checksums stay good ones. */
static uint32_t masked_crc32c(const unsigned char *bytes, size_t count) {
    const uint32_t crc = crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

typedef struct message {
    unsigned char bytes[RECORD];
    size_t length;
} message;

static void put_bytes(message *m, const void *bytes, size_t count) {
    memcpy(m->bytes + m->length, bytes, count);
    m->length += count;
}

static void put_varint(message *m, uint64_t value) {
    do {
        m->bytes[m->length++] = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

static void put_key(message *m, int field, int type) {
    put_varint(m, (uint64_t)(field << 3 | type));
}

static void put_text(message *m, int field, const void *bytes, size_t count) {
    put_key(m, field, BYTES);
    put_varint(m, count);
    put_bytes(m, bytes, count);
}

static void start_event(message *m, int64_t step) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    const double wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(m, 1, FIXED64);
    put_bytes(m, &wall_time, sizeof wall_time);
    put_key(m, 2, VARINT);
    put_varint(m, (uint64_t)step);
}

tg_status tg_events_flush(tg_events *events) {
    TG_CALL(tg_file_append(events->ctx, events->path, (const char *)events->buffer, events->used));
    events->used = 0;
    return TG_OK;
}

static tg_status add_record(tg_events *events, const message *m) {
    unsigned char length[8], sum[4];
    tg_put_number(length, m->length, 8);
    if (events->used + 16 + m->length > BUFFER) {
        TG_CALL(tg_events_flush(events));
    }
    const struct {
        const unsigned char *bytes;
        size_t count;
    } parts[] = {{length, sizeof length}, {m->bytes, m->length}};
    for (int p = 0; p < 2; p++) {
        tg_put_number(sum, masked_crc32c(parts[p].bytes, parts[p].count), 4);
        memcpy(events->buffer + events->used, parts[p].bytes, parts[p].count);
        memcpy(events->buffer + events->used + parts[p].count, sum, sizeof sum);
        events->used += parts[p].count + sizeof sum;
    }
    return TG_OK;
}

tg_status tg_events_scalar(tg_events *events, const char *tag, int64_t step, double value) {
    const size_t length = strlen(tag);
    if (length == 0 || length > MAX_TAG_BYTES || !tg_utf8_is_valid(tag)) {
        return tg_fail(events->ctx, TG_E_ARGUMENT,
                       "%s: a tag is UTF-8 text of 1 to %d bytes, found '%s'", events->path,
                       MAX_TAG_BYTES, TG_QUOTED(tag));
    }
    const float rounded = (float)value;
    message entry = {.length = 0}, summary = {.length = 0}, event = {.length = 0};
    put_text(&entry, 1, tag, length);
    put_key(&entry, 2, FIXED32);
    put_bytes(&entry, &rounded, sizeof rounded);
    put_text(&summary, 1, entry.bytes, entry.length);
    start_event(&event, step);
    put_text(&event, 5, summary.bytes, summary.length);
    return add_record(events, &event);
}

/* ---- files ---- */

/* A new file. TensorBoard expects "tfevents" in the name and reads a folder's files in name order,
 * so the time comes first. */
static tg_status make_file(tg_events *events, const char *folder) {
    static atomic_uint serial;
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !host[0] || strchr(host, '/')) {
        snprintf(host, sizeof host, "localhost");
    }
    events->path =
        tg_mem_printf(events->ctx, "%s/events.out.tfevents.%010lld.%s.%ld.%u", folder,
                      (long long)time(NULL), host, (long)getpid(), atomic_fetch_add(&serial, 1));
    TG_CALL(events->path ? TG_OK : TG_E_MEMORY);
    const int fd = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return tg_fail_system(events->ctx, events->path, "create", errno);
    }
    close(fd);
    return TG_OK;
}

static void release(tg_events **events) {
    if (*events) {
        tg_mem_free((*events)->ctx, (*events)->path);
        tg_mem_free((*events)->ctx, (*events)->buffer);
        TG_FREE((*events)->ctx, *events);
    }
}

tg_status tg_events_open(tg_context *ctx, const char *folder, tg_events **out) {
    *out = NULL;
    static const char version[] = "brain.Event:2";
    tg_status status = TG_OK;
    bool is_made = false;
    tg_events *events = NULL;
    message first = {.length = 0};
    if (!*folder) {
        return tg_fail(ctx, TG_E_ARGUMENT, "events: no folder given");
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, events, 1));
    events->ctx = ctx;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, events->buffer, BUFFER));
    TG_TRY(tg_folder_make(ctx, folder));
    TG_TRY(make_file(events, folder));
    is_made = true;
    start_event(&first, 0);
    put_text(&first, 3, version, sizeof version - 1);
    TG_TRY(add_record(events, &first));
    TG_TRY(tg_events_flush(events));
    *out = events;
    return TG_OK;
fail:
    if (is_made) {
        unlink(events->path);
    }
    release(&events);
    return status;
}

tg_status tg_events_close(tg_events **events) {
    if (!events || !*events) {
        return TG_OK;
    }
    const tg_status status = tg_events_flush(*events);
    release(events);
    return status;
}

const char *tg_events_path(const tg_events *events) {
    return events ? events->path : "";
}

/* TensorBoard event files: framing, check sums and messages, read back by a small reader that
 * shares nothing with the writer; new files for each run; a full disk. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/formats.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"

/* ---- the reader ---- */

typedef struct scalar {
    char tag[256];
    int64_t step;
    float value;
    double wall_time;
    char version[32];
} scalar;

/* CRC-32C by polynomial division of the reversed bits, table-free. */
static uint32_t reference_crc(const unsigned char *bytes, size_t count) {
    uint32_t rest = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        for (int bit = 0; bit < 8; bit++) {
            const uint32_t top = (rest & 1u) ^ (bytes[i] >> bit & 1u);
            rest = (rest >> 1) ^ (top * 0x82f63b78u);
        }
    }
    return rest ^ 0xffffffffu;
}

static uint64_t little(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static void check_sum(const unsigned char *bytes, size_t count) {
    const uint32_t crc = reference_crc(bytes, count);
    const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    assert_int_equal(little(bytes + count, 4), masked);
}

static uint64_t varint(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(shift < 70);
        value |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80)) {
            return value;
        }
    }
}

/* One message, by depth: 0 Event, 1 Summary, 2 Value. */
static void read_message(const unsigned char *at, const unsigned char *end, int depth,
                         scalar *out) {
    while (at < end) {
        const uint64_t key = varint(&at);
        const int field = (int)(key >> 3), type = (int)(key & 7);
        if (depth == 0 && field == 1 && type == 1) {
            memcpy(&out->wall_time, at, 8);
            at += 8;
        } else if (depth == 0 && field == 2 && type == 0) {
            out->step = (int64_t)varint(&at);
        } else if (depth == 2 && field == 2 && type == 5) {
            memcpy(&out->value, at, 4);
            at += 4;
        } else {
            assert_int_equal(type, 2);
            const uint64_t length = varint(&at);
            assert_true(length <= (uint64_t)(end - at));
            if (depth == 0 && field == 3) {
                memcpy(out->version, at, length);
            } else if ((depth == 0 && field == 5) || (depth == 1 && field == 1)) {
                read_message(at, at + length, depth + 1, out);
            } else {
                assert_true(depth == 2 && field == 1 && length < sizeof out->tag);
                memcpy(out->tag, at, length);
            }
            at += length;
        }
    }
    assert_ptr_equal(at, end);
}

/* All records of a file; returns how many. */
static int read_events(const char *path, scalar *out, int capacity) {
    size_t size = 0;
    unsigned char *bytes = test_read_bytes(path, &size);
    int count = 0;
    for (size_t at = 0; at < size; count++) {
        assert_true(size - at >= 16 && count < capacity);
        const uint64_t length = little(bytes + at, 8);
        check_sum(bytes + at, 8);
        assert_true(length <= size - at - 16);
        check_sum(bytes + at + 12, length);
        out[count] = (scalar){0};
        read_message(bytes + at + 12, bytes + at + 12 + length, 0, &out[count]);
        at += 16 + length;
    }
    free(bytes);
    return count;
}

/* ---- tests ---- */

TEST(test_reader) {
    /* the check value of CRC-32C in every catalogue */
    assert_int_equal(reference_crc((const unsigned char *)"123456789", 9), 0xe3069283u);
}

TEST(test_scalars) {
    static const struct {
        const char *tag;
        int64_t step;
        double value;
    } rows[] = {
        {"train/loss", 0, 1.5},
        {"test/l2_16", 1, 0.1},
        {"x", 127, -0.0},
        {"x", 128, 1e300},
        {"x", 300, -1e300},
        {"x", INT64_MAX, 1e-300},
        {"\xc3\xa9/\xe2\x82\xac", -1, 3},
        {"nan", INT64_MIN, (double)NAN},
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    tg_events *events = NULL;
    scalar read[ROWS + 1];
    assert_int_equal(tg_events_open(ctx, test_path("runs"), &events), TG_OK); /* made by the call */
    char path[512];
    snprintf(path, sizeof path, "%s", tg_events_path(events));
    assert_non_null(strstr(path, "/events.out.tfevents."));
    assert_int_equal(read_events(path, read, 1), 1); /* there from the beginning */
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(tg_events_scalar(events, rows[i].tag, rows[i].step, rows[i].value), TG_OK);
    }
    assert_int_equal(tg_events_flush(events), TG_OK);
    assert_int_equal(read_events(path, read, ROWS + 1), ROWS + 1);
    assert_int_equal(tg_events_close(&events), TG_OK);
    assert_null(events);
    assert_int_equal(tg_events_close(&events), TG_OK);
    assert_int_equal(tg_events_close(NULL), TG_OK);
    assert_int_equal(read_events(path, read, ROWS + 1), ROWS + 1);
    assert_string_equal(read[0].version, "brain.Event:2");
    for (int i = 0; i < ROWS; i++) {
        const float expected = (float)rows[i].value;
        assert_string_equal(read[i + 1].tag, rows[i].tag);
        assert_int_equal(read[i + 1].step, rows[i].step);
        assert_true(isnan(expected) ? isnan(read[i + 1].value) : read[i + 1].value == expected);
        assert_true(fabs(read[i + 1].wall_time - (double)time(NULL)) < 3600);
    }
    remove(path);
    assert_int_equal(rmdir(test_path("runs")), 0);
}

TEST(test_refused) {
    tg_events *events = NULL;
    char tag[300];
    memset(tag, 'x', sizeof tag);
    tag[256] = '\0';
    assert_int_equal(tg_events_open(ctx, test_path("no/such"), &events), TG_E_IO);
    assert_non_null(strstr(tg_context_error(ctx), "no/such"));
    assert_int_equal(tg_events_open(ctx, "", &events), TG_E_ARGUMENT);
    test_write_bytes(test_path("file"), "", 0);
    assert_int_equal(tg_events_open(ctx, test_path("file"), &events), TG_E_IO);
    assert_null(events);
    remove(test_path("file"));
    assert_int_equal(tg_events_open(ctx, test_path("."), &events), TG_OK);
    assert_int_equal(tg_events_scalar(events, "", 0, 0), TG_E_ARGUMENT);
    assert_int_equal(tg_events_scalar(events, "\xff", 0, 0), TG_E_ARGUMENT);
    assert_int_equal(tg_events_scalar(events, tag, 0, 0), TG_E_ARGUMENT);
    tag[255] = '\0';
    assert_int_equal(tg_events_scalar(events, tag, 0, 7), TG_OK);
    char path[512];
    scalar read[2];
    snprintf(path, sizeof path, "%s", tg_events_path(events));
    assert_int_equal(tg_events_close(&events), TG_OK);
    assert_int_equal(read_events(path, read, 2), 2);
    assert_string_equal(read[1].tag, tag);
    remove(path);
}

/* Each opening makes a file of its own; more records than the buffer holds. */
TEST(test_files) {
    enum { COUNT = 5000 };
    tg_events *events[3] = {NULL};
    scalar *read = calloc(COUNT + 1, sizeof *read);
    for (int f = 0; f < 3; f++) {
        assert_int_equal(tg_events_open(ctx, test_path("."), &events[f]), TG_OK);
    }
    assert_int_equal(test_folder_count(), 3);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(tg_events_scalar(events[i % 3], "loss", i, 1.0 / (i + 1)), TG_OK);
    }
    for (int f = 0; f < 3; f++) {
        char path[512];
        snprintf(path, sizeof path, "%s", tg_events_path(events[f]));
        assert_int_equal(tg_events_close(&events[f]), TG_OK);
        const int count = read_events(path, read, COUNT + 1);
        assert_int_equal(count, COUNT / 3 + 1 + (f < COUNT % 3));
        for (int i = 1; i < count; i++) {
            assert_int_equal(read[i].step, 3 * (i - 1) + f);
            assert_true(read[i].value == (float)(1.0 / (double)(read[i].step + 1)));
        }
        remove(path);
    }
    free(read);
}

/* A file that may not grow: the call fails, the file ends with a whole record, and what could not
 * be written is written when there is room again. */
TEST(test_no_room) {
    struct rlimit before, small;
    scalar read[40];
    char path[512];
    tg_events *events = NULL;
    assert_int_equal(tg_events_open(ctx, test_path("."), &events), TG_OK);
    snprintf(path, sizeof path, "%s", tg_events_path(events));
    for (int i = 0; i < 30; i++) {
        assert_int_equal(tg_events_scalar(events, "loss", i, i), TG_OK);
    }
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const tg_status status = tg_events_flush(events);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, TG_E_IO);
    assert_int_equal(read_events(path, read, 40), 1);
    assert_int_equal(tg_events_close(&events), TG_OK);
    assert_int_equal(read_events(path, read, 40), 31);
    remove(path);
}

TEST(test_no_memory) {
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        tg_events *events = NULL;
        char path[512] = "";
        test_walk_called(&walk, tg_events_open(ctx, test_path("."), &events));
        if (events) {
            snprintf(path, sizeof path, "%s", tg_events_path(events));
            assert_int_equal(tg_events_close(&events), TG_OK);
            remove(path);
        }
        assert_int_equal(test_folder_count(), 0);
    }
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}

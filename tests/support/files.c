/* Files for tests, see files.h. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "support/files.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"

static char folder[512];

static const char *folder_path(void) {
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/tgrad-test-XXXXXX", base && *base ? base : "/tmp");
        assert_non_null(mkdtemp(folder));
    }
    return folder;
}

const char *test_path(const char *name) {
    static char paths[8][1024];
    static int next;
    char *path = paths[next];
    next = (next + 1) % 8;
    snprintf(path, sizeof paths[0], "%s/%s", folder_path(), name);
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

int test_files_end(void **state) {
    (void)state;
    test_folder_remove();
    return 0;
}

int test_folder_count(void) {
    int count = 0;
    DIR *dir = opendir(folder_path());
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        count++;
    }
    closedir(dir);
    return count;
}

void test_folder_remove(void) {
    if (folder[0]) {
        assert_int_equal(nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
        folder[0] = '\0';
    }
}

void test_write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

unsigned char *test_read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fail_msg("cannot open %s", path);
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    assert_true(length >= 0);
    rewind(file);
    unsigned char *bytes = malloc((size_t)length + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)length, file), length);
    fclose(file);
    *size = (size_t)length;
    return bytes;
}

void test_same_file(const char *a, const char *b) {
    size_t size[2];
    unsigned char *bytes[2] = {test_read_bytes(a, &size[0]), test_read_bytes(b, &size[1])};
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    free(bytes[0]);
    free(bytes[1]);
}

uint64_t test_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A place in the file; every second time in its first part, which has the header. */
static size_t random_place(size_t size, uint64_t *state) {
    const size_t reach = test_random(state) % 2 ? size : size < 256 ? size : 256;
    return reach ? test_random(state) % reach : 0;
}

size_t test_corrupt(unsigned char *bytes, size_t size, size_t capacity, uint64_t *state) {
    static const char *const words[] = {"-1",   "1e9",  "9223372036854775807",
                                        "NaN",  "null", "[",
                                        "{",    "\"",   "99999999999999999999",
                                        "'",    "(,)",  ":",
                                        "\\u0", "]",    "0.5",
                                        "O",    "\xff"};
    const int rounds = 1 + (int)(test_random(state) % 4);
    for (int i = 0; i < rounds; i++) {
        const size_t at = random_place(size, state);
        const uint64_t r = test_random(state);
        const char *word = words[r % (sizeof words / sizeof words[0])];
        switch (test_random(state) % 7) {
        case 0: /* one bit */
            bytes[at] ^= size ? (unsigned char)(1u << r % 8) : 0;
            break;
        case 1: /* one byte */
            bytes[at] = size ? (unsigned char)r : bytes[at];
            break;
        case 2: /* a word that parsers stumble over */
            memcpy(bytes + at, word, strlen(word) < size - at ? strlen(word) : size - at);
            break;
        case 3: /* cut off */
            size = at;
            break;
        case 4: /* longer, as far as there is room */
            while (size < capacity && test_random(state) % 16) {
                bytes[size++] = (unsigned char)test_random(state);
            }
            break;
        case 5: /* a run of one byte */
            memset(bytes + at, (int)(r % 256), size - at < 9 ? size - at : 9);
            break;
        default: /* one part over another */
            if (size > 0) {
                const size_t from = random_place(size, state);
                const size_t left = size - (from > at ? from : at);
                memmove(bytes + at, bytes + from, left < 32 ? left : 32);
            }
        }
    }
    return size;
}

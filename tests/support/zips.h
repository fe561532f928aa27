/* Small zip files in memory, members stored: for tests and fuzz targets of their contents. */
#ifndef TEST_SUPPORT_ZIPS_H
#define TEST_SUPPORT_ZIPS_H

#include <stdint.h>
#include <string.h>

typedef struct test_zip {
    unsigned char *bytes; /* of the caller, with room for all of it */
    size_t size;
    unsigned char list[1024]; /* at most eight members with short names */
    size_t list_size;
    int members;
} test_zip;

static inline void zip_number(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

static inline uint32_t zip_crc(const unsigned char *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    }
    return ~crc;
}

static inline void zip_add(test_zip *zip, const char *name, const void *bytes, size_t size) {
    const size_t length = strlen(name);
    unsigned char *local = zip->bytes + zip->size, *entry = zip->list + zip->list_size;
    memset(local, 0, 30);
    memcpy(local, "PK\3\4", 4);
    zip_number(local + 26, length, 2);
    memcpy(local + 30, name, length);
    memcpy(local + 30 + length, bytes, size);
    memset(entry, 0, 46);
    memcpy(entry, "PK\1\2", 4);
    zip_number(entry + 16, zip_crc(bytes, size), 4);
    zip_number(entry + 20, size, 4);
    zip_number(entry + 24, size, 4);
    zip_number(entry + 28, length, 2);
    zip_number(entry + 42, zip->size, 4);
    memcpy(entry + 46, name, length);
    zip->size += 30 + length + size;
    zip->list_size += 46 + length;
    zip->members++;
}

static inline void zip_end(test_zip *zip) {
    unsigned char *end = zip->bytes + zip->size + zip->list_size;
    memcpy(zip->bytes + zip->size, zip->list, zip->list_size);
    memset(end, 0, 22);
    memcpy(end, "PK\5\6", 4);
    zip_number(end + 10, (uint64_t)zip->members, 2);
    zip_number(end + 12, zip->list_size, 4);
    zip_number(end + 16, zip->size, 4);
    zip->size += zip->list_size + 22;
}

#endif

/* Files for tests: a folder of their own that is removed at the end, bytes in and out, and
 * corruption. Failures end the test. */
#ifndef TG_TESTS_SUPPORT_FILES_H
#define TG_TESTS_SUPPORT_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Makes a folder for this process at first need; `name` in it. The text stays valid until 8 more
 * calls. */
const char *test_path(const char *name);

/* Removes the folder and all that is in it. */
void test_folder_remove(void);
int test_files_end(void **state); /* the same as the end of a group of tests */

/* Number of files in the folder: shows leftover temporary files. */
int test_folder_count(void);

void test_write_bytes(const char *path, const void *bytes, size_t size);

/* The whole file, from malloc. */
unsigned char *test_read_bytes(const char *path, size_t *size);

/* Fails unless the two have the same bytes. */
void test_same_file(const char *a, const char *b);

/* Small seeded random numbers, independent of the library under test. */
uint64_t test_random(uint64_t *state);

/* Damages a file's bytes in one of many ways (bits, bytes, runs, numbers, length) and returns the
 * new size; `bytes` has room for capacity, which is at least size. */
size_t test_corrupt(unsigned char *bytes, size_t size, size_t capacity, uint64_t *state);

#endif

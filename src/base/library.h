/* Loads the functions of a run-time library into a struct of function pointers. */
#ifndef TG_BASE_LIBRARY_H
#define TG_BASE_LIBRARY_H

#include <stddef.h>

typedef struct tg_library_row {
    const char *name;
    size_t offset; /* of the pointer in the struct */
} tg_library_row;

/* The first name that the library lacks, or NULL. */
const char *tg_library_read(void *library, const tg_library_row *rows, int count, void *out);

#endif

/* Functions of a library that is opened at run time, into a struct of pointers to them. */
#ifndef TG_BASE_LIBRARY_H
#define TG_BASE_LIBRARY_H

#include <stddef.h>

typedef struct tg_library_row {
    const char *name;
    size_t offset; /* of the pointer in the struct */
} tg_library_row;

/* The first name that the library does not have; NULL: it has all. */
const char *tg_library_read(void *library, const tg_library_row *rows, int count, void *out);

#endif

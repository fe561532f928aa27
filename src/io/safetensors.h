/* The safetensors format, shared by reader and writer. */
#ifndef TG_IO_SAFETENSORS_H
#define TG_IO_SAFETENSORS_H

#include "tgrad/io.h"

#define TG_ST_METADATA "__metadata__"  /* header key that is not a tensor */
#define TG_ST_COMPLEX  "tgrad.complex" /* key of the metadata, see tgrad/io.h */

enum {
    TG_ST_LENGTH_BYTES = 8,           /* the header's length, before it */
    TG_ST_LARGEST_HEADER = 100000000, /* bytes, the limit of the format */
    TG_ST_TYPES = 14,                 /* rows of tg_st_types */
};

typedef struct tg_st_type {
    const char *name;
    tg_dtype dtype;
} tg_st_type;

extern const tg_st_type tg_st_types[TG_ST_TYPES];

#endif

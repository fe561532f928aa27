/* The data in a Python pickle: numbers, text, tuples, lists, dicts, and torch tensors. Nothing is
 * called or imported: a pickle may refer to a short list of names, whose results are built here. */
#ifndef TG_IO_PICKLE_H
#define TG_IO_PICKLE_H

#include "base/context.h"
#include "tgrad/tensor.h"

typedef enum tg_pickle_kind {
    TG_PICKLE_NONE,
    TG_PICKLE_BOOL,
    TG_PICKLE_INT,
    TG_PICKLE_REAL,
    TG_PICKLE_TEXT,
    TG_PICKLE_TUPLE,
    TG_PICKLE_LIST,
    TG_PICKLE_DICT,    /* its items: key, value, key, value, .. */
    TG_PICKLE_GLOBAL,  /* a known name */
    TG_PICKLE_STORAGE, /* elements of one dtype in a member of the file */
    TG_PICKLE_TENSOR,
    TG_PICKLE_MARK, /* of the stack machine; not in results */
} tg_pickle_kind;

typedef struct tg_pickle_value {
    tg_pickle_kind kind;
    int64_t integer; /* int, bool; number of elements of a storage; index of a known name */
    double real;
    int64_t text;        /* offset of a text in `texts`; of a storage: the name of its member */
    int64_t first, last; /* cells of a tuple, list or dict, -1: none */
    int64_t count;       /* of them */
    tg_dtype dtype;      /* of a storage */
    int64_t storage;     /* of a tensor: the value that holds its elements, */
    int64_t offset;      /* its first element there, */
    tg_shape shape;
    int64_t stride[TG_MAX_NDIM]; /* and elements between neighbours */
} tg_pickle_value;

typedef struct tg_pickle_cell {
    int64_t value, next; /* next: -1 at the end */
} tg_pickle_cell;

typedef struct tg_pickle {
    tg_context *ctx;
    tg_pickle_value *values;
    tg_pickle_cell *cells;
    char *texts; /* each zero-terminated */
    int64_t value_count, cell_count, text_bytes;
    int64_t value_capacity, cell_capacity, text_capacity;
    int64_t root; /* the top-level value */
} tg_pickle;

/* `label` is for errors. Must be freed even on failure. */
TG_NODISCARD tg_status tg_pickle_parse(tg_context *ctx, const char *label, const void *bytes,
                                       size_t size, tg_pickle *out);
void tg_pickle_free(tg_pickle *pickle);

#endif

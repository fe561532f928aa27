/* Inside of a dataset. */
#ifndef TG_DATA_DATASET_H
#define TG_DATA_DATASET_H

#include "io/array.h"
#include "tgrad/data.h"

/* x or y. Stored sample: ([times,] [channels,] grid..). */
typedef struct tg_dataset_side {
    tg_array *array;                   /* NULL: there is none, or all of it is in `cache` */
    int64_t channels;                  /* handed out */
    int64_t skip;                      /* stored channels before the first one handed out */
    int64_t grid[TG_DATA_MAX_DIMS];    /* stored, with leading 1s */
    int64_t points[TG_DATA_MAX_DIMS];  /* handed out, likewise */
    int64_t strides[TG_DATA_MAX_DIMS]; /* every so many-th point is handed out */
    size_t stored_bytes, bytes;        /* of one sample, of the dtype handed out */
    char *cache;                       /* (samples * bytes), or NULL */
} tg_dataset_side;

/* Number `place` of the samples asked for is sample `index`. */
typedef struct tg_dataset_request {
    int64_t index, place;
} tg_dataset_request;

struct tg_dataset {
    tg_context *ctx;
    tg_dataset_facts facts;
    tg_dataset_side sides[2];     /* by tg_data_side */
    int64_t first;                /* stored sample that is handed out as number 0 */
    char *buffer;                 /* (buffer_bytes) stored samples; NULL when cached */
    tg_dataset_request *requests; /* (capacity) */
    int64_t capacity;
};

/* Sides and facts from the shapes of the open arrays: which dimension is what, which channels and
 * points are handed out (dataset_layout.c). */
TG_NODISCARD tg_status tg_dataset_set_layout(tg_dataset *dataset, const tg_dataset_config *config);

#endif

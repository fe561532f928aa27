/* Inside of a dataset. */
#ifndef TG_DATA_DATASET_H
#define TG_DATA_DATASET_H

#include "data/layouts.h"

/* One stored array of a side. Stored row: ([times,] [channels,] grid..), or channels last. */
typedef struct tg_dataset_part {
    tg_array *array;                  /* NULL: all of it is in the cache of its side */
    int64_t channels;                 /* of one time */
    int64_t times;                    /* handed out one after the other */
    int64_t skip;                     /* stored elements before the first one handed out */
    int64_t time_step;                /* stored elements from one time to the next, */
    int64_t channel_step, point_step; /* from channel to channel and from point to point */
    size_t stored_bytes;              /* of one row, of the dtype handed out */
    char *label;                      /* "path: name", for messages */
} tg_dataset_part;

/* x or y; of trajectories the first side holds the frames of both. */
typedef struct tg_dataset_side {
    tg_dataset_part part[TG_MAX_FIELDS]; /* whose channels follow each other */
    int parts;                           /* 0: there is none */
    int lead;                            /* dimensions of an array that count rows, 0 to 2 */
    bool is_points;                      /* (points, coordinates), which become channels */
    int64_t channels;                    /* of a row handed out */
    int64_t grid[TG_DATA_MAX_DIMS];      /* stored, with leading 1s */
    int64_t points[TG_DATA_MAX_DIMS];    /* handed out, likewise */
    int64_t strides[TG_DATA_MAX_DIMS];   /* every so many-th point is handed out */
    size_t stored_bytes, bytes;          /* of one row: the largest part, all handed out */
    char *cache;                         /* (rows * bytes), or NULL */
} tg_dataset_side;

/* Number `place` of the rows asked for is row `index`. */
typedef struct tg_dataset_request {
    int64_t index, place;
} tg_dataset_request;

struct tg_dataset {
    tg_context *ctx;
    tg_dataset_facts facts;
    tg_layout layout;
    tg_dataset_side sides[2];     /* by tg_data_side */
    int64_t first_row, rows;      /* of the arrays that are used: samples, or frames */
    int64_t windows, time_stride; /* of each trajectory; stored frames from frame to frame */
    int64_t first_frame;          /* stored frames that are passed over */
    char *buffer;                 /* (buffer_bytes) stored rows; NULL when cached */
    tg_dataset_request *requests; /* (capacity) */
    int64_t capacity;
    bool is_told; /* of evaluations: that errors are not finite was said already */
};

/* Whether the numbers of a config are possible; `may_guess`: 0 dimensions are those that the shapes
 * look like (dataset_layout.c). */
TG_NODISCARD tg_status tg_dataset_check_config(tg_context *ctx, const tg_dataset_config *config,
                                               bool may_guess);

/* Sides and facts from the shapes of the open arrays: which dimension is what, which channels and
 * points are handed out (dataset_layout.c). */
TG_NODISCARD tg_status tg_dataset_set_layout(tg_dataset *dataset, const tg_dataset_config *config);

/* Warns of a grid that looks as if its last dimension were channels. */
void tg_dataset_warn_of_order(tg_context *ctx, const tg_dataset *dataset, const char *path);

/* Frame `frame` of sample `index`, as x or y: its row in the arrays that are used. */
int64_t tg_dataset_row(const tg_dataset *dataset, tg_data_side which, int64_t index, int64_t frame);

/* Whether a NaN or Inf is in the values of sample `index`, as x or y of it were handed out; `text`
 * gets its file, array and place there (nonfinite.c). Changes nothing: any thread may ask. */
enum { TG_NONFINITE_TEXT = 512 };
bool tg_dataset_find_nonfinite(const tg_dataset *dataset, tg_data_side which, int64_t index,
                               const void *values, char text[TG_NONFINITE_TEXT]);

/* Data at points (dataset_points.c): x must be (samples, points, coordinates), y real; and all
 * coordinates (channels, points) of row `index`, as they are handed out, in [0, 1]. */
TG_NODISCARD tg_status tg_dataset_check_point_arrays(const tg_dataset *dataset, int coordinates);
TG_NODISCARD tg_status tg_dataset_check_points(const tg_dataset *dataset, int64_t index,
                                               const float *points);

#endif

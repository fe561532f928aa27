/* Internals of datasets and their normalizers. */
#ifndef TG_DATA_DATASET_H
#define TG_DATA_DATASET_H

#include "backend/backend.h"
#include "base/setting.h"
#include "io/array.h"
#include "tgrad/data.h"

/* Layouts: how programs and public datasets arrange the arrays of a file. */

enum { TG_MAX_FIELDS = 16, TG_FIELD_NAME = 256 };

/* An array of a file. Dimensions other than samples, times and grid are components: channels. */
typedef struct tg_field {
    char name[TG_FIELD_NAME];
    int64_t first, count; /* components in use; count 0: all */
} tg_field;

/* Splits "velocity:1" or "velocity:0-2" into the name and its components. */
void tg_field_take_range(tg_field *field);

typedef struct tg_layout {
    tg_layout_kind kind;
    bool is_trajectory; /* the fields are (samples, times, grid..); otherwise x and y are pairs */
    bool channels_last; /* components come after the grid */
    int n_dim;          /* of the grid, 0: unknown */
    tg_array_form form;
    int count;
    tg_field fields[TG_MAX_FIELDS]; /* of pairs: x and y */
} tg_layout;

/* Names of kinds. */
extern const tg_choice tg_layout_choices[];

/* The configured layout, or the one detected in the file; an error lists the arrays found, the
 * known layouts, and the key to set. */
TG_NODISCARD tg_status tg_layout_find(tg_context *ctx, const char *path,
                                      const tg_dataset_config *config, tg_layout *out);

/* Whether this is a file of MATLAB 7.3: HDF5 after a line of text. */
TG_NODISCARD tg_status tg_layout_is_matlab(tg_context *ctx, const char *path, bool *out);

/* One stored array of a side. Stored row: ([times,] [channels,] grid..), or channels last. */
typedef struct tg_dataset_part {
    tg_array *array;                  /* NULL: fully cached by its side */
    int64_t channels;                 /* of one time */
    int64_t times;                    /* consecutive times returned */
    int64_t skip;                     /* stored elements before the first one returned */
    int64_t time_step;                /* stored elements between times, */
    int64_t channel_step, point_step; /* between channels and between points */
    tg_array_slab slab;               /* of the grid that is read */
    size_t stored_bytes;              /* of that of one stored row, in the returned dtype */
    char *label;                      /* "path: name", for messages */
} tg_dataset_part;

/* x or y; for trajectories the first side holds the frames of both. */
typedef struct tg_dataset_side {
    tg_dataset_part part[TG_MAX_FIELDS]; /* their channels are concatenated */
    int parts;                           /* 0: no such side */
    int lead;                            /* dimensions of an array that count rows, 0 to 2 */
    bool is_points;                      /* (points, coordinates): coordinates become channels */
    int64_t channels;                    /* of a returned row */
    int64_t grid[TG_DATA_MAX_DIMS];      /* stored, with leading 1s */
    int64_t points[TG_DATA_MAX_DIMS];    /* returned, likewise */
    int64_t strides[TG_DATA_MAX_DIMS];   /* of the sub-sampling */
    int64_t first_row, all_rows; /* of the first dimension: the first returned, of this many */
    size_t stored_bytes, bytes;  /* of one row: its largest part that is read, all returned */
    char *cache;                 /* (rows * bytes), or NULL */
} tg_dataset_side;

/* Row `index` goes to position `place` of the output. */
typedef struct tg_dataset_request {
    int64_t index, place;
} tg_dataset_request;

struct tg_dataset {
    tg_context *ctx;
    tg_dataset_facts facts;
    tg_layout layout;
    tg_dataset_side sides[2];     /* by tg_data_side */
    int64_t first_row, rows;      /* rows of the arrays in use: samples, or frames */
    int64_t windows, time_stride; /* per trajectory; stored frames between frames */
    int64_t first_frame;          /* stored frames skipped */
    char *buffer;                 /* (buffer_bytes) stored rows; NULL when cached */
    tg_dataset_request *requests; /* (capacity) */
    int64_t capacity;
    bool has_warned; /* evaluations have warned about non-finite errors */
};

/* Checks the numbers of a config; with `may_guess`, 0 dimensions are guessed from the shapes
 * (dataset_layout.c). */
TG_NODISCARD tg_status tg_dataset_check_config(tg_context *ctx, const tg_dataset_config *config,
                                               bool may_guess);

/* Sets sides and facts from the shapes of the open arrays: the meaning of each dimension, and the
 * channels and points returned (dataset_layout.c). */
TG_NODISCARD tg_status tg_dataset_set_layout(tg_dataset *dataset, const tg_dataset_config *config);

/* Warns if the last dimension of a grid looks like channels. */
void tg_dataset_warn_of_order(tg_context *ctx, const tg_dataset *dataset, const char *path);

/* Row of frame `frame` of sample `index`, as x or y, among the rows in use. */
int64_t tg_dataset_row(const tg_dataset *dataset, tg_data_side which, int64_t index, int64_t frame);

/* Whether the returned values of sample `index`, as x or y, contain a NaN or Inf; `text` gets its
 * file, array and place (dataset_checks.c). Thread-safe: changes nothing. */
enum { TG_NONFINITE_TEXT = 512 };
bool tg_dataset_find_nonfinite(const tg_dataset *dataset, tg_data_side which, int64_t index,
                               const void *values, char text[TG_NONFINITE_TEXT]);

/* Data at points (dataset_checks.c): checks that x is (samples, points, coordinates) and y real;
 * checks that the coordinates (channels, points) of row `index`, as returned, are in [0, 1]. */
TG_NODISCARD tg_status tg_dataset_check_point_arrays(const tg_dataset *dataset, int coordinates);
TG_NODISCARD tg_status tg_dataset_check_points(const tg_dataset *dataset, int64_t index,
                                               const float *points);

/* Real number i of returned values. */
static inline double tg_data_real(const void *values, bool is_double, int64_t i) {
    return is_double ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

/* ---- for the trainer ---- */

/* Host memory of category data. */
typedef struct tg_dataset_bytes {
    size_t opening; /* peak while the set is opened */
    size_t held;    /* afterwards */
    size_t request; /* streamed: additionally per sample of the largest read */
} tg_dataset_bytes;

/* Opens the files for their shapes; reads no sample. */
TG_NODISCARD tg_status tg_dataset_plan(tg_context *ctx, const char *path,
                                       const tg_dataset_config *config, tg_dataset_facts *facts,
                                       tg_dataset_bytes *bytes);

/* Warns if the dimensions of the grid are sub-sampled differently, which changes its proportions
 * and is rarely intended. tg_dataset_open logs it to its context. */
void tg_dataset_warn(tg_context *ctx, const tg_dataset *dataset, const char *path);

/* Samples read at once while fitting a normalizer, and the memory for them. */
int64_t tg_normalizer_block(const tg_dataset_facts *facts, tg_data_side side);
size_t tg_normalizer_fit_bytes(const tg_dataset_facts *facts, tg_data_side side);

/* "last", "all" or an index from 0 on. `key` names the setting in errors (file_names.c). */
TG_NODISCARD tg_status tg_time_parse(tg_context *ctx, const char *key, const char *text,
                                     int64_t *y_time);

/* The path of a set's file by convention: ROOT/SET_PART_GRID.h5 (or .hdf5, .safetensors, or _x.npy
 * beside _y.npy), e.g. "darcy", "train", "16" -> ROOT/darcy_train_16.h5. Without a grid, NULL, the
 * only file of that set and part is meant. The error names the path that is missing, or the files
 * that could be meant. `root` NULL or "" is the current folder. */
TG_NODISCARD tg_status tg_data_find(tg_context *ctx, const char *root, const char *set,
                                    const char *part, const char *grid, char *path,
                                    size_t capacity);

/* The sample numbers of a batch (up to batch_size), without reading them (loader.c). */
TG_NODISCARD tg_status tg_loader_indices(tg_loader *loader, int64_t epoch, int64_t batch,
                                         int64_t *indices, int64_t *count);

/* Energy by wave number of many fields on one grid, with one plan for all. */

typedef struct tg_energy {
    tg_backend *be; /* on the host, whatever backend computes */
    tg_fft_desc desc;
    tg_fft_plan *plan;
    tg_dtype dtype;       /* of the fields */
    tg_tensor values;     /* (grid..) one channel in double precision */
    int64_t kept, count;  /* numbers of coefficients and of wave numbers (may be lowered) */
    double *coefficients; /* (kept, 2) */
} tg_energy;

/* For fields (grid..) of any dtype, n_dim 1 to 3; must be closed even on failure. */
TG_NODISCARD tg_status tg_energy_open(tg_context *ctx, tg_dtype dtype, int n_dim,
                                      const int64_t *grid, tg_energy *out);
void tg_energy_close(tg_energy *energy);

/* Adds weight * E(k) of a field (channels, grid..) on the host to sums[k], k < count. */
TG_NODISCARD tg_status tg_energy_add(tg_energy *energy, const void *field, int64_t channels,
                                     double weight, double *sums);

/* ---- normalizers (normalizer.c) ---- */

int64_t tg_normalizer_channels(const tg_normalizer *normalizer);
bool tg_normalizer_is_complex(const tg_normalizer *normalizer);

/* To and from an archive, exactly: prefix + "mean" (f64 or c128) and prefix + "std" (f64), both
 * (channels). */
TG_NODISCARD tg_status tg_normalizer_save(const tg_normalizer *normalizer, tg_archive *archive,
                                          const char *prefix);
TG_NODISCARD tg_status tg_normalizer_load(tg_context *ctx, const tg_archive *archive,
                                          const char *prefix, tg_normalizer **out);

/* A copy, which the caller destroys. */
TG_NODISCARD tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from,
                                          tg_normalizer **out);

/* Processes that fit a normalizer together, each to the slab that its dataset hands out. */
typedef struct tg_normalizer_team {
    int group, groups; /* each group has all slabs, and reads a part of the samples */
    /* Adds up values over all of them; fails on all if one has failed. */
    tg_status (*add_up)(void *user, tg_status status, int64_t count, double *values);
    void *user;
} tg_normalizer_team;

/* As tg_normalizer_fit for y, which repeats `channels` channels, like the steps of a rollout: each
 * repetition is a sample. `team` NULL: this process alone. */
TG_NODISCARD tg_status tg_normalizer_fit_channels(tg_context *ctx, tg_dataset *dataset,
                                                  tg_data_side side, int64_t channels,
                                                  const tg_normalizer_team *team,
                                                  tg_normalizer **out);

/* From the units of `from` to those of `to` (NULL: raw), for a channel: scale * value + shift. */
void tg_normalizer_between(const tg_normalizer *from, int64_t from_channel, const tg_normalizer *to,
                           int64_t to_channel, double *scale, tg_scalar *shift);

/* As tg_normalizer_invert, for values on the backend's device: out = values * std + mean. */
TG_NODISCARD tg_status tg_normalizer_decode(const tg_normalizer *n, tg_backend *be,
                                            const tg_tensor *values, const tg_tensor *out);

#endif

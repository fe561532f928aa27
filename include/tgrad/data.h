/* Data for training: pairs of fields (x, y) in files or arrays, their normalization, and batches of
 * them.
 *
 *     tg_dataset_config config = tg_dataset_config_default();
 *     config.n_dim = 2;
 *     tg_dataset_open(ctx, "darcy_train_16.h5", NULL, &config, &set);
 *     tg_normalizer_fit(ctx, set, TG_DATA_Y, &normalizer);
 *     tg_loader_config batches = {.size = sizeof batches, .batch_size = 16, .shuffle = true};
 *     tg_loader_create(ctx, set, &batches, &loader);
 *     tg_loader_batch(loader, epoch, batch, x, y, &count);
 *
 * Everything is handed out on the host as (samples, channels, grid..), f32 or c64; with
 * dtype TG_F64, f64 or c128. */
#ifndef TGRAD_DATA_H
#define TGRAD_DATA_H

#include "tgrad/io.h"

TG_C_BEGIN

#define TG_DATA_MAX_DIMS 3

typedef enum tg_data_side { TG_DATA_X, TG_DATA_Y } tg_data_side;

/* ---- Names of grids ---- */

#define TG_GRID_TEXT 64 /* room for the name of any grid */

/* "16" if all dimensions are equal, "48x80" otherwise; returns text. */
TG_API const char *tg_grid_text(int n_dim, const int64_t *points, char text[TG_GRID_TEXT]);
/* Reads "16", "48x80", "[48, 80]" or "48,80"; returns the number of sizes (one is for every
 * dimension), 0 if the text names no grid. */
TG_API int tg_grid_parse(const char *text, int64_t points[TG_DATA_MAX_DIMS]);

/* ---- Dataset: samples in files, cached in memory or streamed; or in arrays of the caller. ---- */

typedef struct tg_dataset tg_dataset;

/* Values of y_time other than an index. */
#define TG_TIME_LAST (-1) /* the last time of each sample */
#define TG_TIME_ALL  (-2) /* every time, as further channels: time major, (T * C, grid..) */

/* How a file arranges its arrays; docs/own-data.md shows each. */
typedef enum tg_layout_kind {
    TG_LAYOUT_AUTO,       /* x and y, or chosen by the names in an HDF5 file */
    TG_LAYOUT_PAIRS,      /* x and y */
    TG_LAYOUT_TRAJECTORY, /* `fields`, each (samples, times, grid..) or with channels */
    TG_LAYOUT_WELL,       /* t0_fields, t1_fields, t2_fields of The Well */
    TG_LAYOUT_PDEBENCH,   /* tensor, or named fields */
    TG_LAYOUT_NUMBERED,   /* 0000/data, 0001/data, ..: a sample each, (times, grid.., channels) */
    TG_LAYOUT_PDEARENA,   /* train/NAME, valid/NAME or test/NAME */
    TG_LAYOUT_MATLAB,     /* version 7.3: dimensions reversed */
} tg_layout_kind;

TG_API const char *tg_layout_name(tg_layout_kind kind); /* "auto", "pairs", .. */

typedef struct tg_dataset_config {
    size_t size;                    /* of the struct, see status.h */
    int n_dim;                      /* dimensions of the grid, 1 to 3; 0: from the shapes */
    const char *x_name;             /* of the array in an HDF5 or safetensors file; "x" */
    const char *y_name;             /* "y" */
    int64_t grid[TG_DATA_MAX_DIMS]; /* points per dimension, every s-th stored one; 0: all */
    int64_t n_samples;              /* only the first n; 0: all */
    int64_t y_time;                 /* which time of y, if it has them: an index, or TG_TIME_* */
    bool x_only;                    /* y is not needed and not looked for; x may be one sample */
    bool complex_data;              /* hand out c64 also if the files are real */
    size_t cache_bytes;             /* sets of up to this size are kept in memory */
    int64_t n_validation;           /* the last n samples are set apart .. */
    bool is_validation;             /* .. and are handed out instead of the others */
    tg_layout_kind layout;
    const char *group;  /* of the arrays; NULL or "": none, PDEArena: the only one */
    const char *fields; /* "density, v:0-1": these arrays of trajectories, and of one of them these
                           components; NULL or "": all. So for x_name and y_name */
    bool channels_last; /* (samples, grid.., channels) */
    int64_t first_sample; /* samples, or trajectories, to skip; n_samples follow */
    int64_t history;      /* trajectories: frames of x, */
    int64_t horizon;      /* the frames of y that follow them, */
    int64_t time_stride;  /* and stored frames from one to the next; 0 is 1 for all three */
    int coordinates;      /* 0: data on grids; 1 .. 3: at points of that many dimensions */
    int64_t first_frame;  /* trajectories: stored frames to skip, .. */
    int64_t n_frames;     /* .. and to use after them; 0: all */
    tg_dtype dtype; /* TG_F32 or, of data on grids, TG_F64: type of the numbers that are handed out,
                       or of their pairs */
    bool is_pairs;  /* with x_only: an x that stands beside fields in time is meant, not these */
    int part, parts; /* of `parts` processes that share every sample, the slab of this one: the rows
                        n part / parts .. n (part + 1) / parts of the n of the first dimension; 0 of
                        0: all. Only on grids */
} tg_dataset_config;

/* n_dim 2, "x" and "y", the layout by itself, windows of one frame and the next, everything as in
 * the file, the last time, a cache of 1 GiB. */
TG_API void tg_dataset_config_init(tg_dataset_config *config, size_t size);
static inline tg_dataset_config tg_dataset_config_default(void) {
    tg_dataset_config config;
    tg_dataset_config_init(&config, sizeof config);
    return config;
}

/* Opens `path`, an HDF5 or safetensors file with both arrays; or x from `path` and y from `y_path`,
 * each npy, HDF5 or safetensors. "NAME_x.npy" without y_path means y in "NAME_y.npy"; "x_NAME.npy"
 * and "x.npy" likewise. `config` NULL means the default.
 *
 * Arrays are (samples, grid..) with one channel or (samples, channels, grid..). When y has one
 * dimension more than x, that is time: (samples, times, [channels,] grid..); y_time chooses. So y
 * with channels beside x without needs y_time "all".
 *
 * A file of trajectories (tg_layout_kind) gives windows: a sample is `history` frames x and the
 * `horizon` frames y that follow, time major, (frames * channels, grid..); it begins at any time
 * that leaves room for it, and sample i of trajectory j is number j * windows + i. n_samples and
 * first_sample count trajectories then, so that two sets share no frame.
 *
 * With x_only, x may also be a single grid without dimensions of samples and channels, or the
 * (points, d) of one sample.
 *
 * With `coordinates` d the data are at points: x is (samples, points, d) and y the values there,
 * (samples, [channels,] points), and files call them "points" and "values" unless the config has
 * other names than "x" and "y". Points differ between samples, their number does not; they are in
 * [0, 1]^d: points outside, NaN and Inf are errors that name the sample, when it is read. They are
 * handed out as channels of x, (d, points); n_dim is 1, and the grid is the number of points.
 *
 * A set that fits in cache_bytes is read whole now, into memory of category data. */
TG_API TG_NODISCARD tg_status tg_dataset_open(tg_context *ctx, const char *path, const char *y_path,
                                              const tg_dataset_config *config, tg_dataset **out);
TG_API void tg_dataset_close(tg_dataset **dataset);

/* The same on arrays of the caller, host tensors of any dtype, laid out as above. They are
 * borrowed: their memory must outlive the dataset, and is read when samples are, so that a solver
 * may keep writing new samples into it. `y` NULL: x alone. `config`
 * NULL: x and y are (samples, channels, grid..); its names and cache_bytes do not matter. */
TG_API TG_NODISCARD tg_status tg_dataset_wrap(tg_context *ctx, const tg_tensor *x,
                                              const tg_tensor *y, const tg_dataset_config *config,
                                              tg_dataset **out);

typedef struct tg_dataset_facts {
    int64_t samples;
    int64_t in_channels;
    int64_t out_channels; /* 0 with x_only */
    int n_dim;
    int64_t grid[TG_DATA_MAX_DIMS];      /* as handed out, or to all `parts` together */
    int64_t file_grid[TG_DATA_MAX_DIMS]; /* as stored */
    tg_dtype dtype;           /* as handed out, x and y alike: TG_F32, TG_C64, TG_F64 or TG_C128 */
    size_t x_bytes, y_bytes;  /* of one sample as handed out */
    bool cached;              /* in memory; otherwise streamed */
    tg_layout_kind layout;    /* that was found */
    int64_t trajectories;     /* that are used; 0: pairs, and then times is 1 */
    int64_t times;            /* stored frames of each */
    int64_t history, horizon; /* frames of x and y in one sample; 1 and 1 for pairs */
    int64_t frame_channels;   /* channels of a frame of a trajectory, or of x */
    int x_ndim;               /* dimensions that the array of x has */
    int64_t first_row, rows;  /* of the first dimension of the grid, those that are handed out */
} tg_dataset_facts;

TG_API tg_dataset_facts tg_dataset_get_facts(const tg_dataset *dataset);
/* The names of the arrays that samples come from, x and y or the fields of trajectories: number
 * `index` from 0 on; NULL after the last, and for arrays of the caller. */
TG_API const char *tg_dataset_array(const tg_dataset *dataset, int index);

/* Samples by number, in any order, also repeated: x (count, in_channels, grid..) and y (count,
 * out_channels, grid..), raw values of the facts' dtype, the same bits cached or streamed; NULL:
 * not wanted. */
TG_API TG_NODISCARD tg_status tg_dataset_read(tg_dataset *dataset, const int64_t *indices,
                                              int64_t count, void *x, void *y);

/* ---- Normalizer: per channel over samples and space, z = (v - mean) / (std + 1e-7). ----
 *
 * std has n - 1 below. Complex: the mean is complex and std = sqrt(sum |v - mean|^2 / (n - 1)), one
 * real number, so that phases are kept. */

typedef struct tg_normalizer tg_normalizer;

/* Fits to one side of all samples of a set, in f64, with the same bits cached or streamed. NaN and
 * Inf are errors that name the sample. */
TG_API TG_NODISCARD tg_status tg_normalizer_fit(tg_context *ctx, tg_dataset *dataset,
                                                tg_data_side side, tg_normalizer **out);
TG_API void tg_normalizer_destroy(tg_normalizer **normalizer);

/* Of one channel; *mean_im (0 for real data) and each of the others may be NULL. */
TG_API void tg_normalizer_get(const tg_normalizer *normalizer, int64_t channel, double *mean,
                              double *mean_im, double *std);

/* v -> z and z -> v in place on the host: f32 or (if complex) c64, (batch, channels, grid..). */
TG_API TG_NODISCARD tg_status tg_normalizer_apply(const tg_normalizer *normalizer,
                                                  tg_tensor *values);
TG_API TG_NODISCARD tg_status tg_normalizer_invert(const tg_normalizer *normalizer,
                                                   tg_tensor *values);

/* ---- Loader: batches in a seeded order. ----
 *
 * The order of an epoch depends on (seed, epoch) alone, so (epoch, batch) is the whole cursor: a
 * resumed run asks for the next pair and needs nothing else. */

typedef struct tg_loader tg_loader;

typedef struct tg_loader_config {
    size_t size;        /* of the struct, see status.h */
    int64_t batch_size; /* >= 1; the last batch of an epoch is shorter if it does not divide */
    uint64_t seed;
    bool shuffle;    /* otherwise in the order of the file */
    int rank, ranks; /* of `ranks` processes that share every batch, the part of this one, which may
                        be empty in a short batch; 0 of 0: all of it */
} tg_loader_config;

/* The dataset is borrowed: it must outlive the loader. */
TG_API TG_NODISCARD tg_status tg_loader_create(tg_context *ctx, tg_dataset *dataset,
                                               const tg_loader_config *config, tg_loader **out);
TG_API void tg_loader_destroy(tg_loader **loader);

TG_API int64_t tg_loader_batches(const tg_loader *loader); /* of one epoch */

/* Reads a batch of an epoch (0-based); x and y as in tg_dataset_read, with room for batch_size. */
TG_API TG_NODISCARD tg_status tg_loader_batch(tg_loader *loader, int64_t epoch, int64_t batch,
                                              void *x, void *y, int64_t *count);

/* ---- Energy spectra ---- */

/* Number of wave numbers 0, 1, .. in every direction of a grid (n_dim sizes): half of the shortest
 * side, plus one; 0 if it is no grid of 1 to 3 dimensions. */
TG_API int64_t tg_energy_wavenumbers(int n_dim, const int64_t *grid);

/* energy[k], k < count, of fields (samples, channels, grid..) on the host, of any dtype: the sum
 * of |F_q|^2 over the wave vectors q with |q| nearest to k, with the Fourier coefficients F of a
 * channel (the transform divided by the points), summed over channels, the mean over samples.
 * `count` is at most tg_energy_wavenumbers of the grid. */
TG_API TG_NODISCARD tg_status tg_energy_spectrum(tg_context *ctx, const tg_tensor *fields,
                                                 int64_t count, double *energy);

TG_C_END
#endif

/* The interface of an equation: a row of the table in generator.c and one file.
 *
 * To add one: write src/pde/<name>.c with a config struct, its parameters by name and a `tg_pde`
 * that makes samples; add its row to list.def. Files, resuming, threads, command-line options and
 * metadata are provided here. */
#ifndef TG_PDE_PDE_H
#define TG_PDE_PDE_H

#include "backend/backend.h"
#include "base/setting.h"
#include "pde/fields.h"
#include "pde/sample_file.h"
#include "tgrad/pde.h"

enum {
    TG_PDE_MAX_FILES = 1 + TG_MAX_TEST_RESOLUTIONS, /* at most TG_SAMPLERS */
    TG_PDE_MAX_GRID = 1 << 15,                      /* points per dimension */
};

/* Rows of a table of parameters for a struct `config`; and the fields of a tg_pde that name a
 * file's config, params, prepare and open_solver. */
#define TG_PDE_ROW(type, field, low, high, help)                                                   \
    TG_SETTING_ROW(type, config, field, low, high, help)
#define TG_PDE_GRID(usual)                                                                         \
    TG_PDE_ROW(INT64, grid, 0, TG_PDE_MAX_GRID, "points solved on; 0: " usual " or finest used")
#define TG_PDE_SOLVER(solver)                                                                      \
    .config_bytes = sizeof(config), .defaults = &defaults, .params = params,                       \
    .param_count = sizeof params / sizeof params[0], .prepare = prepare,                           \
    .solver_bytes = sizeof(solver), .open = open_solver

/* One sample at one resolution N, in the stored layout. */
typedef struct tg_pde_view {
    int64_t resolution;
    float *x; /* (channels, N..), complex as pairs; or coordinates of points (N, channels) */
    float *y; /* (channels, N..); NULL: x is a trajectory, (frames, N..) */
} tg_pde_view;

/* Destination of a frame of `points`: the first of a pair is x and the second y. */
static inline float *tg_pde_frame(const tg_pde_view *view, int64_t frame, int64_t points) {
    return view->y && frame > 0 ? view->y : view->x + frame * points;
}

/* The setup of a solver. It belongs to one thread, with a context and a backend for it alone, and
 * takes all memory from the pool when it is opened, so that a sample allocates nothing. */
typedef struct tg_pde_setup {
    tg_pool *pool;
    tg_backend *be;     /* on the host; be->threads is the number of threads it may use */
    tg_backend *device; /* makes the samples; NULL: the host does */
    int64_t batch;      /* samples per call, at least 1 */
    const void *config; /* outlives the solver */
    int views;
    const int64_t *resolution; /* (views), distinct, the same order as the views of a sample */
    int64_t frames; /* of a trajectory, from time 0 to the config's `time`; 0: pairs, which are 2 */
} tg_pde_setup;

/* How pairs are taken from flows in time, see trajectory.c. */
typedef struct tg_pde_pairing {
    int64_t spin_up, lag; /* frames */
    int64_t trajectories;
    bool shuffled; /* test pairs are drawn from all pairs; else they are later ones */
} tg_pde_pairing;

/* A flow that advances in time instead of independent samples. The state at frame f (counting
 * stored frames, without the spin-up) is an input, and the state `lag` frames later its output. */
typedef struct tg_pde_trajectory {
    void (*pairing)(const void *config, tg_pde_pairing *out);
    void (*start)(void *solver, const tg_field_key *key);
    /* Advances to the next frame. */
    tg_status (*advance)(void *solver);
    tg_status (*render)(void *solver, int view, float *out);
    /* The bytes of the complete state. */
    void *(*state)(void *solver, size_t *bytes);
} tg_pde_trajectory;

typedef struct tg_pde {
    const char *name;
    const char *summary;
    unsigned id; /* part of the key of random numbers: never changed, never reused */

    tg_dtype dtype;                /* of x and y: f32 or c64 */
    int ndim;                      /* of space */
    int channels[TG_SAMPLE_PARTS]; /* of x and y */
    bool on_points; /* x: coordinates of N points, stored as (N, channels); y: values there */
    const char *fields[TG_SAMPLE_PARTS]; /* of x and y: descriptions for the metadata */
    const char *frame_field;             /* the same for frames of a trajectory; NULL: pairs only */
    int64_t usual_samples[TG_SPLITS], resolution; /* defaults */
    int64_t min_resolution;                       /* 0: 1 point */

    size_t config_bytes;
    const void *defaults;     /* a config */
    const tg_setting *params; /* key: letters and '_'; lists have two entries, low and high */
    int param_count;
    /* Checks that ranges of single parameters cannot express, and values chosen by the finest
     * resolution requested. */
    tg_status (*prepare)(tg_context *ctx, void *config, int64_t finest);

    size_t solver_bytes;
    tg_status (*open)(const tg_pde_setup *setup, void *solver); /* zero-initialised */
    /* One of the next three: a sample at a time, several at once, or a flow in time. */
    /* Fills x and y of every view. */
    tg_status (*sample)(void *solver, const tg_field_key *key, const tg_pde_view *views);
    /* The same for `count` samples (at most the setup's batch): views (count, setup's views). If
     * one of them fails, *failed is its index in this call. */
    tg_status (*samples)(void *solver, int64_t count, const tg_field_key *keys,
                         const tg_pde_view *views, int64_t *failed);
    const tg_pde_trajectory *trajectory;
    bool on_device; /* a device can make samples */
    int64_t (*batch)(
        const void *config); /* samples per call on a device; required with `samples` */
} tg_pde;

#define TG_PDE(name) extern const tg_pde tg_pde_##name;
#include "pde/list.def"

/* The equation of that name; the error suggests the nearest. */
TG_NODISCARD tg_status tg_pde_find(tg_context *ctx, const char *name, const tg_pde **out);
/* Sets one parameter. */
TG_NODISCARD tg_status tg_pde_set(tg_context *ctx, const tg_pde *pde, void *config,
                                  const char *name, const char *value);

/* A solver in the setup's pool. */
TG_NODISCARD tg_status tg_pde_open(const tg_pde *pde, const tg_pde_setup *setup, void **solver);

/* Chooses the solver's grid if it is 0: `usual` or the finest resolution, whichever is larger.
 * Fewer points than `least` or the finest resolution are an error. */
TG_NODISCARD tg_status tg_pde_choose_grid(tg_context *ctx, const char *name, int64_t usual,
                                          int64_t least, int64_t finest, int64_t *grid);

/* ---- a generator: the files it makes, and the two ways of making samples ---- */

typedef struct tg_gen_file {
    tg_split split;
    int64_t resolution;
    char *path;
    tg_sample_file *store;
    int64_t found; /* samples already present */
} tg_gen_file;

struct tg_generator {
    tg_context *ctx;
    tg_comm *comm; /* of several ranks; NULL: one rank */
    const tg_pde *pde;
    void *config;         /* (pde->config_bytes) */
    uint64_t fingerprint; /* of everything that a flow's state depends on */
    uint64_t seed;
    char *folder;
    int64_t samples[TG_SPLITS];
    int64_t frames;         /* of a trajectory; 0: pairs */
    tg_pde_pairing pairing; /* of a flow in time */
    int file_count;
    tg_gen_file files[TG_PDE_MAX_FILES];
};

/* Progress of a run; `tick` reports it and returns false if the run should end. */
typedef struct tg_gen_run {
    tg_generator_fn report; /* NULL: no reports */
    void *user;
    double begin;
    tg_generator_progress progress;
} tg_gen_run;

bool tg_gen_tick(tg_gen_run *run);

/* Floats of one sample of x or y at a resolution; of a trajectory all frames. */
int64_t tg_gen_floats(const tg_generator *g, tg_sample_part part, int64_t resolution);

/* Whether x and y of a sample are in every file of its split. */
bool tg_gen_has(const tg_generator *g, tg_split split, int64_t sample);

/* Pairs of a flow in time, shared equally by its trajectories. */
int64_t tg_gen_shared_pairs(const tg_generator *g);

/* Make the missing samples; *stopped: the user ended the run early. Independent samples on all
 * threads, and a flow in time. */
TG_NODISCARD tg_status tg_gen_samples(tg_generator *g, tg_gen_run *run, bool *stopped);
TG_NODISCARD tg_status tg_gen_trajectory(tg_generator *g, tg_gen_run *run, bool *stopped);

/* Name of the device that makes the samples: the chosen backend, if it is a device that supports
 * the equation; NULL: the host makes them. */
const char *tg_gen_device(const tg_generator *g);

/* Opens the host backend and that of the device (NULL: none) for `ctx`. */
TG_NODISCARD tg_status tg_gen_open_backends(const tg_generator *g, tg_context *ctx, tg_backend **be,
                                            tg_backend **device);

#endif

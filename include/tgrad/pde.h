/* Training data from equations: Burgers, Darcy flow, Navier-Stokes, Kolmogorov flow, pulses in a
 * nonlinear waveguide and potential flow past bodies (docs/data.md has the equations, schemes and
 * grids).
 *
 * Solved in double precision, stored as <set>_train_<resolution>.h5 and <set>_test_<resolution>.h5
 * with datasets x and y (f32, or c64 for complex fields; samples first), on bodies points and
 * values, of trajectories tensor (trajectories, frames, grid..), and every parameter as a text
 * attribute. A sample depends on the parameters, the seed, the part (train or test) and its number
 * only: not on the number of samples (but for flows in time, kolmogorov) or threads. */
#ifndef TGRAD_PDE_H
#define TGRAD_PDE_H

#include <stdbool.h>

#include "tgrad/comm.h"

TG_C_BEGIN

/* ---- equations ---- */

typedef struct tg_pde_info {
    const char *name;                    /* "darcy", also the name of the set */
    const char *summary;                 /* one line */
    int64_t n_train, n_test, resolution; /* defaults */
    int params;                          /* number of parameters */
    bool on_device; /* made on the context's backend if that is a GPU; all others are on the host */
} tg_pde_info;

typedef struct tg_pde_param_info {
    const char *name; /* "viscosity" */
    const char *help; /* one line, with the unit */
    char value[64];   /* the default, as text */
} tg_pde_param_info;

/* Equation number `pde` and its parameter number `param`, 0-based; false beyond the last. */
TG_API bool tg_pde_describe(int pde, tg_pde_info *out);
TG_API bool tg_pde_describe_param(int pde, int param, tg_pde_param_info *out);

/* ---- generating data ---- */

enum { TG_MAX_TEST_RESOLUTIONS = 8 };

typedef struct tg_pde_value {
    const char *name;  /* of a parameter */
    const char *value; /* as text: 0.01, forcing, [2, 15] */
} tg_pde_value;

typedef struct tg_generator_config {
    size_t size;               /* of the struct, see status.h */
    const char *equation;      /* one of the names above */
    const char *folder;        /* where the files go; made if it is not there */
    int64_t n_train, n_test;   /* 0: no such file; -1: the equation's own number */
    int64_t resolution;        /* points per dimension; 0: the equation's own */
    int test_resolution_count; /* 0: the resolution above */
    int64_t test_resolution[TG_MAX_TEST_RESOLUTIONS]; /* the same test samples on each */
    uint64_t seed;
    int value_count;            /* parameters that differ from their defaults */
    const tg_pde_value *values; /* (value_count) */
    bool overwrite;             /* replace files made with other arguments */
    tg_comm *comm;  /* ranks that share independent samples on the host, of which rank 0 writes the
                       files; all make the same calls. NULL: this process alone */
    int64_t frames; /* of trajectories of burgers and ns, stored instead of pairs: equally far apart
                       from time 0 to the parameter `time`. 0: pairs */
} tg_generator_config;

TG_API void tg_generator_config_init(tg_generator_config *config, size_t size);
static inline tg_generator_config tg_generator_config_default(void) {
    tg_generator_config config;
    tg_generator_config_init(&config, sizeof config);
    return config;
}

typedef struct tg_generator tg_generator;

/* Checks everything and opens the files. What an interrupted run left in the folder is taken up, a
 * finished file is kept, and one with fewer samples but the same arguments is extended (not that of
 * a flow in time); one that was made with other arguments is an error that names the difference,
 * unless `overwrite` is set. */
TG_API TG_NODISCARD tg_status tg_generator_create(tg_context *ctx,
                                                  const tg_generator_config *config,
                                                  tg_generator **out);
/* Unfinished files stay where they are. */
TG_API void tg_generator_destroy(tg_generator **generator);

typedef struct tg_generator_progress {
    const char *unit; /* of the counts: "samples", or "frames" of a flow in time */
    int64_t done, total;
    int64_t found;  /* of `done`: were there at the beginning */
    double seconds; /* since the run began */
} tg_generator_progress;

/* Called at the beginning and after each sample, by one thread at a time but not always the same;
 * returning false ends the run after the samples that are in work. */
typedef bool (*tg_generator_fn)(void *user, const tg_generator_progress *progress);

/* Makes the missing samples. Afterwards each file is complete under its name; or *complete is false
 * because `progress` (NULL: none) stopped the run, and the next one resumes from there. */
TG_API TG_NODISCARD tg_status tg_generator_run(tg_generator *g, tg_generator_fn progress,
                                               void *user, bool *complete);

typedef struct tg_generator_file {
    const char *path; /* lives as long as the generator */
    int64_t samples;
    int64_t found; /* samples that were there when the generator was created */
    bool complete;
} tg_generator_file;

/* File number `index`, 0-based; false beyond the last. */
TG_API bool tg_generator_get_file(const tg_generator *g, int index, tg_generator_file *out);

TG_C_END
#endif

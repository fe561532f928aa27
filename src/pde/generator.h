/* Internals of a generator: the files it makes, and the two ways of making samples. */
#ifndef TG_PDE_GENERATOR_H
#define TG_PDE_GENERATOR_H

#include "pde/pde.h"
#include "pde/sample_file.h"

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
    int64_t frames;   /* of a trajectory; 0: pairs */
    tg_pde_pace pace; /* of a flow in time */
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

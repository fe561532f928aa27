/* A flow in time: frames in order, each an input and `lag` frames later an output, first of the
 * training pairs and then, without a common frame, of the test pairs.
 *
 * The state is kept in <folder>/<name>.state, about every second and at the end of a run, so that
 * an interrupted run goes on where it was and gives the same bits. Frames that were stored after
 * the state are made again, with the same result. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/timer.h"
#include "io/file.h"
#include "pde/generator.h"

#define MAGIC         "tgradS01"
#define SAVE_INTERVAL 1.0 /* seconds */

typedef struct header {
    char magic[8];
    uint64_t fingerprint; /* of the generator */
    int64_t frame;
    uint64_t bytes, checksum; /* of the state, which follows */
} header;

typedef struct flow {
    tg_generator *g;
    tg_gen_run *run;
    tg_backend *be, *device;
    void *solver;
    char *path;                    /* of the state */
    int64_t spin_up, lag;          /* frames */
    int64_t first[TG_SPLITS];      /* frame that is the first input of a split */
    int64_t frame, end;            /* where the solver is, and where the work ends */
    int view_of[TG_PDE_MAX_FILES]; /* of the solver, by file */
    float *field;                  /* one frame at the finest resolution */
} flow;

/* ---- the state on disk ---- */

static tg_status save_state(const flow *w) {
    tg_status status = TG_OK;
    tg_atomic_file file = {.fd = -1};
    size_t bytes = 0;
    const void *state = w->g->pde->trajectory->state(w->solver, &bytes);
    header h = {.fingerprint = w->g->fingerprint,
                .frame = w->frame,
                .bytes = bytes,
                .checksum = tg_checksum(state, bytes)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    TG_TRY(tg_atomic_open(w->g->ctx, w->path, &file));
    TG_TRY(tg_atomic_write(&file, &h, sizeof h));
    TG_TRY(tg_atomic_write(&file, state, bytes));
    TG_TRY(tg_atomic_commit(&file));
    return TG_OK;
fail:
    tg_atomic_abort(&file);
    return status;
}

/* True if there is a state of this flow, which is then the solver's, at a frame not after `latest`;
 * anything else that may be there is no help and no error. */
static bool load_state(flow *w, int64_t latest) {
    tg_source source = {.fd = -1};
    header h;
    size_t bytes = 0;
    void *state = w->g->pde->trajectory->state(w->solver, &bytes);
    const bool loaded =
        access(w->path, R_OK) == 0 && tg_source_open(w->g->ctx, w->path, &source) == TG_OK &&
        source.size == sizeof h + bytes && tg_source_read(&source, 0, &h, sizeof h) == TG_OK &&
        memcmp(h.magic, MAGIC, sizeof h.magic) == 0 && h.fingerprint == w->g->fingerprint &&
        h.bytes == bytes && h.frame >= -w->spin_up && h.frame <= latest &&
        tg_source_read(&source, sizeof h, state, bytes) == TG_OK &&
        tg_checksum(state, bytes) == h.checksum;
    tg_source_close(&source);
    w->frame = loaded ? h.frame : -w->spin_up;
    return loaded;
}

/* ---- frames ---- */

/* The first frame that something is missing from; w->end if nothing is. */
static int64_t first_missing(const flow *w) {
    int64_t first = w->end;
    for (int i = 0; i < w->g->file_count; i++) {
        const tg_gen_file *file = &w->g->files[i];
        for (int64_t k = 0; k < w->g->samples[file->split]; k++) {
            const int64_t frame = w->first[file->split] + k;
            if (!tg_sample_file_has(file->store, TG_SAMPLE_X, k) && frame < first) {
                first = frame;
            }
            if (!tg_sample_file_has(file->store, TG_SAMPLE_Y, k) && frame + w->lag < first) {
                first = frame + w->lag;
            }
        }
    }
    return first;
}

/* Writes the present frame wherever it belongs. */
static tg_status store_frame(flow *w) {
    for (int i = 0; i < w->g->file_count; i++) {
        const tg_gen_file *file = &w->g->files[i];
        const int64_t samples = w->g->samples[file->split];
        const int64_t input = w->frame - w->first[file->split], output = input - w->lag;
        const bool is_input = input >= 0 && input < samples;
        const bool is_output = output >= 0 && output < samples;
        if (!is_input && !is_output) {
            continue;
        }
        TG_CALL(w->g->pde->trajectory->render(w->solver, w->view_of[i], w->field));
        if (is_input) {
            TG_CALL(tg_sample_file_put(w->g->ctx, file->store, TG_SAMPLE_X, input, w->field));
        }
        if (is_output) {
            TG_CALL(tg_sample_file_put(w->g->ctx, file->store, TG_SAMPLE_Y, output, w->field));
        }
    }
    return TG_OK;
}

static tg_status run_frames(flow *w, bool *stopped) {
    tg_status status = TG_OK;
    double saved = tg_seconds();
    while (true) {
        TG_TRY(store_frame(w));
        w->run->progress.done = w->frame + w->spin_up + 1;
        *stopped = !tg_gen_tick(w->run) && w->frame + 1 < w->end;
        if (*stopped || (tg_seconds() - saved > SAVE_INTERVAL && w->frame + 1 < w->end)) {
            TG_TRY(save_state(w));
            saved = tg_seconds();
        }
        if (*stopped || w->frame + 1 == w->end) {
            return TG_OK;
        }
        TG_TRY(w->g->pde->trajectory->advance(w->solver));
        w->frame++;
    }
fail:
    return tg_fail(w->g->ctx, status, "%s: frame %lld: %s", w->g->pde->name, (long long)w->frame,
                   tg_context_error(w->g->ctx));
}

/* ---- life ---- */

static tg_status open_flow(flow *w) {
    tg_generator *g = w->g;
    tg_context *ctx = g->ctx;
    int64_t resolution[TG_PDE_MAX_FILES], finest = 0;
    int views = 0;
    for (int i = 0; i < g->file_count; i++) {
        const int64_t n = g->files[i].resolution;
        int v = 0;
        while (v < views && resolution[v] != n) {
            v++;
        }
        w->view_of[i] = v;
        resolution[v] = n;
        views = v == views ? views + 1 : views;
        finest = n > finest ? n : finest;
    }
    const size_t capacity = strlen(g->folder) + strlen(g->pde->name) + 16;
    w->path = tg_mem_alloc(ctx, TG_MEM_OTHER, capacity, 1);
    TG_CALL(w->path ? TG_OK : TG_E_MEMORY);
    snprintf(w->path, capacity, "%s/%s.state", g->folder, g->pde->name);
    TG_CALL(TG_ALLOC(ctx, TG_MEM_DATA, w->field, tg_gen_floats(g, TG_SAMPLE_X, finest)));
    TG_CALL(tg_gen_open_backends(g, ctx, &w->be, &w->device));
    const tg_pde_setup setup = {.ctx = ctx,
                                .be = w->be,
                                .device = w->device,
                                .batch = 1,
                                .config = g->config,
                                .views = views,
                                .resolution = resolution};
    TG_CALL(tg_pde_open(g->pde, &setup, &w->solver));
    return TG_OK;
}

tg_status tg_gen_trajectory(tg_generator *g, tg_gen_run *run, bool *stopped) {
    tg_status status = TG_OK;
    flow w = {.g = g, .run = run};
    g->pde->trajectory->pace(g->config, &w.spin_up, &w.lag);
    for (int s = 0; s < TG_SPLITS; s++) {
        w.first[s] = w.end;
        w.end += g->samples[s] > 0 ? g->samples[s] + w.lag : 0;
    }
    const int64_t missing = first_missing(&w);
    run->progress.unit = "frames";
    run->progress.total = w.spin_up + w.end;
    if (missing == w.end) {
        run->progress.done = run->progress.found = run->progress.total;
        (void)tg_gen_tick(run);
        return TG_OK;
    }
    TG_TRY(open_flow(&w));
    if (load_state(&w, missing)) {
        run->progress.found = w.frame + w.spin_up + 1;
    } else {
        const tg_field_key key = tg_field_key_of(g->seed, g->pde->id, TG_SPLIT_TRAIN, 0);
        g->pde->trajectory->start(w.solver, &key);
    }
    TG_TRY(run_frames(&w, stopped));
    if (!*stopped) {
        unlink(w.path);
    }
fail:
    tg_pde_close(g->pde, g->ctx, &w.solver);
    tg_backend_close(&w.device);
    tg_backend_close(&w.be);
    tg_mem_free(g->ctx, w.field);
    tg_mem_free(g->ctx, w.path);
    return status;
}

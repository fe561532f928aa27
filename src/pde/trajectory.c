/* Flows in time: the frames of one or several trajectories, each frame an input and the one `lag`
 * frames later its output.
 *
 * The pairs are taken from the trajectories in order, in equal shares. `later`: one trajectory
 * gives the training pairs and then, sharing no frame, the test pairs; with several (or without
 * training pairs) the test pairs come from a separate trajectory. `shuffled`: a permutation of all
 * pairs selects the test pairs.
 *
 * The state is saved in <folder>/<name>.state, periodically and at the end of a run, so that an
 * interrupted run continues with the same bits. Frames stored after the state are recomputed, with
 * the same result.
 *
 * A thread writes a frame while the next one is computed: at 1024 x 1024 points checksums and files
 * take the host about as long as a GPU needs for a frame. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/system.h"
#include "io/file.h"
#include "pde/pde.h"

#define MAGIC         "tgradS02"
#define SAVE_INTERVAL 10.0 /* seconds */

typedef struct header {
    char magic[8];
    uint64_t fingerprint; /* of the generator */
    int64_t trajectory, frame;
    uint64_t bytes, checksum; /* of the state, which follows */
} header;

enum { MAX_PUTS = TG_SAMPLE_PARTS * TG_PDE_MAX_FILES };

/* A rendered frame and its destination. */
typedef struct batch {
    float *field[TG_PDE_MAX_FILES]; /* by view */
    struct put {
        tg_sample_file *file;
        tg_sample_part part;
        int64_t sample;
        const float *field;
    } put[MAX_PUTS];
    int count;
} batch;

typedef struct flow {
    tg_generator *g;
    tg_gen_run *run;
    tg_pool pool;
    tg_backend *be, *device;
    void *solver;
    char *path;                /* of the state */
    int64_t trajectory, frame; /* of the solver; frames below 0 are the spin-up */
    int64_t before;            /* frames of earlier trajectories */
    int views;
    int view_of[TG_PDE_MAX_FILES]; /* of the solver, by file */

    batch batches[2]; /* one is filled while the other is written */
    int turn;         /* the one being filled */
    tg_context writer;
    pthread_t thread;
    bool has_thread;
    const batch *written;
    tg_status status; /* of the writing */
} flow;

/* ---- mapping of frames to samples: pair p is made of its frame and the one `lag` later ---- */

/* The first pair that a trajectory shares; those of the next one follow. */
static int64_t first_shared(const flow *w, int64_t trajectory) {
    const int64_t trajectories = w->g->pairing.trajectories;
    return tg_gen_shared_pairs(w->g) * tg_min(trajectory, trajectories) / trajectories;
}

/* The frames of the shared pairs of a trajectory. */
static int64_t shared_frames(const flow *w, int64_t trajectory) {
    const int64_t pairs = first_shared(w, trajectory + 1) - first_shared(w, trajectory);
    return pairs > 0 ? pairs + w->g->pairing.lag : 0;
}

/* The test pairs of a trajectory, which come after the shared ones. */
static int64_t test_pairs(const flow *w, int64_t trajectory) {
    const bool is_separate = w->g->pairing.trajectories > 1 || tg_gen_shared_pairs(w->g) == 0;
    const bool is_there = trajectory == (is_separate ? w->g->pairing.trajectories : 0);
    return is_there && !w->g->pairing.shuffled ? w->g->samples[TG_SPLIT_TEST] : 0;
}

/* The frames of a trajectory after its spin-up; 0 if it is not needed. */
static int64_t frames_of(const flow *w, int64_t trajectory) {
    const int64_t tests = test_pairs(w, trajectory);
    return shared_frames(w, trajectory) + (tests > 0 ? tests + w->g->pairing.lag : 0);
}

/* The pair that a frame is x or y of; -1: none. */
static int64_t pair_of(const flow *w, int64_t trajectory, int64_t frame, tg_sample_part part) {
    const int64_t lag = w->g->pairing.lag, first = first_shared(w, trajectory);
    const int64_t begin = frame - (part == TG_SAMPLE_X ? 0 : lag); /* the frame of x */
    const int64_t later = begin - shared_frames(w, trajectory);
    if (begin >= 0 && first + begin < first_shared(w, trajectory + 1)) {
        return first + begin;
    }
    return later >= 0 && later < test_pairs(w, trajectory) ? tg_gen_shared_pairs(w->g) + later : -1;
}

/* The split and number of the sample of a pair. */
static tg_split sample_of(const flow *w, int64_t pair, int64_t *sample) {
    const int64_t train = w->g->samples[TG_SPLIT_TRAIN], test = w->g->samples[TG_SPLIT_TEST];
    const tg_rng rng = {
        .seed = w->g->seed, .purpose = TG_RNG_SHUFFLE, .step = (uint32_t)w->g->pde->id};
    if (w->g->pairing.shuffled) {
        pair = (int64_t)tg_rng_permute(&rng, (uint64_t)(train + test), (uint64_t)pair);
    }
    *sample = pair < train ? pair : pair - train;
    return pair < train ? TG_SPLIT_TRAIN : TG_SPLIT_TEST;
}

/* The next needed trajectory after this one; -1 if there is none. */
static int64_t next_trajectory(const flow *w, int64_t trajectory) {
    for (trajectory++; trajectory <= w->g->pairing.trajectories; trajectory++) {
        if (frames_of(w, trajectory) > 0) {
            return trajectory;
        }
    }
    return -1;
}

/* Frames of all trajectories before this one. */
static int64_t frames_before(const flow *w, int64_t trajectory) {
    int64_t frames = 0;
    for (int64_t t = next_trajectory(w, -1); t >= 0 && t < trajectory; t = next_trajectory(w, t)) {
        frames += w->g->pairing.spin_up + frames_of(w, t);
    }
    return frames;
}

static void set_place(flow *w, int64_t trajectory, int64_t frame) {
    w->trajectory = trajectory;
    w->before = frames_before(w, trajectory);
    w->frame = frame;
}

/* ---- the state on disk ---- */

static tg_status save_state(const flow *w) {
    size_t bytes = 0;
    const void *state = w->g->pde->trajectory->state(w->solver, &bytes);
    header h = {.fingerprint = w->g->fingerprint,
                .trajectory = w->trajectory,
                .frame = w->frame,
                .bytes = bytes,
                .checksum = tg_checksum(state, bytes)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    const tg_piece pieces[] = {{&h, sizeof h}, {state, bytes}};
    return tg_atomic_write_file(w->g->ctx, w->path, pieces, 2);
}

/* Whether a state of this trajectory, at a frame not after `latest`, was found and loaded into the
 * solver; anything else is ignored. */
static bool load_state(flow *w, int64_t trajectory, int64_t latest) {
    tg_source source = {.fd = -1};
    header h;
    size_t bytes = 0;
    void *state = w->g->pde->trajectory->state(w->solver, &bytes);
    const bool loaded =
        access(w->path, R_OK) == 0 && tg_source_open(w->g->ctx, w->path, &source) == TG_OK &&
        source.size == sizeof h + bytes && tg_source_read(&source, 0, &h, sizeof h) == TG_OK &&
        memcmp(h.magic, MAGIC, sizeof h.magic) == 0 && h.fingerprint == w->g->fingerprint &&
        h.bytes == bytes && h.trajectory == trajectory && h.frame >= -w->g->pairing.spin_up &&
        h.frame <= latest && tg_source_read(&source, sizeof h, state, bytes) == TG_OK &&
        tg_checksum(state, bytes) == h.checksum;
    tg_source_close(&source);
    if (loaded) {
        set_place(w, h.trajectory, h.frame);
    }
    return loaded;
}

/* ---- frames ---- */

static bool is_missing(const flow *w, tg_sample_part part, int64_t pair) {
    int64_t sample = 0;
    const tg_split split = pair < 0 ? TG_SPLITS : sample_of(w, pair, &sample);
    for (int i = 0; i < w->g->file_count; i++) {
        const tg_gen_file *file = &w->g->files[i];
        if (file->split == split && !tg_sample_file_has(file->store, part, sample)) {
            return true;
        }
    }
    return false;
}

/* The trajectory with the first missing frame (-1: none), and that frame. */
static int64_t first_missing(const flow *w, int64_t *frame) {
    for (int64_t t = next_trajectory(w, -1); t >= 0; t = next_trajectory(w, t)) {
        for (*frame = 0; *frame < frames_of(w, t); ++*frame) {
            if (is_missing(w, TG_SAMPLE_X, pair_of(w, t, *frame, TG_SAMPLE_X)) ||
                is_missing(w, TG_SAMPLE_Y, pair_of(w, t, *frame, TG_SAMPLE_Y))) {
                return t;
            }
        }
    }
    return -1;
}

/* Renders the current frame at a view's resolution if a file lacks it. */
static tg_status render_view(flow *w, int view, batch *out) {
    bool is_rendered = false;
    for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
        const tg_sample_part part = (tg_sample_part)p;
        const int64_t pair = pair_of(w, w->trajectory, w->frame, part);
        int64_t sample = 0;
        const tg_split split = pair < 0 ? TG_SPLITS : sample_of(w, pair, &sample);
        for (int i = 0; i < w->g->file_count; i++) {
            const tg_gen_file *file = &w->g->files[i];
            if (file->split != split || w->view_of[i] != view ||
                tg_sample_file_has(file->store, part, sample)) {
                continue;
            }
            if (!is_rendered) {
                TG_CALL(w->g->pde->trajectory->render(w->solver, view, out->field[view]));
                is_rendered = true;
            }
            out->put[out->count++] = (struct put){file->store, part, sample, out->field[view]};
        }
    }
    return TG_OK;
}

static void *write_batch(void *user) {
    flow *w = user;
    for (int i = 0; i < w->written->count && w->status == TG_OK; i++) {
        const struct put *p = &w->written->put[i];
        w->status = tg_sample_file_put(&w->writer, p->file, p->part, p->sample, p->field);
    }
    return NULL;
}

/* Waits until the last frame is written. */
static tg_status finish_writing(flow *w) {
    if (w->has_thread) {
        pthread_join(w->thread, NULL);
        w->has_thread = false;
    }
    return tg_context_adopt(w->g->ctx, &w->writer, w->status);
}

/* Writes the current frame to files that lack it, once the previous one is written. */
static tg_status store_frame(flow *w) {
    batch *b = &w->batches[w->turn];
    b->count = 0;
    for (int v = 0; v < w->views; v++) {
        TG_CALL(render_view(w, v, b));
    }
    TG_CALL(finish_writing(w));
    w->written = b;
    w->turn = 1 - w->turn;
    w->has_thread = b->count > 0 && pthread_create(&w->thread, NULL, write_batch, w) == 0;
    if (!w->has_thread) {
        (void)write_batch(w);
    }
    return TG_OK;
}

static void start_trajectory(flow *w, int64_t trajectory) {
    const bool is_test = trajectory == w->g->pairing.trajectories;
    const tg_field_key key =
        tg_field_key_of(w->g->seed, w->g->pde->id, is_test ? TG_SPLIT_TEST : TG_SPLIT_TRAIN,
                        is_test ? 0 : (uint32_t)trajectory);
    w->g->pde->trajectory->start(w->solver, &key);
    set_place(w, trajectory, -w->g->pairing.spin_up);
}

static bool is_last_frame(const flow *w) {
    return w->frame + 1 == frames_of(w, w->trajectory) && next_trajectory(w, w->trajectory) < 0;
}

static tg_status advance(flow *w) {
    if (w->frame + 1 == frames_of(w, w->trajectory)) {
        start_trajectory(w, next_trajectory(w, w->trajectory));
        return TG_OK;
    }
    w->frame++;
    return w->g->pde->trajectory->advance(w->solver);
}

static tg_status run_frames(flow *w, bool *stopped) {
    tg_status status = TG_OK;
    double saved = tg_seconds();
    while (true) {
        TG_TRY(store_frame(w));
        w->run->progress.done = w->before + w->frame + w->g->pairing.spin_up + 1;
        *stopped = !tg_gen_tick(w->run) && !is_last_frame(w);
        if (*stopped || (tg_seconds() - saved > SAVE_INTERVAL && !is_last_frame(w))) {
            TG_TRY(finish_writing(w));
            TG_TRY(save_state(w));
            saved = tg_seconds();
        }
        if (*stopped || is_last_frame(w)) {
            TG_TRY(finish_writing(w));
            return TG_OK;
        }
        TG_TRY(advance(w));
    }
fail:
    return tg_fail(w->g->ctx, status, "%s: trajectory %lld, frame %lld: %s", w->g->pde->name,
                   (long long)w->trajectory, (long long)w->frame, tg_context_error(w->g->ctx));
}

/* ---- life ---- */

static tg_status open_flow(flow *w) {
    tg_generator *g = w->g;
    tg_context *ctx = g->ctx;
    int64_t resolution[TG_PDE_MAX_FILES];
    for (int i = 0; i < g->file_count; i++) {
        const int64_t n = g->files[i].resolution;
        int v = 0;
        while (v < w->views && resolution[v] != n) {
            v++;
        }
        w->view_of[i] = v;
        resolution[v] = n;
        w->views = v == w->views ? v + 1 : w->views;
    }
    for (int i = 0; i < 2 * w->views; i++) {
        TG_CALL(TG_POOL(&w->pool, w->batches[i % 2].field[i / 2],
                        tg_gen_floats(g, TG_SAMPLE_X, resolution[i / 2])));
    }
    w->path = tg_mem_printf(ctx, "%s/%s.state", g->folder, g->pde->name);
    TG_CALL(w->path ? TG_OK : TG_E_MEMORY);
    TG_CALL(tg_gen_open_backends(g, ctx, &w->be, &w->device));
    const tg_pde_setup setup = {.pool = &w->pool,
                                .be = w->be,
                                .device = w->device,
                                .batch = 1,
                                .config = g->config,
                                .views = w->views,
                                .resolution = resolution};
    TG_CALL(tg_pde_open(g->pde, &setup, &w->solver));
    return TG_OK;
}

tg_status tg_gen_trajectory(tg_generator *g, tg_gen_run *run, bool *stopped) {
    tg_status status = TG_OK;
    flow w = {.g = g, .run = run, .pool = {.ctx = g->ctx}, .writer = tg_context_branch(g->ctx)};
    run->progress.unit = "frames";
    run->progress.total = frames_before(&w, INT64_MAX);
    int64_t frame = 0;
    const int64_t missing = first_missing(&w, &frame);
    if (missing < 0) {
        run->progress.done = run->progress.found = run->progress.total;
        (void)tg_gen_tick(run);
        goto fail;
    }
    TG_TRY(open_flow(&w));
    run->progress.found = frames_before(&w, missing);
    if (load_state(&w, missing, frame)) {
        run->progress.found += w.frame + g->pairing.spin_up + 1;
    } else {
        start_trajectory(&w, missing);
    }
    TG_TRY(run_frames(&w, stopped));
    if (!*stopped) {
        unlink(w.path);
    }
fail:
    if (w.has_thread) {
        pthread_join(w.thread, NULL);
    }
    tg_pool_clear(&w.pool);
    tg_backend_close(&w.device);
    tg_backend_close(&w.be);
    tg_mem_free(g->ctx, w.path);
    return status;
}

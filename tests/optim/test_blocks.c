/* Tensors whose rows are spread over ranks: with R groups of D ranks, where a group has the
 * gradients of some samples and rank d of it those of part d, the weights of one rank that has all
 * of them; in f64 to 1e-10 with fixed factors and 1e-6 with refreshed ones. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "optim/optim.h"
#include "support/cmocka.h"
#include "support/fake_device.h"
#include "support/files.h"
#include "support/rank_threads.h"
#include "tgrad/tgrad.h"
#include "train/step.h"

enum { MOST_PARTS = 3, MOST_GROUPS = 2, PARAMS = 4, STEPS = 7, MOST_ENTRIES = 73728, BATCH = 9 };

/* Three weights in blocks, the second one too small to be projected, and a bias. */
static const struct {
    const char *name;
    tg_shape shape;
    bool is_split;
} tensors[PARAMS] = {{"line", {3, {6, 5, 7}}, true},
                     {"small", {4, {2, 1, 3, 2}}, true},
                     {"plane", {4, {4, 5, 7, 3}}, true},
                     {"bias", {1, {37}}, false}};
/* In place of the plane: with 3 dimensions of modes, with 8-bit moments, with moments that live on
 * one rank each though they are dense. */
static const tg_shape space = {5, {3, 4, 5, 3, 2}}, medium = {4, {16, 16, 9, 4}},
                      large = {4, {32, 32, 9, 8}};

/* Weights after a training: whole tensors, and those of each rank. */
typedef struct results {
    double weights[PARAMS][2 * MOST_ENTRIES];
    double copies[MOST_GROUPS * MOST_PARTS][PARAMS][2 * MOST_ENTRIES];
} results;

/* Settings of a training, and its results. */
typedef struct training {
    const char *settings[4][2]; /* of the optimizer */
    int gap;
    const char *backend; /* NULL: cpu */
    const tg_shape *plane;
    bool begin_alike; /* a mistake: all blocks begin at row 0 */
    bool is_single, is_factored, shards, overlaps;
    double clip;
    int micro;       /* gradients per update, at least 1 */
    int bad_step;    /* with a NaN in the last part; 0: none */
    int first, last; /* steps to make, 0: STEPS; the first one loads `state` unless it is 0 */
    int parts, groups;
    const char *state; /* a file, written after the last step or read before the first */
    tg_comm_group *world, *domain[MOST_GROUPS], *replicas[MOST_PARTS];
    results *to;
    int64_t refreshes, skipped;
} training;

static tg_context *keeper; /* of objects that the ranks share */

typedef struct member {
    training *t;
    int rank, errors;
    tg_context *ctx;
    tg_backend *be;
    tg_comm *comm, *domain, *replicas;
    tg_optim *optim;
    tg_exchange *exchange;
    tg_optim_memory planned;
    size_t most, planned_most; /* bytes of gradients during the training */
    size_t backend;            /* bytes of workspace that are the backend's */
    tg_tensor weight[PARAMS];
    tg_tensor given[2];           /* where the backend computes: arrays of a gradient */
    double *whole, *own, *arrays; /* scratch */
} member;

static tg_shape whole_shape(const training *t, int param) {
    return param == 2 && t->plane ? *t->plane : tensors[param].shape;
}

/* Bytes of a tensor in `results`. */
static size_t bytes_of(const training *t, int param) {
    const tg_shape shape = whole_shape(t, param);
    return 2 * (size_t)tg_shape_numel(&shape) * sizeof(double);
}

static int last_of(const training *t) {
    return t->last ? t->last : STEPS;
}

static tg_dtype dtype_of(const training *t, int param) {
    const bool is_complex = tensors[param].is_split;
    return t->is_single ? (is_complex ? TG_C64 : TG_F32) : is_complex ? TG_C128 : TG_F64;
}

/* Rows of the third dimension of a rank: all of them if there is one part. */
static tg_optim_block block_of(const training *t, int param, int part, tg_shape *shape) {
    *shape = whole_shape(t, param);
    if (!tensors[param].is_split || t->parts == 1) {
        return (tg_optim_block){0};
    }
    const int64_t rows = shape->dim[2];
    const int64_t first = rows * part / t->parts;
    shape->dim[2] = rows * (part + 1) / t->parts - first;
    return (tg_optim_block){.dim = 2, .whole = rows, .first = t->begin_alike ? 0 : first};
}

/* The part of an array of the whole, `outer` times (whole, inner) values of two doubles each, or
 * back. */
static void cut(const training *t, int param, int part, int64_t outer, double *whole, double *block,
                bool back) {
    tg_shape shape;
    const tg_optim_block rows = block_of(t, param, part, &shape);
    const int64_t inner = tg_product(shape.ndim - 3, shape.dim + 3);
    const int64_t size = 2 * shape.dim[2] * inner;
    for (int64_t i = 0; i < outer; i++) {
        double *at = whole + 2 * (i * rows.whole + rows.first) * inner;
        memcpy(back ? at : block + i * size, back ? block + i * size : at,
               (size_t)size * sizeof(double));
    }
}

/* Numbers without structure. */
static void draw(int64_t n, double seed, double *out) {
    for (int64_t i = 0; i < n; i++) {
        const double number = (double)i + 1.0 + 1013.0 * seed;
        out[i] = sin(12.9898 * number * number);
    }
}

static void store(tg_dtype dtype, const double *from, void *to, int64_t n) {
    const bool is_complex = tg_dtype_is_complex(dtype);
    for (int64_t i = 0; i < n; i++) {
        tg_store(dtype, to, i, (tg_scalar){from[2 * i], is_complex ? from[2 * i + 1] : 0.0});
    }
}

static void load(tg_dtype dtype, const void *from, double *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar value = tg_load(dtype, from, i);
        to[2 * i] = value.re;
        to[2 * i + 1] = value.im;
    }
}

/* ---- one rank ---- */

static int make_optimizer(member *m) {
    const training *t = m->t;
    const int part = m->rank % t->parts;
    tg_optim_config groups[2] = {tg_optim_config_default(), tg_optim_config_default()};
    tg_optim_param params[PARAMS];
    tg_optim_block blocks[PARAMS];
    int errors = 0;
    for (int i = 0; i < 4 && t->settings[i][0]; i++) {
        errors +=
            tg_optim_config_set(m->ctx, &groups[0], t->settings[i][0], t->settings[i][1]) != TG_OK;
    }
    groups[0].update_proj_gap = t->gap;
    groups[0].min_entries = 20;
    groups[0].learning_rate = groups[1].learning_rate = 0.01;
    groups[0].weight_decay = 0.1;
    for (int i = 0; i < PARAMS; i++) {
        params[i] = (tg_optim_param){
            .name = tensors[i].name, .dtype = dtype_of(t, i), .group = tensors[i].is_split ? 0 : 1};
        blocks[i] = block_of(t, i, part, &params[i].shape);
    }
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = groups,
                                  .group_count = 2,
                                  .params = params,
                                  .param_count = PARAMS,
                                  .seed = 5,
                                  .takes_factored = t->is_factored,
                                  .accumulates = true,
                                  .shard_rank = m->rank,
                                  .shard_ranks = t->shards ? t->parts * t->groups : 0,
                                  .blocks = t->parts > 1 ? blocks : NULL,
                                  .parts = t->parts};
    errors += tg_optim_plan_memory(m->ctx, &setup, &m->planned) != TG_OK;
    errors += tg_optim_create(m->ctx, &setup, &m->optim) != TG_OK;
    return errors;
}

/* An array of the host into a tensor where the backend computes, or back. */
static int copy(const member *m, const tg_tensor *tensor, void *array, bool to) {
    tg_tensor host = *tensor;
    host.data = array;
    host.place = TG_HOST;
    return tg_backend_copy(m->ctx, to ? &host : tensor, to ? tensor : &host) != TG_OK;
}

static int make_weights(member *m) {
    const training *t = m->t;
    double *whole = m->whole, *own = m->own;
    int errors = 0;
    for (int i = 0; i < PARAMS; i++) {
        tg_shape shape;
        const tg_shape all = whole_shape(t, i);
        const tg_optim_block block = block_of(t, i, m->rank % t->parts, &shape);
        draw(2 * tg_shape_numel(&all), 0.5 + i, whole);
        if (t->first > 0) {
            memcpy(whole, t->to->weights[i], bytes_of(t, i));
        }
        if (block.whole > 0) {
            cut(t, i, m->rank % t->parts, all.dim[0] * all.dim[1], whole, own, false);
        }
        errors +=
            tg_backend_tensor(m->ctx, TG_MEM_DATA, dtype_of(t, i), &shape, &m->weight[i]) != TG_OK;
        store(dtype_of(t, i), block.whole > 0 ? own : whole, m->arrays, tg_shape_numel(&shape));
        errors += errors == 0 && copy(m, &m->weight[i], m->arrays, true) != 0;
    }
    for (int i = 0; i < 2; i++) {
        const tg_shape most = {1, {2 * MOST_ENTRIES}};
        errors += tg_backend_tensor(m->ctx, TG_MEM_DATA, TG_F64, &most, &m->given[i]) != TG_OK;
    }
    return errors;
}

/* Every planned byte is allocated, and no other. */
static int compare_bytes(const member *m) {
    static const tg_mem_category exact[] = {TG_MEM_OPTIMIZER, TG_MEM_FACTORS, TG_MEM_INDICES,
                                            TG_MEM_GRADIENTS, TG_MEM_WORKSPACE};
    const tg_mem_usage found = tg_context_memory(m->ctx, m->be->ops->place);
    int errors = 0;
    for (int i = 0; i < 5; i++) {
        const size_t bytes =
            m->planned.bytes[exact[i]] + (exact[i] == TG_MEM_WORKSPACE ? m->backend : 0);
        if (found.current[exact[i]] != bytes) {
            print_message("rank %d: %zu bytes of category %d, planned %zu\n", m->rank,
                          found.current[exact[i]], (int)exact[i], bytes);
            errors++;
        }
    }
    return errors;
}

static int make_rank(member *m) {
    training *t = m->t;
    const tg_context_config one = {.size = sizeof one, .threads = 1, .device = -1};
    const int group = m->rank / t->parts, part = m->rank % t->parts;
    m->whole = calloc(8 * MOST_ENTRIES, sizeof *m->whole);
    assert_non_null(m->whole);
    m->own = m->whole + 2 * MOST_ENTRIES;
    m->arrays = m->own + 2 * MOST_ENTRIES;
    int errors = tg_context_create(&one, &m->ctx) != TG_OK;
    errors += tg_backend_select(m->ctx, t->backend ? t->backend : "cpu") != TG_OK;
    errors += tg_backend_get(m->ctx, &m->be) != TG_OK;
    m->backend = tg_context_memory(m->ctx, m->be->ops->place).current[TG_MEM_WORKSPACE];
    errors += make_optimizer(m);
    errors += errors == 0 && compare_bytes(m) != 0;
    errors += make_weights(m);
    if (t->world) {
        errors += tg_comm_create_threads(m->ctx, t->world, m->rank, NULL, &m->comm) != TG_OK;
        errors += tg_comm_create_threads(m->ctx, t->domain[group], part, NULL, &m->domain) != TG_OK;
        errors += t->groups > 1 && tg_comm_create_threads(m->ctx, t->replicas[part], group, NULL,
                                                          &m->replicas) != TG_OK;
        const tg_step_config config = {
            .optim = m->optim, .comm = m->comm, .domain = m->domain, .replicas = m->replicas};
        errors +=
            errors == 0 && tg_exchange_create(m->ctx, &config, t->overlaps, &m->exchange) != TG_OK;
    }
    for (int i = 0; i < PARAMS && errors == 0; i++) {
        errors += tg_optim_bind(m->optim, i, &m->weight[i]) != TG_OK;
    }
    return errors;
}

static void end_rank(member *m) {
    for (int i = 0; i < PARAMS; i++) {
        tg_tensor_destroy(&m->weight[i]);
    }
    tg_tensor_destroy(&m->given[0]);
    tg_tensor_destroy(&m->given[1]);
    tg_exchange_destroy(&m->exchange);
    tg_comm_destroy(&m->replicas);
    tg_comm_destroy(&m->domain);
    tg_comm_destroy(&m->comm);
    tg_optim_destroy(&m->optim);
    tg_context_destroy(&m->ctx);
    free(m->whole);
}

/* ---- gradients ---- */

/* A gradient is handed over: to the exchange, or to the sums of the rank that is alone. */
static int hand_over(const member *m, const tg_gradient *gradient) {
    if (m->exchange) {
        const tg_grad_sink sink = tg_exchange_sink(m->exchange);
        return sink.receive(sink.user, gradient) != TG_OK;
    }
    return tg_optim_accumulate(m->optim, gradient) != TG_OK;
}

/* An array of `outer` rows of modes, or of a whole parameter: this rank's part of it, in given[k].
 */
static int make_array(const member *m, int param, int64_t outer, double seed, bool is_bad, int k) {
    double *whole = m->whole, *own = m->own;
    const training *t = m->t;
    const int part = m->rank % t->parts;
    tg_shape shape;
    const tg_shape all = whole_shape(t, param);
    const tg_optim_block block = block_of(t, param, part, &shape);
    const int64_t n =
        tensors[param].is_split ? outer * tg_product(all.ndim - 2, all.dim + 2) : all.dim[0];
    draw(2 * n, seed, whole);
    whole[2 * n - 1] = is_bad ? (double)NAN : whole[2 * n - 1];
    if (block.whole > 0) {
        cut(t, param, part, outer, whole, own, false);
    }
    tg_tensor out = m->given[k];
    out.dtype = dtype_of(t, param);
    out.shape = (tg_shape){1, {block.whole > 0 ? n / block.whole * shape.dim[2] : n}};
    store(out.dtype, block.whole > 0 ? own : whole, m->arrays, out.shape.dim[0]);
    return copy(m, &out, m->arrays, true);
}

static int receive_one(const member *m, int param, double seed, bool is_bad) {
    const training *t = m->t;
    int errors = 0;
    tg_gradient gradient = {.param = param,
                            .dtype = dtype_of(t, param),
                            .shape = m->weight[param].shape,
                            .place = m->given[0].place};
    const int64_t *dim = gradient.shape.dim;
    if (t->is_factored && tensors[param].is_split) {
        errors += make_array(m, param, BATCH * dim[0], seed, false, 0);
        errors += make_array(m, param, BATCH * dim[1], seed + 0.25, is_bad, 1);
        gradient.x = m->given[0].data;
        gradient.dy = m->given[1].data;
        gradient.batch = BATCH;
    } else {
        errors += make_array(m, param, dim[0] * dim[1], seed, is_bad && tensors[param].is_split, 0);
        gradient.dense = m->given[0].data;
    }
    return errors + hand_over(m, &gradient);
}

/* The gradients of one group of samples; of a whole parameter, every rank of the group has its own
 * share of the sum. */
static int receive_all(const member *m, int step, int micro, int group) {
    const training *t = m->t;
    const bool is_bad = step > 0 && step == t->bad_step && group == 0;
    int errors = 0;
    for (int i = PARAMS - 1; i >= 0 && errors == 0; i--) {
        const double seed = ((step * 3.0 + micro) * MOST_GROUPS + group) * PARAMS + i + 1.0;
        const bool is_one = tensors[i].is_split || t->world;
        for (int share = 0; share < (is_one ? 1 : MOST_PARTS); share++) {
            const int own = t->world ? m->rank % t->parts : share;
            errors += receive_one(m, i, tensors[i].is_split ? seed : seed + own * 0.125, is_bad);
        }
        /* shares of missing parts */
        for (int share = t->parts; share < MOST_PARTS && t->world && !tensors[i].is_split;
             share++) {
            errors += m->rank % t->parts == 0 ? receive_one(m, i, seed + share * 0.125, is_bad) : 0;
        }
    }
    return errors;
}

static int make_update(member *m, int step) {
    const training *t = m->t;
    int errors = 0;
    double norm = 0.0;
    for (int micro = 0; micro < t->micro; micro++) {
        if (t->world) {
            errors += receive_all(m, step, micro, m->rank / t->parts);
            for (int group = t->groups; group < MOST_GROUPS && errors == 0; group++) {
                errors += m->rank / t->parts == 0 ? receive_all(m, step, micro, group) : 0;
            }
        }
        for (int group = 0; !t->world && group < MOST_GROUPS; group++) {
            errors += receive_all(m, step, micro, group);
        }
    }
    errors += t->world && tg_exchange_sums(m->exchange, t->clip > 0.0) != TG_OK;
    errors += t->clip > 0.0 && tg_optim_clip_accumulated(m->optim, t->clip, &norm) != TG_OK;
    for (int i = 0; i < PARAMS && errors == 0; i++) {
        errors += t->world ? tg_exchange_apply(m->exchange, i, &m->weight[i]) != TG_OK
                           : tg_optim_apply(m->optim, i, &m->weight[i]) != TG_OK;
    }
    return errors + (tg_optim_end_update(m->optim) != TG_OK);
}

/* Rank 0 writes the state of all. */
static int save(member *m) {
    tg_archive *gathered = NULL, *archive = NULL;
    int errors = 0;
    if (m->comm) {
        const size_t held = tg_context_memory(m->ctx, TG_HOST).current[TG_MEM_DATA];
        errors += tg_exchange_gather_state(m->comm, m->optim, TG_OK, &gathered) != TG_OK;
        const size_t most = tg_context_memory(m->ctx, TG_HOST).peak[TG_MEM_DATA] - held;
        errors += m->rank == 0 && (most > m->planned.elsewhere || most < m->planned.elsewhere / 2);
    }
    if (m->rank == 0) {
        m->optim->gathered = gathered;
        errors += tg_archive_create(m->ctx, &archive) != TG_OK;
        errors += errors == 0 && tg_optim_save(m->optim, archive) != TG_OK;
        errors += errors == 0 && tg_archive_write(m->ctx, m->t->state, archive) != TG_OK;
    }
    tg_archive_destroy(&archive);
    tg_archive_destroy(&gathered);
    return errors;
}

static int load_state(member *m) {
    tg_archive *archive = NULL;
    int errors = tg_archive_read(m->ctx, m->t->state, &archive) != TG_OK;
    errors += errors == 0 && tg_optim_load(m->optim, archive) != TG_OK;
    tg_archive_destroy(&archive);
    return errors;
}

static int train(member *m) {
    training *t = m->t;
    int errors = t->first > 0 ? load_state(m) : 0;
    for (int step = t->first; step < last_of(t) && errors == 0; step++) {
        errors += make_update(m, step);
    }
    for (int i = 0; i < PARAMS && errors == 0; i++) {
        errors += copy(m, &m->weight[i], m->arrays, false);
        load(dtype_of(t, i), m->arrays, t->to->copies[m->rank][i], tg_tensor_numel(&m->weight[i]));
    }
    if (m->rank == 0 && errors == 0) {
        const tg_optim_stats stats = tg_optim_get_stats(m->optim);
        t->refreshes = stats.refreshes;
        t->skipped = stats.skipped;
    }
    errors += t->state && t->first == 0 && save(m) != 0;
    m->most = tg_context_memory(m->ctx, m->be->ops->place).peak[TG_MEM_GRADIENTS];
    m->planned_most = m->planned.bytes[TG_MEM_GRADIENTS] + m->planned.refresh[TG_MEM_GRADIENTS];
    return errors + (compare_bytes(m) != 0);
}

static void *be_rank(void *user) {
    member *m = user;
    m->errors = make_rank(m);
    m->errors += m->errors == 0 ? train(m) : 0;
    if (m->errors) {
        print_message("rank %d: %s\n", m->rank, tg_context_error(m->ctx));
    }
    end_rank(m);
    return NULL;
}

/* ---- all of them ---- */

static void make_groups(training *t) {
    const int ranks = t->parts * t->groups;
    t->world = NULL;
    if (ranks == 1) {
        return;
    }
    assert_int_equal(tg_comm_group_create(keeper, ranks, &t->world), TG_OK);
    for (int i = 0; i < t->groups; i++) {
        assert_int_equal(tg_comm_group_create(keeper, t->parts, &t->domain[i]), TG_OK);
    }
    for (int i = 0; i < t->parts && t->groups > 1; i++) {
        assert_int_equal(tg_comm_group_create(keeper, t->groups, &t->replicas[i]), TG_OK);
    }
}

static void end_groups(training *t) {
    tg_comm_group_destroy(&t->world);
    for (int i = 0; i < MOST_GROUPS; i++) {
        tg_comm_group_destroy(&t->domain[i]);
    }
    for (int i = 0; i < MOST_PARTS; i++) {
        tg_comm_group_destroy(&t->replicas[i]);
    }
}

/* Puts the whole weights together. Ranks with the same part have the same bits. */
static void collect(training *t) {
    for (int i = 0; i < PARAMS; i++) {
        const tg_shape all = whole_shape(t, i);
        for (int rank = t->parts * t->groups - 1; rank >= 0; rank--) {
            const int like = tensors[i].is_split ? rank % t->parts : 0;
            assert_memory_equal(t->to->copies[rank][i], t->to->copies[like][i], bytes_of(t, i));
            if (tensors[i].is_split && t->parts > 1) {
                cut(t, i, rank % t->parts, all.dim[0] * all.dim[1], t->to->weights[i],
                    t->to->copies[rank][i], true);
            } else {
                memcpy(t->to->weights[i], t->to->copies[rank][i], bytes_of(t, i));
            }
        }
    }
}

static void run(training *t) {
    member members[MOST_GROUPS * MOST_PARTS];
    pthread_t threads[MOST_GROUPS * MOST_PARTS];
    t->micro = t->micro ? t->micro : 1;
    for (int rank = 0; rank < t->parts * t->groups; rank++) {
        for (int i = 0; i < PARAMS; i++) {
            memset(t->to->copies[rank][i], 0, bytes_of(t, i));
        }
    }
    make_groups(t);
    for (int i = 0; i < t->parts * t->groups; i++) {
        members[i] = (member){.t = t, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, be_rank, &members[i]), 0);
    }
    for (int i = 0; i < t->parts * t->groups; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    bool is_planned = false;
    for (int i = 0; i < t->parts * t->groups; i++) {
        assert_int_equal(members[i].errors, 0);
        assert_true(members[i].most <= members[i].planned_most);
        is_planned = is_planned || members[i].most == members[i].planned_most;
    }
    assert_true(is_planned || t->first > 0); /* at least on the owner of the largest tensor */
    collect(t);
    end_groups(t);
}

static void expect_near(const training *found, const training *expected, double tolerance) {
    for (int i = 0; i < PARAMS; i++) {
        const tg_shape shape = whole_shape(found, i);
        for (int64_t j = 0; j < 2 * tg_shape_numel(&shape); j++) {
            const double one = expected->to->weights[i][j], other = found->to->weights[i][j];
            if (!(fabs(other - one) <= tolerance * (1.0 + fabs(one)))) {
                fail_msg(
                    "%s, %d parts, %d groups, %s%s%d micro, clip %g: %s[%d] is %.17g, not %.17g",
                    found->settings[0][1], found->parts, found->groups,
                    found->shards ? "shards, " : "", found->overlaps ? "overlaps, " : "",
                    found->micro, found->clip, tensors[i].name, (int)j, other, one);
            }
        }
    }
    assert_int_equal(found->refreshes, expected->refreshes);
    assert_int_equal(found->skipped, expected->skipped);
}

/* One to three parts, one or two groups. In a refresh, the norm to clip to is that of projected
 * gradients only with several ranks, of which the reference then has two. */
static void compare(const training *how, double tolerance) {
    static results one, several;
    training alone = *how, together;
    alone.to = &one;
    alone.parts = 1;
    alone.groups = how->clip > 0.0 ? 2 : 1;
    alone.shards = alone.overlaps = false;
    run(&alone);
    assert_true(alone.refreshes > 0 || strcmp(how->settings[0][1], "adam") == 0);
    for (int i = 1; i < MOST_GROUPS * MOST_PARTS; i++) {
        together = *how;
        together.to = &several;
        together.parts = i % MOST_PARTS + 1;
        together.groups = i / MOST_PARTS + 1;
        if (!how->overlaps || together.groups == MOST_GROUPS) { /* each gradient comes once */
            run(&together);
            expect_near(&together, &alone, tolerance);
        }
    }
}

TEST(dense_blocks_agree_with_whole_tensors) {
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .plane = &space}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .is_factored = true}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .is_single = true}, 1e-4);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .overlaps = true}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}, {"rule", "lion"}}, .gap = 1000}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}, {"rule", "muon"}}, .gap = 1000}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}, {"rule", "apollo"}}, .gap = 3}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}, {"rule", "apollo"}, {"rank", "1"}},
                        .gap = 3,
                        .shards = true},
            1e-10);
}

TEST(every_entry_counts_once_in_norms) {
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .clip = 1e-3}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .clip = 1e-3, .shards = true},
            1e-10);
}

TEST(moments_of_large_blocks_live_on_one_rank_each) {
    compare(&(training){.settings = {{"name", "adam"}},
                        .gap = 1000,
                        .plane = &large,
                        .shards = true,
                        .clip = 1e-3,
                        .last = 4},
            1e-10);
    compare(&(training){.settings = {{"name", "adam"}},
                        .gap = 1000,
                        .plane = &large,
                        .shards = true,
                        .bad_step = 2,
                        .last = 4},
            1e-10);
}

TEST(a_nan_of_one_part_skips_the_update_of_all) {
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .bad_step = 3}, 1e-10);
    compare(&(training){.settings = {{"name", "adam"}}, .gap = 1000, .bad_step = 3, .micro = 2},
            1e-10);
}

static const char *const methods[] = {"tensorgrad", "lowrank",      "galore",
                                      "structured", "unstructured", "adam"};
enum { METHODS = sizeof methods / sizeof methods[0] };

TEST(projected_blocks_agree_with_fixed_factors) {
    for (int i = 0; i < METHODS; i++) {
        training how = {.settings = {{"name", methods[i]}}, .gap = 1000};
        for (int form = 0; form < 4; form++) {
            how.plane = form % 2 == 1 ? &space : NULL;
            how.is_factored = form / 2 == 1;
            compare(&how, 1e-10);
        }
        how.is_single = true;
        compare(&how, 1e-4);
    }
}

TEST(projected_blocks_agree_with_refreshes) {
    for (int i = 0; i < METHODS; i++) {
        training how = {.settings = {{"name", methods[i]}}, .gap = 3};
        compare(&how, 1e-6);
        how.shards = true;
        compare(&how, 1e-6);
        how.shards = false;
        how.overlaps = true;
        compare(&how, 1e-6);
        how.overlaps = false;
        how.micro = 2;
        how.clip = 1e-3;
        compare(&how, 1e-6);
        how.settings[1][0] = "moments_on_refresh";
        how.settings[1][1] = "reset";
        how.is_factored = true;
        compare(&how, 1e-6);
    }
}

TEST(ranks_by_memory_are_those_of_whole_tensors) {
    compare(&(training){.settings = {{"name", "tensorgrad"}, {"memory_budget", "0.4"}}, .gap = 3},
            1e-6);
}

TEST(a_low_rank_branch_may_come_first) {
    static const char *const sparse[] = {"unstructured_sparse", "structured_sparse"};
    static const char *const schemes[] = {"tensorgrad", "tensorgrad_sum"};
    for (int i = 0; i < 4; i++) {
        compare(&(training){.settings = {{"name", "lowrank"},
                                         {"optimizer_type", schemes[i % 2]},
                                         {"second_proj_type", sparse[i / 2]}},
                            .gap = 3,
                            .micro = 2,
                            .plane = i % 2 == 1 ? &space : NULL},
                1e-6);
    }
}

/* GaLore's rows and columns may each hold the rows of the block, and have factors or not. */
TEST(matrices_of_every_form_agree) {
    static const char *const sides[] = {"left", "right", "std", "reverse_std"};
    static const char *const rollups[] = {"1", "2"};
    for (int i = 0; i < 8; i++) {
        compare(&(training){.settings = {{"name", "galore"},
                                         {"galore_2d_proj_type", sides[i % 4]},
                                         {"first_dim_rollup", rollups[i / 4]}},
                            .gap = 3,
                            .micro = 2,
                            .plane = i % 2 == 1 ? &space : NULL},
                1e-6);
    }
    compare(&(training){.settings = {{"name", "tensorgrad"},
                                     {"second_proj_type", "matrix"},
                                     {"galore_2d_proj_type", "right"}},
                        .gap = 3},
            1e-6);
}

TEST(a_nan_in_a_refresh_is_skipped_by_all) {
    for (int bad = 2; bad <= 3; bad++) {
        for (int i = 0; i < METHODS; i++) {
            training how = {
                .settings = {{"name", methods[i]}}, .gap = 3, .bad_step = bad, .clip = 1e-3};
            compare(&how, 1e-6);
            how.shards = true;
            compare(&how, 1e-6);
        }
    }
}

/* Saved by three ranks, or six, and loaded by one, two, three or four: the weights of a training
 * that was not interrupted; on as many ranks to the bit. */
static void compare_resumed(const training *how, double tolerance) {
    static results one, first, all, second;
    training alone = *how, before, whole, after;
    static char state[512];
    snprintf(state, sizeof state, "%s", test_path("state.safetensors"));
    alone.to = &one;
    alone.parts = alone.groups = 1;
    run(&alone);
    for (int groups = 1; groups <= 2; groups++) {
        before = whole = *how;
        before.to = &first;
        whole.to = &all;
        before.parts = whole.parts = MOST_PARTS;
        before.groups = whole.groups = groups;
        before.last = last_of(how) / 2;
        before.state = state;
        run(&whole);
        run(&before);
        for (int parts = 1; parts <= MOST_PARTS; parts++) {
            after = *how;
            after.to = &second;
            memcpy(second.weights, first.weights, sizeof second.weights);
            after.state = before.state;
            after.first = last_of(how) / 2;
            after.parts = parts;
            after.groups = groups;
            run(&after);
            expect_near(&after, &alone, tolerance);
            if (parts == MOST_PARTS && tolerance < 1e-3) {
                for (int i = 0; i < PARAMS; i++) {
                    assert_memory_equal(second.weights[i], all.weights[i], bytes_of(how, i));
                }
            }
        }
    }
}

TEST(a_state_may_be_saved_and_loaded_by_any_number_of_parts) {
    for (int i = 0; i < METHODS; i++) {
        training how = {.settings = {{"name", methods[i]}}, .gap = 3};
        compare_resumed(&how, 1e-6);
        how.shards = true;
        compare_resumed(&how, 1e-6);
    }
    compare_resumed(&(training){.settings = {{"name", "adam"}},
                                .gap = 1000,
                                .plane = &large,
                                .shards = true,
                                .last = 4},
                    1e-10);
    static const char *const rules[] = {"lion", "apollo", "apollo", "apollo", "muon"};
    for (int i = 0; i < 5; i++) { /* of apollo, after a short update and after a long one */
        compare_resumed(&(training){.settings = {{"name", "adam"}, {"rule", rules[i]}},
                                    .gap = 3,
                                    .last = 8 * i + 4},
                        1e-10);
    }
}

TEST(moments_may_be_kept_in_less) {
    static const char *const formats[] = {"8bit", "half"};
    for (int i = 0; i < 4; i++) {
        const training how = {.settings = {{"name", i < 2 ? "adam" : "lowrank"},
                                           {"rank", "0.9"},
                                           {"state_precision", formats[i % 2]}},
                              .gap = 3,
                              .plane = &medium,
                              .is_single = true,
                              .last = 4};
        compare(&how, 5e-3);
        compare_resumed(&how, 5e-3);
    }
}

/* The fake device uses the cpu's arithmetic. */
TEST(blocks_on_a_device_agree) {
    static const char *const some[] = {"tensorgrad", "galore", "adam"};
    for (int i = 0; i < 3; i++) {
        training how = {
            .settings = {{"name", some[i]}}, .backend = "fake", .gap = 2, .last = 4, .clip = 1e-3};
        compare(&how, 1e-6);
        how.shards = true;
        how.bad_step = 2;
        compare(&how, 1e-6);
    }
    compare_resumed(
        &(training){.settings = {{"name", "adam"}}, .backend = "fake", .gap = 1000, .last = 4},
        1e-6);
}

/* Rows that the tensor does not have, and steps without the other ranks. */
TEST(blocks_that_do_not_fit_are_refused) {
    const tg_optim_config group = tg_optim_config_default();
    const tg_optim_param param = {.name = "w", .dtype = TG_F64, .shape = {3, {2, 2, 3}}};
    const tg_optim_block good = {.dim = 2, .whole = 6, .first = 3};
    const tg_optim_block bad[] = {{.dim = 3, .whole = 6},
                                  {.dim = -1, .whole = 6},
                                  {.dim = 2, .whole = 6, .first = 4},
                                  {.dim = 2, .whole = 6, .first = -1},
                                  {.dim = 2, .whole = 2},
                                  {.dim = 2, .whole = INT64_MIN},
                                  {.dim = 2, .whole = INT64_MAX}};
    tg_optim_setup setup = {.size = sizeof setup,
                            .groups = &group,
                            .group_count = 1,
                            .params = &param,
                            .param_count = 1,
                            .accumulates = true,
                            .parts = 2};
    tg_optim *optim = NULL;
    tg_exchange *exchange = NULL;
    double memory[12] = {0};
    tg_tensor tensor = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setup.blocks = &bad[i];
        assert_int_equal(tg_optim_create(keeper, &setup, &optim), TG_E_ARGUMENT);
        assert_non_null(strstr(tg_context_error(keeper), "w is the block of rows"));
    }
    setup.blocks = &good;
    setup.parts = 1;
    assert_int_equal(tg_optim_create(keeper, &setup, &optim), TG_E_ARGUMENT);
    setup.parts = 2;
    assert_int_equal(tg_optim_create(keeper, &setup, &optim), TG_OK);
    assert_int_equal(tg_tensor_wrap(keeper, TG_F64, &param.shape, memory, &tensor), TG_OK);
    assert_int_equal(tg_optim_step(optim, 0, &tensor, &tensor), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(keeper), "w is spread over ranks (blocks)"));
    const tg_step_config config = {.optim = optim};
    assert_int_equal(tg_exchange_create(keeper, &config, false, &exchange), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(keeper), "with an optimizer of 2 parts"));
    tg_optim_destroy(&optim);
}

/* A rank whose block begins where that of the other one does. */
static void *be_wrong_rank(void *user) {
    member *m = user;
    (void)make_rank(m);
    m->errors = strstr(tg_context_error(m->ctx), "that of part 1 begins at row 0") == NULL;
    end_rank(m);
    return NULL;
}

TEST(blocks_are_all_of_a_tensor) {
    static results nothing;
    training how = {.settings = {{"name", "adam"}},
                    .gap = 1000,
                    .parts = 2,
                    .groups = 1,
                    .begin_alike = true,
                    .to = &nothing};
    member members[2];
    pthread_t threads[2];
    make_groups(&how);
    for (int i = 0; i < 2; i++) {
        members[i] = (member){.t = &how, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, be_wrong_rank, &members[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(members[i].errors, 0);
    }
    end_groups(&how);
}

static int make_keeper(void **state) {
    (void)state;
    fake_device_add("fake");
    return tg_context_create(NULL, &keeper) != TG_OK || tg_backend_select(keeper, "cpu") != TG_OK;
}

static int end_keeper(void **state) {
    tg_context_destroy(&keeper);
    return test_files_end(state);
}

int main(void) {
    return t_run_tests(make_keeper, end_keeper);
}

/* Runs whose samples are spread over ranks, here threads: the losses, errors and predictions of one
 * rank, and on every rank the memory that its plan says. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/files.h"
#include "support/rank_threads.h"
#include "support/sets.h"
#include "tensor/element.h"
#include "train/trainer.h"

enum { MOST_RANKS = 3, EPOCHS = 2, LAYERS = 2, TESTS = 2, MOST_PAIRS = 5 };

static const char *const common[][2] = {
    {"fno.n_modes", "[6, 6]"},       {"fno.hidden_channels", "8"},
    {"fno.n_layers", "2"},           {"fno.dtype", "f64"},
    {"opt.n_epochs", "2"},           {"opt.update_proj_gap", "1000"},
    {"opt.min_entries", "100"},      {"data.set", "made"},
    {"data.train_resolution", "13"}, {"data.test_resolutions", "[13, 22]"},
    {"data.batch_size", "8"}};

/* Key, value, .. over the common settings. */
static const char *const variants[][2 * MOST_PAIRS] = {
    {"opt.name", "adam"},
    {"opt.name", "adam", "fno.domain_padding", "0.3", "data.encode_input", "true"},
    {"opt.name", "adam", "opt.training_loss", "l2 + 0.1*abs_h1", "opt.input_noise", "0.05",
     "data.encode_output", "false", "data.n_validation", "4"},
    {"opt.name", "adam", "data.set", "line", "fno.n_modes", "[7]", "fno.complex_data", "true",
     "data.encode_input", "true"},
    {"opt.name", "adam", "data.set", "cube", "fno.n_modes", "[5, 4, 4]", "data.cache", "0"},
    {"opt.name", "adam", "data.set", "flow", "opt.rollout_steps", "2", "opt.rollout_gradients",
     "all", "data.encode_input", "true"},
    {"opt.name", "tensorgrad"},
    {"opt.name", "tensorgrad", "opt.accumulation_steps", "2", "data.cache", "0"},
};

/* One rank of a run, and what it comes to. */
typedef struct member {
    const char *const *more;
    const char *root;
    char folder[1100];
    int rank, ranks;
    tg_comm_group *group;
    tg_context *ctx;
    tg_comm *comm;
    double loss[EPOCHS], error[EPOCHS][TESTS][2];
    int epochs;
    int64_t sent[2]; /* bytes, after the first and the second step */
    tg_train_memory plan;
    tg_mem_usage usage[TG_PLACES];
    tg_status status;
} member;

static void note_epoch(void *user, const tg_train_epoch *epoch) {
    member *m = user;
    for (int i = 0; i < TESTS; i++) {
        m->error[m->epochs][i][0] = epoch->test[i].l2;
        m->error[m->epochs][i][1] = epoch->test[i].h1;
    }
    m->loss[m->epochs++] = epoch->train_loss;
}

static void note_step(void *user, const tg_train_progress *progress) {
    member *m = user;
    const tg_comm_stats stats = tg_comm_get_info(m->comm).stats;
    if (progress->epoch == 1 && progress->batch <= 2) {
        m->sent[progress->batch - 1] = stats.reduced + stats.copied;
    }
}

static tg_status make_settings(const member *m, tg_settings **out) {
    char parts[8];
    snprintf(parts, sizeof parts, "%d", m->ranks);
    TG_CALL(tg_settings_create(m->ctx, out));
    TG_CALL(tg_settings_set(*out, "data.root", m->root, NULL));
    TG_CALL(tg_settings_set(*out, "distributed.split", parts, NULL));
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        TG_CALL(tg_settings_set(*out, common[i][0], common[i][1], NULL));
    }
    for (int i = 0; i < 2 * MOST_PAIRS && m->more[i]; i += 2) {
        TG_CALL(tg_settings_set(*out, m->more[i], m->more[i + 1], NULL));
    }
    return TG_OK;
}

static tg_status train(member *m) {
    tg_status status = TG_OK;
    tg_settings *settings = NULL;
    tg_trainer *trainer = NULL;
    tg_train_end end;
    const tg_train_watch watch = {.user = m, .on_step = note_step, .on_epoch = note_epoch};
    TG_TRY(make_settings(m, &settings));
    TG_TRY(tg_train_plan_rank(m->ctx, settings, m->ranks, m->ranks, m->rank, &m->plan));
    if (m->group) {
        TG_TRY(tg_comm_create_threads(m->ctx, m->group, m->rank, NULL, &m->comm));
    }
    TG_TRY(tg_trainer_create(m->ctx, m->comm, settings, m->folder, &trainer));
    TG_TRY(tg_trainer_start(trainer));
    TG_TRY(tg_trainer_run(trainer, &watch, &end));
    for (int place = 0; place < TG_PLACES; place++) {
        m->usage[place] = tg_context_memory(m->ctx, (tg_place)place);
    }
fail:
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    tg_comm_destroy(&m->comm);
    return status;
}

static void *run(void *user) {
    member *m = user;
    m->status = train(m);
    return NULL;
}

static void open_member(member *m) {
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1};
    assert_int_equal(tg_context_create(&config, &m->ctx), TG_OK);
    set_ok(m->ctx, tg_backend_select(m->ctx, "cpu"));
}

/* A rank beyond the layers, which has none of them to refresh, may hold less. */
static void compare_memory(const member *m) {
    const bool refreshes = m->rank < LAYERS || strcmp(m->more[1], "adam") == 0;
    for (int place = 0; place < TG_PLACES; place++) {
        for (int c = 0; c < TG_MEM_OTHER; c++) {
            const size_t planned = m->plan.peak[place][c], counted = m->usage[place].peak[c];
            if (refreshes ? counted != planned : counted > planned) {
                fail_msg("rank %d of %d, %s: %s: planned %zu, counted %zu", m->rank, m->ranks,
                         m->more[1], tg_mem_category_name((tg_mem_category)c), planned, counted);
            }
        }
    }
}

/* Of a step that is an update without a refresh; two votes after all ranks have read their parts.
 */
static void compare_traffic(const member *m) {
    const int64_t planned = (int64_t)(m->plan.sent + m->plan.sent_split);
    const int64_t counted = m->sent[1] - m->sent[0];
    if (!m->more[2] && counted != planned) {
        fail_msg("%d ranks, %s: planned %lld bytes of a step, counted %lld", m->ranks, m->more[1],
                 (long long)planned, (long long)counted);
    }
}

static void compare_losses(const member *m, const member *one) {
    assert_int_equal(m->epochs, EPOCHS);
    for (int e = 0; e < EPOCHS; e++) {
        assert_true(fabs(m->loss[e] - one->loss[e]) <= 1e-9 * one->loss[e]);
        for (int i = 0; i < 2 * TESTS; i++) {
            const double error = m->error[e][i / 2][i % 2], wanted = one->error[e][i / 2][i % 2];
            assert_true(fabs(error - wanted) <= 1e-9 * wanted);
        }
    }
}

/* The predictions kept for the report. */
static void compare_samples(const member *m, const member *one) {
    member reader = {.rank = 0};
    tg_archive *archives[2] = {NULL};
    const char *const folders[] = {m->folder, one->folder};
    open_member(&reader);
    for (int i = 0; i < 2; i++) {
        char path[1200];
        snprintf(path, sizeof path, "%s/samples.safetensors", folders[i]);
        set_ok(reader.ctx, tg_safetensors_read(reader.ctx, path, &archives[i]));
    }
    assert_int_equal(tg_archive_count(archives[0]), 3 * TESTS);
    for (int64_t i = 0; i < tg_archive_count(archives[0]); i++) {
        const char *name = tg_archive_name(archives[0], i);
        const tg_tensor *found = tg_archive_find(archives[0], name);
        const tg_tensor *wanted = tg_archive_find(archives[1], name);
        assert_true(wanted && tg_shape_equal(&found->shape, &wanted->shape));
        for (int64_t k = 0; k < tg_tensor_numel(found); k++) {
            const tg_scalar a = tg_load(found->dtype, found->data, k);
            const tg_scalar b = tg_load(wanted->dtype, wanted->data, k);
            assert_true(hypot(a.re - b.re, a.im - b.im) <= 1e-9 * (1.0 + hypot(b.re, b.im)));
        }
    }
    tg_archive_destroy(&archives[0]);
    tg_archive_destroy(&archives[1]);
    tg_context_destroy(&reader.ctx);
}

/* Trains on `ranks` ranks, all of which share each sample. */
static void train_on(member *members, int ranks, const char *const *more, const char *root) {
    static int number;
    pthread_t threads[MOST_RANKS];
    tg_comm_group *group = NULL;
    number++;
    for (int r = 0; r < ranks; r++) {
        members[r] = (member){.more = more, .root = root, .rank = r, .ranks = ranks};
        snprintf(members[r].folder, sizeof members[r].folder, "%s/run.%d", root, number);
        open_member(&members[r]);
    }
    if (ranks > 1) {
        set_ok(members[0].ctx, tg_comm_group_create(members[0].ctx, ranks, &group));
    }
    for (int r = 0; r < ranks; r++) {
        members[r].group = group;
        assert_int_equal(pthread_create(&threads[r], NULL, run, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int r = 0; r < ranks; r++) {
        set_ok(members[r].ctx, members[r].status);
        compare_memory(&members[r]);
        if (ranks > 1) {
            compare_traffic(&members[r]);
        }
    }
    tg_comm_group_destroy(&group);
    for (int r = 0; r < ranks; r++) {
        tg_context_destroy(&members[r].ctx);
    }
}

/* Trajectories (samples, times, grid..), whose windows are x and y. */
static void write_flow(tg_context *ctx, const char *name, int64_t samples, int64_t points) {
    tg_archive *archive = NULL;
    tg_tensor frames = {0};
    const tg_shape shape = SET_SHAPE(samples, 4, points, points);
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &shape, &frames));
    for (int64_t i = 0; i < tg_tensor_numel(&frames); i++) {
        ((double *)frames.data)[i] = set_value(0, i * i % 1009);
    }
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_take(archive, "tensor", &frames));
    set_ok(ctx, tg_archive_write(ctx, test_path(name), archive));
    tg_archive_destroy(&archive);
}

/* Sets of one, two and three dimensions; returns their folder. */
static void write_sets(char root[1024]) {
    static const char *const names[] = {"line", "made", "cube"};
    member writer = {.rank = 0};
    open_member(&writer);
    tg_context *ctx = writer.ctx;
    for (int d = 1; d <= 3; d++) {
        const int64_t sizes[][2] = {{21, 13}, {5, 13}, {5, 22}};
        for (int i = 0; i < 3; i++) {
            const int64_t n = sizes[i][1];
            tg_shape shape = {.ndim = 1 + d, .dim = {sizes[i][0], n, n, n}};
            char name[64];
            snprintf(name, sizeof name, "%s_%s_%d.h5", names[d - 1], i == 0 ? "train" : "test",
                     (int)n);
            set_write(ctx, name, d == 1 ? TG_C64 : TG_F64, &shape, &shape);
        }
    }
    write_flow(ctx, "flow_train_13.h5", 6, 13);
    write_flow(ctx, "flow_test_13.h5", 2, 13);
    write_flow(ctx, "flow_test_22.h5", 2, 22);
    snprintf(root, 1024, "%s", test_path("made_train_13.h5"));
    *strrchr(root, '/') = '\0';
    tg_context_destroy(&ctx);
}

TEST(losses_and_memory) {
    static member one[1], several[MOST_RANKS];
    char root[1024];
    write_sets(root);
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        train_on(one, 1, variants[v], root);
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
            train_on(several, ranks, variants[v], root);
            for (int r = 0; r < ranks; r++) {
                compare_losses(&several[r], one);
            }
            compare_samples(&several[0], one);
        }
    }
}

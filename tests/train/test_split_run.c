/* Runs whose samples are spread over ranks, here threads: the losses of one rank, and on every rank
 * the memory that its plan says. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/files.h"
#include "support/rank_threads.h"
#include "support/sets.h"
#include "train/trainer.h"

enum { MOST_RANKS = 3, EPOCHS = 2, LAYERS = 2 };

static const char *const common[][2] = {
    {"fno.n_modes", "[6, 6]"},       {"fno.hidden_channels", "8"},
    {"fno.n_layers", "2"},           {"fno.dtype", "f64"},
    {"opt.n_epochs", "2"},           {"opt.update_proj_gap", "1000"},
    {"opt.min_entries", "100"},      {"data.set", "made"},
    {"data.train_resolution", "13"}, {"data.test_resolutions", "[13, 22]"},
    {"data.batch_size", "8"}};

/* Key, value, .. over the common settings. */
static const char *const variants[][6] = {
    {"opt.name", "adam"},
    {"opt.name", "adam", "fno.domain_padding", "0.3", "data.encode_input", "true"},
    {"opt.name", "tensorgrad"},
    {"opt.name", "tensorgrad", "opt.accumulation_steps", "2", "data.cache", "0"},
};

/* One rank of a run, and what it comes to. */
typedef struct member {
    const char *const *more;
    const char *root, *folder;
    int rank, ranks;
    tg_comm_group *group;
    tg_context *ctx;
    tg_comm *comm;
    double loss[EPOCHS], error[EPOCHS];
    int epochs;
    int64_t sent[2]; /* bytes, after the first and the second step */
    tg_train_memory plan;
    tg_mem_usage usage[TG_PLACES];
    tg_status status;
} member;

static void note_epoch(void *user, const tg_train_epoch *epoch) {
    member *m = user;
    m->loss[m->epochs] = epoch->train_loss;
    m->error[m->epochs++] = epoch->test[1].l2;
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
    for (int i = 0; i < 6 && m->more[i]; i += 2) {
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
        assert_true(fabs(m->error[e] - one->error[e]) <= 1e-9 * one->error[e]);
    }
}

/* Trains on `ranks` ranks, all of which share each sample. */
static void train_on(member *members, int ranks, const char *const *more, const char *root) {
    static int number;
    pthread_t threads[MOST_RANKS];
    tg_comm_group *group = NULL;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s/run.%d", root, number++);
    for (int r = 0; r < ranks; r++) {
        members[r] =
            (member){.more = more, .root = root, .folder = folder, .rank = r, .ranks = ranks};
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

TEST(losses_and_memory) {
    static member one[1], several[MOST_RANKS];
    char root[1024];
    const tg_shape x = SET_SHAPE(21, 13, 13), test = SET_SHAPE(5, 13, 13);
    const tg_shape fine = SET_SHAPE(5, 22, 22);
    member writer = {.rank = 0};
    open_member(&writer);
    tg_context *ctx = writer.ctx;
    set_write(ctx, "made_test_13.h5", TG_F64, &test, &test);
    set_write(ctx, "made_test_22.h5", TG_F64, &fine, &fine);
    snprintf(root, sizeof root, "%s", set_write(ctx, "made_train_13.h5", TG_F64, &x, &x));
    *strrchr(root, '/') = '\0';
    tg_context_destroy(&ctx);
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        train_on(one, 1, variants[v], root);
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
            train_on(several, ranks, variants[v], root);
            for (int r = 0; r < ranks; r++) {
                compare_losses(&several[r], one);
            }
        }
    }
}

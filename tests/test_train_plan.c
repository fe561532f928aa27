/* What tg_train_plan tells before a run is what the ledger counts in it, byte for byte: every
 * category and the highest moment, for every method, cached and streamed data, accumulation,
 * stages, stored halves, on the host and on a device that is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_device.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/tgrad.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Key, value, .. over the common settings. */
typedef struct variant {
    const char *name;
    const char *settings[16];
} variant;

static const char *const common[] = {"fno.n_modes",
                                     "[6, 6]",
                                     "fno.hidden_channels",
                                     "8",
                                     "fno.n_layers",
                                     "2",
                                     "opt.n_epochs",
                                     "2",
                                     "opt.update_proj_gap",
                                     "3",
                                     "opt.min_entries",
                                     "100",
                                     "data.train_resolution",
                                     "12",
                                     "data.test_resolutions",
                                     "[12, 24]",
                                     "data.batch_size",
                                     "8",
                                     "data.set",
                                     "made",
                                     "data.encode_input",
                                     "true",
                                     NULL};

static const variant variants[] = {
    {"adam", {"opt.name", "adam"}},
    {"lowrank", {"opt.name", "lowrank"}},
    {"galore", {"opt.name", "galore", "opt.first_dim_rollup", "2"}},
    {"structured", {"opt.name", "structured"}},
    {"unstructured", {"opt.name", "unstructured", "opt.sparse_type", "probability"}},
    {"tensorgrad", {"opt.name", "tensorgrad"}},
    {"low rank first",
     {"opt.name", "tensorgrad", "opt.proj_type", "low_rank", "opt.second_proj_type",
      "unstructured_sparse", "opt.second_sparse_ratio", "0.05"}},
    {"automatic ranks", {"opt.name", "tensorgrad", "opt.rank", "auto", "opt.memory_budget", "0.3"}},
    {"tolerance", {"opt.name", "lowrank", "opt.rank", "auto", "opt.rank_tolerance", "0.1"}},
    {"automatic ranks, low rank first",
     {"opt.name", "tensorgrad", "opt.proj_type", "low_rank", "opt.second_proj_type",
      "unstructured_sparse", "opt.second_sparse_ratio", "0.05", "opt.rank", "auto",
      "opt.memory_budget", "0.3"}},
    {"automatic ranks side by side",
     {"opt.name", "tensorgrad", "opt.optimizer_type", "tensorgrad_sum", "opt.rank", "auto",
      "opt.memory_budget", "0.3"}},
    {"automatic ranks in halves",
     {"opt.name", "tensorgrad", "opt.rank", "auto", "opt.memory_budget", "0.3",
      "opt.state_precision", "half"}},
    {"automatic ranks in bytes",
     {"opt.name", "lowrank", "opt.rank", "auto", "opt.memory_budget", "0.3", "opt.state_precision",
      "8bit", "fno.hidden_channels", "16", "opt.accumulation_steps", "2"}},
    {"accumulation", {"opt.name", "tensorgrad", "opt.accumulation_steps", "2"}},
    {"automatic ranks, accumulated",
     {"opt.name", "lowrank", "opt.rank", "auto", "opt.memory_budget", "0.3",
      "opt.accumulation_steps", "2"}},
    {"clipping", {"opt.name", "lowrank", "opt.max_grad_norm", "0.5"}},
    {"streamed", {"opt.name", "tensorgrad", "data.cache", "0"}},
    {"large batches to test with", {"data.test_batch_sizes", "[3, 5]", "data.n_tests", "[5, 4]"}},
    {"no tests", {"data.test_resolutions", "12", "data.n_tests", "1", "opt.eval_interval", "5"}},
    {"stages",
     {"opt.n_epochs", "1", "stage2.data.train_resolution", "24", "stage2.opt.n_epochs", "1",
      "stage2.data.file_resolution", "24", "stage2.data.batch_size", "5"}},
    {"checkpointing", {"fno.activation_checkpoint", "minimal"}},
    {"halves",
     {"opt.name", "tensorgrad", "fno.fno_block_precision", "mixed", "fno.activation_precision",
      "bf16"}},
    {"wide decompositions",
     {"opt.name", "lowrank", "fno.hidden_channels", "200", "fno.n_modes", "[2, 2]", "fno.n_layers",
      "1"}},
};

static tg_context *open_context(const char *backend) {
    const tg_context_config config = {.threads = 1};
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, backend));
    return ctx;
}

static tg_settings *make_settings(tg_context *ctx, const variant *v, const char *root) {
    tg_settings *settings = NULL;
    set_ok(ctx, tg_settings_create(ctx, &settings));
    set_ok(ctx, tg_settings_set(settings, "data.root", root, NULL));
    for (int i = 0; common[i]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, common[i], common[i + 1], NULL));
    }
    for (int i = 0; i < COUNT(v->settings) && v->settings[i]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, v->settings[i], v->settings[i + 1], NULL));
    }
    return settings;
}

/* Trains, and returns what the ledger says where the backend computes. */
static tg_mem_usage train(const variant *v, const char *backend, const char *root, int number) {
    tg_context *ctx = open_context(backend);
    tg_settings *settings = make_settings(ctx, v, root);
    tg_trainer *trainer = NULL;
    tg_train_end end;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s/run.%d.%s", root, number, backend);
    set_ok(ctx, tg_trainer_create(ctx, settings, folder, &trainer));
    set_ok(ctx, tg_trainer_start(trainer));
    set_ok(ctx, tg_trainer_run(trainer, NULL, &end));
    const tg_mem_usage usage = tg_context_memory(ctx, tg_backend_place(ctx));
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
    return usage;
}

static void compare(const variant *v, const char *backend, const tg_train_memory *plan,
                    const tg_mem_usage *usage) {
    const size_t *planned = plan->peak[plan->place];
    size_t counted = 0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        const char *name = tg_mem_category_name((tg_mem_category)c);
        counted += c == TG_MEM_OTHER ? 0 : usage->at_peak[c];
        if (c != TG_MEM_OTHER && usage->peak[c] != planned[c]) {
            fail_msg("%s on %s: %s: planned %zu, counted %zu", v->name, backend, name, planned[c],
                     usage->peak[c]);
        }
    }
    if (counted != plan->peak_total[plan->place]) {
        fail_msg("%s on %s: planned %zu at most (%s), counted %zu", v->name, backend,
                 plan->peak_total[plan->place], plan->moment[plan->peak_moment[plan->place]].name,
                 counted);
    }
    assert_true(usage->peak[TG_MEM_OTHER] < (size_t)1 << 20);
}

static void test_plan_is_what_is_counted(void **state) {
    (void)state;
    static const char *const backends[] = {"cpu", "ref", "fake"};
    tg_context *ctx = open_context("cpu");
    char root[1024];
    const tg_shape x = SET_SHAPE(37, 12, 12), test = SET_SHAPE(6, 12, 12);
    const tg_shape fine = SET_SHAPE(6, 24, 24), train_fine = SET_SHAPE(11, 24, 24);
    set_write(ctx, "made_test_12.safetensors", TG_F32, &test, &test);
    set_write(ctx, "made_test_24.h5", TG_F32, &fine, &fine);
    set_write(ctx, "made_train_24.h5", TG_F64, &train_fine, &train_fine);
    snprintf(root, sizeof root, "%s", set_write(ctx, "made_train_12.h5", TG_F32, &x, &x));
    *strrchr(root, '/') = '\0';
    tg_context_destroy(&ctx);
    for (int b = 0; b < COUNT(backends); b++) {
        for (int i = 0; i < COUNT(variants); i++) {
            if (strcmp(backends[b], "ref") == 0 && i % 6 != 5) {
                continue; /* the oracle is slow */
            }
            tg_train_memory *plan = calloc(1, sizeof *plan);
            assert_non_null(plan);
            ctx = open_context(backends[b]);
            tg_settings *settings = make_settings(ctx, &variants[i], root);
            set_ok(ctx, tg_train_plan(ctx, settings, plan));
            assert_string_equal(plan->missing, "");
            tg_settings_destroy(&settings);
            tg_context_destroy(&ctx);
            const tg_mem_usage usage = train(&variants[i], backends[b], root, i);
            compare(&variants[i], backends[b], plan, &usage);
            free(plan);
        }
    }
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s'/run.*", root);
    assert_int_equal(system(command), 0);
}

/* Without its files a run is planned all the same, and the first of them is named. */
static void test_missing_data(void **state) {
    (void)state;
    tg_context *ctx = open_context("cpu");
    tg_settings *settings = make_settings(ctx, &variants[0], "nowhere");
    static tg_train_memory plan;
    set_ok(ctx, tg_train_plan(ctx, settings, &plan));
    assert_non_null(strstr(plan.missing, "made_train_12"));
    assert_true(plan.peak_total[TG_HOST] > 0 && plan.count > 2);
    set_ok(ctx, tg_settings_set(settings, "opt.rank", "many", NULL));
    assert_int_equal(tg_train_plan(ctx, settings, &plan), TG_E_CONFIG);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
}

static int setup(void **state) {
    (void)state;
    fake_device_add("fake");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_folder_remove();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_is_what_is_counted),
        cmocka_unit_test(test_missing_data),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* tg_train_plan predicts what the ledger counts in a run, byte for byte: every
 * category and the highest phase, for every method, cached and streamed data, accumulation,
 * stages, 16-bit formats, decompositions that take memory of their own, on the host, on a device
 * that is none and, where there is one, on a GPU. */
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
    const char *settings[24];
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

/* Over the common ones, with many modes: refreshes decompose matrices of hundreds of rows, which
 * takes more than any backend has at hand. */
static const char *const one_dimension[] = {"data.set",
                                            "long",
                                            "data.train_resolution",
                                            "2560",
                                            "data.test_resolutions",
                                            "2560",
                                            "data.batch_size",
                                            "2",
                                            "fno.hidden_channels",
                                            "4",
                                            "fno.n_layers",
                                            "2",
                                            "opt.n_epochs",
                                            "1",
                                            NULL};

/* Rules that have no kernel for devices. */
static const variant host_variants[] = {
    {"apollo", {"opt.rule", "apollo", "opt.rank", "2", "opt.min_entries", "10"}},
    {"muon", {"opt.rule", "muon", "opt.min_entries", "10"}},
};

static const variant variants[] = {
    {"adam", {"opt.name", "adam"}},
    {"loss in Fourier space", {"opt.training_loss", "hs1", "data.n_tests", "[5, 4]"}},
    {"loss in Fourier space from a stage on",
     {"opt.n_epochs", "1", "data.test_resolutions", "[]", "stage2.opt.n_epochs", "1",
      "stage2.opt.training_loss", "l2 + hs0.5"}},
    {"loss in Fourier space and of an equation, by parts",
     {"opt.training_loss", "hs1", "opt.physics", "darcy", "fno.micro_batch", "3"}},
    {"lowrank", {"opt.name", "lowrank"}},
    {"galore", {"opt.name", "galore", "opt.first_dim_rollup", "2"}},
    {"structured", {"opt.name", "structured"}},
    {"unstructured", {"opt.name", "unstructured", "opt.sparse_type", "probability"}},
    {"tensorgrad", {"opt.name", "tensorgrad"}},
    {"Tucker weights",
     {"opt.name", "tensorgrad", "fno.factorization", "tucker", "fno.rank", "0.5"}},
    {"low rank first",
     {"opt.name", "tensorgrad", "opt.proj_type", "low_rank", "opt.second_proj_type",
      "unstructured_sparse", "opt.second_sparse_ratio", "0.05"}},
    {"ranks by memory", {"opt.name", "tensorgrad", "opt.memory_budget", "0.3"}},
    {"accumulation", {"opt.name", "tensorgrad", "opt.accumulation_steps", "2"}},
    {"clipping", {"opt.name", "lowrank", "opt.max_grad_norm", "0.5"}},
    {"streamed", {"opt.name", "tensorgrad", "data.cache", "0"}},
    {"one epoch, streamed: no step follows the evaluation",
     {"opt.n_epochs", "1", "data.cache", "0"}},
    {"large batches to test with", {"data.test_batch_sizes", "[3, 5]", "data.n_tests", "[5, 4]"}},
    {"no tests", {"data.test_resolutions", "12", "data.n_tests", "1", "opt.eval_interval", "5"}},
    {"stages",
     {"opt.n_epochs", "1", "stage2.data.train_resolution", "24", "stage2.opt.n_epochs", "1",
      "stage2.data.file_resolution", "24", "stage2.data.batch_size", "5"}},
    {"checkpointing", {"fno.activation_checkpoint", "minimal"}},
    {"stable ranks", {"opt.track_stable_rank", "true"}},
    {"stable ranks, streamed",
     {"opt.track_stable_rank", "true", "opt.name", "tensorgrad", "data.cache", "0",
      "data.test_resolutions", "[]", "fno.fno_block_weights_precision", "half"}},
    {"16-bit formats",
     {"opt.name", "tensorgrad", "fno.fno_block_precision", "mixed", "fno.activation_precision",
      "bf16"}},
    {"mixed precision", {"opt.name", "tensorgrad", "fno.precision", "mixed"}},
    {"wide decompositions",
     {"opt.name", "lowrank", "fno.hidden_channels", "200", "fno.n_modes", "[2, 2]", "fno.n_layers",
      "1"}},
    {"a box",
     {"fno.n_modes", "4x4x4", "data.train_file", "box.h5", "data.train_resolution", "0",
      "data.test_files", "[box.h5, box.h5]", "data.test_resolutions", "[6x8x10, 3x4x5]", "opt.name",
      "tensorgrad"}},
    {"a rectangle",
     {"data.set", "wide", "data.train_resolution", "0", "data.test_resolutions", "[9x14, 18x28]",
      "data.cache", "0"}},
    {"rectangles in stages",
     {"data.set", "wide", "data.train_resolution", "0", "data.test_resolutions", "9x14",
      "opt.n_epochs", "1", "stage2.data.train_file", "wide_test_18x28.h5", "stage2.opt.n_epochs",
      "1", "stage2.data.test_resolutions", "[]", "fno.hidden_channels", "12"}},
    {"validation", {"data.n_validation", "3", "opt.early_stopping", "2"}},
    {"validation, streamed",
     {"data.n_validation", "3", "data.test_resolutions", "[]", "data.cache", "0"}},
    {"no channel MLP", {"opt.name", "tensorgrad", "fno.use_channel_mlp", "false"}},
    {"rollouts through all steps",
     {"data.train_file", "flow.h5", "data.test_files", "flow.h5", "data.test_resolutions", "12",
      "data.layout", "trajectory", "data.fields", "x", "opt.name", "tensorgrad",
      "opt.rollout_steps", "4", "opt.rollout_gradients", "all"}},
    {"rollouts, the last step, streamed", {"data.train_file",
                                           "flow.h5",
                                           "data.test_files",
                                           "flow.h5",
                                           "data.test_resolutions",
                                           "12",
                                           "data.layout",
                                           "trajectory",
                                           "data.fields",
                                           "x",
                                           "data.history",
                                           "2",
                                           "opt.name",
                                           "tensorgrad",
                                           "opt.rollout_steps",
                                           "3",
                                           "opt.rollout_epochs",
                                           "1",
                                           "data.cache",
                                           "0"}},
};

/* A network on points, over the common settings. */
static const char *const at_points[] = {"model",
                                        "gino",
                                        "fno.n_modes",
                                        "[4, 4, 4]",
                                        "fno.in_channels",
                                        "3",
                                        "fno.in_gno_radius",
                                        "0.3",
                                        "fno.out_gno_radius",
                                        "0.3",
                                        "opt.training_loss",
                                        "l2",
                                        "data.set",
                                        "potential",
                                        "data.train_resolution",
                                        "30",
                                        "data.test_resolutions",
                                        "[30, 15]",
                                        "data.batch_size",
                                        "1",
                                        "data.latent_grid",
                                        "6",
                                        "data.encode_input",
                                        "false",
                                        NULL};

static const variant point_variants[] = {
    {"points, adam", {"opt.name", "adam"}},
    {"points, tensorgrad", {"opt.name", "tensorgrad", "opt.accumulation_steps", "2"}},
    {"every other point, streamed",
     {"data.file_resolution", "30", "data.train_resolution", "15", "data.test_resolutions", "15",
      "data.cache", "0"}},
    {"points, mixed precision",
     {"opt.name", "tensorgrad", "fno.precision", "mixed", "fno.activation_checkpoint", "block",
      "data.test_resolutions", "[]"}},
};

static const variant long_variants[] = {
    {"lowrank", {"opt.name", "lowrank"}},
    {"sketches", {"opt.name", "lowrank", "opt.svd_type", "randomized"}},
    {"tensorgrad", {"opt.name", "tensorgrad"}},
    {"stable ranks", {"opt.track_stable_rank", "true"}},
    {"GaLore, short side",
     {"opt.name", "galore", "opt.first_dim_rollup", "2", "opt.galore_2d_proj_type", "left",
      "fno.hidden_channels", "20", "fno.n_layers", "1"}},
    {"GaLore, long side",
     {"opt.name", "galore", "opt.first_dim_rollup", "2", "opt.galore_2d_proj_type", "right",
      "fno.hidden_channels", "20", "opt.rank", "0.6", "fno.n_layers", "1"}},
    {"accumulation", {"opt.name", "tensorgrad", "opt.accumulation_steps", "2"}},
};

static tg_context *open_context(const char *backend) {
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1};
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, backend));
    return ctx;
}

static void set_all(tg_context *ctx, tg_settings *settings, const char *const *list, int count) {
    for (int i = 0; i < count && list[i]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, list[i], list[i + 1], NULL));
    }
}

/* With `modes` along one dimension, or (NULL) two short ones. */
static tg_settings *make_settings(tg_context *ctx, const variant *v, const char *modes,
                                  const char *root) {
    tg_settings *settings = NULL;
    set_ok(ctx, tg_settings_create(ctx, &settings));
    set_ok(ctx, tg_settings_set(settings, "data.root", root, NULL));
    set_all(ctx, settings, common, COUNT(common));
    for (int i = 0; i < COUNT(point_variants); i++) {
        set_all(ctx, settings, at_points, v == &point_variants[i] ? COUNT(at_points) : 0);
    }
    if (modes) {
        set_all(ctx, settings, one_dimension, COUNT(one_dimension));
        set_ok(ctx, tg_settings_set(settings, "fno.n_modes", modes, NULL));
    }
    set_all(ctx, settings, v->settings, COUNT(v->settings));
    return settings;
}

/* Trains, and returns what the ledger says. */
static void train(const variant *v, const char *modes, const char *backend, const char *root,
                  tg_mem_usage usage[TG_PLACES]) {
    static int number;
    tg_context *ctx = open_context(backend);
    tg_settings *settings = make_settings(ctx, v, modes, root);
    tg_trainer *trainer = NULL;
    tg_train_end end;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s/run.%d", root, number++);
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, folder, &trainer));
    set_ok(ctx, tg_trainer_start(trainer));
    set_ok(ctx, tg_trainer_run(trainer, NULL, &end));
    for (int place = 0; place < TG_PLACES; place++) {
        usage[place] = tg_context_memory(ctx, (tg_place)place);
    }
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
}

static void compare(const char *what, const tg_train_memory *plan, tg_place place,
                    const tg_mem_usage *usage) {
    const size_t *planned = plan->peak[place];
    size_t counted = 0;
    for (int c = 0; c < TG_MEM_OTHER; c++) {
        counted += usage->at_peak[c];
        if (usage->peak[c] != planned[c]) {
            fail_msg("%s: %s: planned %zu, counted %zu", what,
                     tg_mem_category_name((tg_mem_category)c), planned[c], usage->peak[c]);
        }
    }
    const size_t total = plan->peak_total[place];
    /* "other" is in no plan, but may decide when a host beside a device holds the most */
    if (counted != total && !(place != plan->place && counted <= total)) {
        fail_msg("%s: planned %zu (%s), counted %zu", what, total,
                 plan->phase[plan->peak_phase[place]].name, counted);
    }
    assert_true(usage->peak[TG_MEM_OTHER] < (size_t)1 << 20);
}

/* Plans, trains and compares. What passes through the host on its way to a GPU when transforms are
 * made is in no plan: there, the device alone is compared. */
static void check(const variant *v, const char *modes, const char *backend, const char *root) {
    const bool is_cuda = strcmp(backend, "cuda") == 0;
    tg_train_memory *plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    tg_context *ctx = open_context(backend);
    tg_settings *settings = make_settings(ctx, v, modes, root);
    set_ok(ctx, tg_train_plan(ctx, settings, 1, plan));
    assert_string_equal(plan->missing, "");
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
    tg_mem_usage usage[TG_PLACES];
    train(v, modes, backend, root, usage);
    for (int place = 0; place < TG_PLACES; place++) {
        char what[128];
        snprintf(what, sizeof what, "%s, modes %s, %s, %s", v->name, modes ? modes : "short",
                 backend, place == TG_HOST ? "host" : "device");
        if (place == (int)plan->place || !is_cuda) {
            compare(what, plan, (tg_place)place, &usage[place]);
        }
    }
    free(plan);
}

/* The backend is there; otherwise, why not is said. */
static bool is_there(const char *name) {
    for (int i = 0; i < tg_backend_count(); i++) {
        tg_backend_info info;
        if (tg_backend_describe(NULL, i, &info) == TG_OK && strcmp(info.name, name) == 0) {
            if (!info.available) {
                print_message("skipped: backend %s is not available here: %s\n", name, info.reason);
            }
            return info.available;
        }
    }
    print_message("skipped: this build has no backend %s\n", name);
    return false;
}

TEST(test_plan_is_what_is_counted) {
    static const char *const backends[] = {"cpu", "ref", "fake", "cuda"};
    const char *only = getenv("TEST_BACKEND");
    tg_context *ctx = open_context("cpu");
    char root[1024];
    const tg_shape x = SET_SHAPE(37, 12, 12), test = SET_SHAPE(6, 12, 12);
    const tg_shape fine = SET_SHAPE(6, 24, 24), train_fine = SET_SHAPE(11, 24, 24);
    const tg_shape line = SET_SHAPE(6, 2560), box = SET_SHAPE(30, 6, 8, 10);
    const tg_shape wide[] = {SET_SHAPE(9, 2, 9, 14), SET_SHAPE(9, 3, 9, 14)};
    const tg_shape wider[] = {SET_SHAPE(4, 2, 18, 28), SET_SHAPE(4, 3, 18, 28)};
    const tg_shape flow = SET_SHAPE(9, 6, 12, 12);
    set_write(ctx, "flow.h5", TG_F32, &flow, &flow);
    set_write(ctx, "box.h5", TG_F64, &box, &box);
    set_write(ctx, "wide_train_9x14.h5", TG_F32, &wide[0], &wide[1]);
    set_write(ctx, "wide_test_9x14_x.npy", TG_F32, &wide[0], &wide[1]);
    set_write(ctx, "wide_test_18x28.h5", TG_F32, &wider[0], &wider[1]);
    set_write(ctx, "made_test_12.safetensors", TG_F32, &test, &test);
    set_write(ctx, "made_test_24.h5", TG_F32, &fine, &fine);
    set_write(ctx, "made_train_24.h5", TG_F64, &train_fine, &train_fine);
    set_write(ctx, "long_test_2560.h5", TG_F32, &line, &line);
    set_write(ctx, "long_train_2560.h5", TG_F32, &line, &line);
    snprintf(root, sizeof root, "%s", set_write(ctx, "made_train_12.h5", TG_F32, &x, &x));
    *strrchr(root, '/') = '\0';
    tg_context_destroy(&ctx);
    for (int b = 0; b < COUNT(backends); b++) {
        const bool wanted = !only || strcmp(only, backends[b]) == 0;
        const bool runs = wanted && is_there(backends[b]);
        const bool is_ref = strcmp(backends[b], "ref") == 0; /* the oracle is slow */
        const bool is_cuda = strcmp(backends[b], "cuda") == 0;
        for (int i = is_ref ? 5 : 0; runs && i < COUNT(variants); i += is_ref ? 6 : 1) {
            if (!is_ref || strcmp(variants[i].name, "wide decompositions") != 0) {
                check(&variants[i], NULL, backends[b], root);
            }
        }
        for (int i = 0; runs && strcmp(backends[b], "cpu") == 0 && i < COUNT(host_variants); i++) {
            check(&host_variants[i], NULL, backends[b], root);
        }
        for (int i = 0; runs && !is_ref && i < COUNT(long_variants); i++) {
            check(&long_variants[i], "[1200]", backends[b], root);
            /* with twice as many, what cuSOLVER works in is larger than what is at hand, too */
            if (is_cuda && i % 3 == 0) {
                check(&long_variants[i], "[2400]", backends[b], root);
            }
        }
    }
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s'/run.*", root);
    assert_int_equal(system(command), 0);
}

static void make_bodies(tg_context *ctx, const char *root) {
    tg_generator_config config = tg_generator_config_default();
    tg_generator *generator = NULL;
    bool complete = false;
    config.equation = "potential";
    config.folder = root;
    config.n_train = 5;
    config.n_test = 3;
    config.resolution = 30;
    config.test_resolution_count = 2;
    config.test_resolution[0] = 30;
    config.test_resolution[1] = 15;
    config.values = &(tg_pde_value){"order", "2"};
    config.value_count = 1;
    set_ok(ctx, tg_generator_create(ctx, &config, &generator));
    set_ok(ctx, tg_generator_run(generator, NULL, NULL, &complete));
    assert_true(complete);
    tg_generator_destroy(&generator);
}

TEST(test_points) {
    tg_context *ctx = open_context("cpu");
    char root[1024];
    snprintf(root, sizeof root, "%s", test_path("bodies"));
    make_bodies(ctx, root);
    tg_context_destroy(&ctx);
    static const char *const backends[] = {"cpu", "fake", "cuda"};
    const char *only = getenv("TEST_BACKEND");
    for (int b = 0; b < COUNT(backends); b++) {
        const bool runs = (!only || strcmp(only, backends[b]) == 0) && is_there(backends[b]);
        for (int i = 0; runs && i < COUNT(point_variants); i++) {
            check(&point_variants[i], NULL, backends[b], root);
        }
    }
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

/* Without its files a run is planned all the same, and the first of them is named. */
TEST(test_missing_data) {
    tg_context *ctx = open_context("cpu");
    tg_settings *settings = make_settings(ctx, &variants[0], NULL, "nowhere");
    static tg_train_memory plan;
    set_ok(ctx, tg_train_plan(ctx, settings, 1, &plan));
    assert_non_null(strstr(plan.missing, "made_train_12"));
    assert_true(plan.peak_total[TG_HOST] > 0 && plan.count > 2);
    set_ok(ctx, tg_settings_set(settings, "opt.rank", "many", NULL));
    assert_int_equal(tg_train_plan(ctx, settings, 1, &plan), TG_E_CONFIG);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, test_files_end);
}

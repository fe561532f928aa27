/* A checkpoint of a small run, changed: each change is an operation, the number of an entry, a
 * length and that many bytes. The checksum is then corrected, so that the code after its check is
 * reached: settings, progress, state of the optimizer, weights and normalizers. Each loads or says
 * what is wrong. */
#include <string.h>

#include "fuzz.h"
#include "io/settings.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

static const char settings_text[] =
    "fno: {n_modes: [2, 2], hidden_channels: 3, n_layers: 1, use_channel_mlp: false}\n"
    "opt: {name: tensorgrad, n_epochs: 1, min_entries: 4, rank: 0.5, sparse_ratio: 0.3}\n"
    "data: {set: made, train_resolution: 8, test_resolutions: 8}\n";

typedef enum operation {
    DROP,
    RENAME,
    RETYPE,
    RESHAPE,
    FILL,
    META,
    META_DROP,
    OPERATIONS
} operation;

typedef struct change {
    operation what;
    size_t size;
    const uint8_t *bytes;
    const struct change *next; /* of the same entry */
} change;

/* The optimizer has the first parameters of the network, up to the one that is projected. */
enum { CHANGES = 16, ENTRIES = 256, PARAMS = 5, PROJECTED = PARAMS - 1 };

const char *__lsan_default_suppressions(void);

/* The optimizer keeps a block of 0 bytes, whose address is the end of what was allocated for it;
 * leaks are found by the ledger. */
const char *__lsan_default_suppressions(void) {
    return "leak:tg_workspace_allocate_host";
}

static tg_model *model;
static tg_optim *optim;
static tg_archive *good;

static void expect_ok(tg_status status) {
    fuzz_expect(status == TG_OK);
}

static void prepare(void) {
    tg_context *ctx = fuzz_context();
    tg_settings *settings = NULL;
    tg_run_config config;
    tg_run_setup setup;
    char path[300];
    expect_ok(tg_backend_select(ctx, "cpu"));
    expect_ok(
        tg_settings_parse_yaml(ctx, "fuzz", settings_text, sizeof settings_text - 1, &settings));
    expect_ok(tg_run_config_read(ctx, settings, 1, false, &config));
    expect_ok(tg_model_create(ctx, settings, &config, &model));
    expect_ok(tg_run_setup_make(ctx, &config, model->fno, 1, &setup));
    setup.setup.shares_workspace = false;
    setup.setup.param_count = PARAMS;
    expect_ok(tg_optim_create(ctx, &setup.setup, &optim));
    for (int i = 0; i < PARAMS; i++) {
        const tg_fno_param p = tg_fno_get_param(model->fno, i);
        tg_tensor gradient = p.weight; /* noise of both signs, finite */
        gradient.data = malloc(tg_tensor_bytes(&p.weight));
        memcpy(gradient.data, p.weight.data, tg_tensor_bytes(&p.weight));
        expect_ok(tg_optim_step(optim, i, &gradient, &p.weight));
        free(gradient.data);
    }
    tg_run_setup_free(ctx, &setup);
    const tg_progress progress = {.stage = 1, .epoch = 1, .step = 1};
    snprintf(path, sizeof path, "%s/good.safetensors", fuzz_folder());
    expect_ok(tg_archive_create(ctx, &good));
    expect_ok(tg_checkpoint_collect(model, optim, &progress, NULL, good));
    expect_ok(tg_checkpoint_write(ctx, path, good));
    tg_archive_destroy(&good);
    expect_ok(tg_checkpoint_read(ctx, path, true, &good));
    /* The settings in fewer words than a run writes. */
    expect_ok(tg_archive_set_meta(good, "tgrad.config", settings_text));
    tg_settings_destroy(&settings);
}

/* Adds tensor number `entry` with its changes, if it is not dropped. */
static void add_tensor(tg_archive *out, int entry, const change *changes) {
    const tg_tensor *from = tg_archive_tensor(good, entry);
    const char *name = tg_archive_name(good, entry);
    const change *fill = NULL;
    tg_tensor made = {0};
    tg_dtype dtype = from->dtype;
    tg_shape shape = from->shape;
    for (const change *c = changes; c; c = c->next) {
        if (c->what == DROP) {
            return;
        } else if (c->what == RENAME) {
            name = tg_archive_name(good, (int64_t)c->size % tg_archive_count(good));
        } else if (c->what == RETYPE) {
            dtype = (tg_dtype)(c->size % TG_DTYPES);
        } else if (c->what == RESHAPE) {
            shape.ndim = c->size < 4 ? (int)c->size : 4;
            for (int d = 0; d < shape.ndim; d++) {
                shape.dim[d] = c->bytes[d] % 17;
            }
        } else if (c->what == FILL && c->size > 0) {
            fill = c;
        }
    }
    if (!changes) {
        (void)!tg_archive_add_view(out, name, from); /* refused if another one took its name */
        return;
    }
    expect_ok(tg_tensor_create(fuzz_context(), TG_MEM_DATA, dtype, &shape, &made));
    const unsigned char *bytes = fill ? fill->bytes : from->data;
    const size_t period = fill ? fill->size : tg_tensor_bytes(from), end = tg_tensor_bytes(&made);
    for (size_t at = 0; at < end && period > 0; at++) {
        ((unsigned char *)made.data)[at] = bytes[at % period];
    }
    (void)!tg_archive_take(out, name, &made); /* names twice and bool of 7 are refused */
}

static void add_meta(tg_archive *out, int entry, const change *changes) {
    char text[256];
    const char *value = tg_archive_meta_value(good, entry);
    for (const change *c = changes; c; c = c->next) {
        if (c->what == META_DROP) {
            return;
        }
        if (c->what == META) {
            memcpy(text, c->bytes, c->size);
            text[c->size] = '\0';
            value = text;
        }
    }
    (void)!tg_archive_set_meta(out, tg_archive_meta_key(good, entry), value); /* UTF-8 only */
}

static tg_archive *make(const change *const changes[ENTRIES]) {
    tg_archive *out = NULL;
    expect_ok(tg_archive_create(fuzz_context(), &out));
    for (int i = 0; i < (int)tg_archive_count(good); i++) {
        add_tensor(out, i, changes[i]);
    }
    for (int i = 0; i < (int)tg_archive_meta_count(good); i++) {
        add_meta(out, i, changes[i]);
    }
    expect_ok(tg_checkpoint_seal(out));
    return out;
}

/* As tg_trainer_resume does it, but for data and run folder. */
static void load(const tg_archive *archive) {
    tg_context *ctx = fuzz_context();
    tg_settings *settings = NULL;
    tg_run_config config;
    tg_progress progress;
    if (tg_checkpoint_check(ctx, "fuzz", true, archive) != TG_OK) {
        return;
    }
    const bool is_new = strcmp(tg_archive_meta(archive, "tgrad.config"),
                               tg_archive_meta(good, "tgrad.config")) != 0;
    if (is_new && tg_checkpoint_settings(ctx, "fuzz", archive, &settings) == TG_OK) {
        (void)!tg_run_config_read(ctx, settings, tg_checkpoint_stage(archive), false, &config);
    }
    tg_settings_destroy(&settings);
    (void)!tg_checkpoint_load_progress(ctx, "fuzz", archive, &progress);
    (void)!tg_checkpoint_load_model(model, archive);
    if (tg_optim_load(optim, archive) == TG_OK) { /* its state can be used */
        const tg_fno_param p = tg_fno_get_param(model->fno, PROJECTED);
        expect_ok(tg_optim_set_learning_rate(optim, 0, 1e-3));
        (void)!tg_optim_step(optim, PROJECTED, &p.weight, &p.weight);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    change changes[CHANGES];
    const change *of_entry[ENTRIES] = {NULL};
    int count = 0;
    if (!good) {
        prepare();
    }
    for (size_t at = 0; at + 3 <= size && count < CHANGES; count++) {
        const int entry = bytes[at + 1];
        const size_t length = bytes[at + 2];
        changes[count] = (change){.what = (operation)(bytes[at] % OPERATIONS),
                                  .size = at + 3 + length <= size ? length : size - at - 3,
                                  .bytes = bytes + at + 3,
                                  .next = of_entry[entry]};
        of_entry[entry] = &changes[count];
        at += 3 + length;
    }
    tg_archive *archive = make(of_entry);
    load(archive);
    tg_archive_destroy(&archive);
    fuzz_expect_no_leak();
    return 0;
}

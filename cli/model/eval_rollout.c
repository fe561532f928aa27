/* Output and files of `tgrad eval --rollout`. */
#include "eval_rollout.h"

#include <stdio.h>
#include <string.h>

#include "common/run_folder.h"
#include "common/text.h"

enum { ROWS = 20, FRAMES = 6 }; /* shown at most */

void cli_rollout_print(const char *file, const tg_rollout_errors *e) {
    static const cli_column columns[] = {{"step", true}, {"l2", true}, {"correlation", true}};
    cli_table table = {.column = columns, .columns = 3};
    const int64_t stride = (e->steps + ROWS - 1) / ROWS;
    cli_say("%s at %s: %lld trajector%s, %lld step%s; correlation above 0.8 for %.1f steps", file,
            e->grid, (long long)e->trajectories, e->trajectories == 1 ? "y" : "ies",
            (long long)e->steps, e->steps == 1 ? "" : "s", e->correlated_steps);
    for (int64_t j = 0; j < e->steps; j++) {
        if ((j + 1) % stride == 0 || j == 0 || j == e->steps - 1) {
            cli_table_cell(&table, "%lld", (long long)j + 1);
            cli_table_cell(&table, "%.6f", e->l2[j]);
            cli_table_cell(&table, "%.6f", e->correlation[j]);
        }
    }
    cli_table_print(&table, stdout);
}

static json_t *first_and_last(const double *first, const double *last, int64_t count) {
    return cli_json_new(KV("first", cli_json_reals(first, count)),
                        KV("last", cli_json_reals(last, count)));
}

json_t *cli_rollout_json(const char *file, const tg_rollout_errors *e) {
    json_t *entry =
        cli_json_new(KV("file", file), KV("grid", e->grid), KV("trajectories", e->trajectories),
                     KV("steps", e->steps), KV("l2", cli_json_reals(e->l2, e->steps)),
                     KV("correlation", cli_json_reals(e->correlation, e->steps)),
                     KV("correlated_steps", e->correlated_steps));
    json_t *energy = cli_json_new(
        KV("truth", first_and_last(e->truth_first, e->truth_last, e->wavenumbers)),
        KV("prediction", first_and_last(e->prediction_first, e->prediction_last, e->wavenumbers)));
    cli_json_set(entry, "energy", energy);
    return entry;
}

/* ---- the file ---- */

/* A copy of the list as a tensor of the archive. */
static tg_status keep_list(tg_context *ctx, tg_archive *archive, const char *name,
                           const double *list, int64_t count) {
    const tg_shape shape = {1, {count}};
    tg_tensor copy = {0};
    tg_status status = tg_tensor_create(ctx, TG_MEM_OTHER, TG_F64, &shape, &copy);
    if (status == TG_OK) {
        memcpy(copy.data, list, (size_t)count * sizeof *list);
        status = tg_archive_take(archive, name, &copy);
    }
    tg_tensor_destroy(&copy);
    return status;
}

/* (1, steps * channels, grid..) as (frames shown, channels, grid..). */
static tg_status keep_frames(tg_context *ctx, tg_archive *archive, const char *name,
                             const tg_tensor *all, int64_t steps, const double *shown,
                             int64_t count) {
    tg_shape shape = all->shape;
    tg_tensor copy = {0};
    shape.dim[0] = count;
    shape.dim[1] /= steps;
    tg_status status = tg_tensor_create(ctx, TG_MEM_OTHER, all->dtype, &shape, &copy);
    if (status == TG_OK) {
        const size_t frame = tg_tensor_bytes(&copy) / (size_t)count;
        for (int64_t i = 0; i < count; i++) {
            memcpy((char *)copy.data + (size_t)i * frame,
                   (const char *)all->data + ((size_t)shown[i] - 1) * frame, frame);
        }
        status = tg_archive_take(archive, name, &copy);
    }
    tg_tensor_destroy(&copy);
    return status;
}

/* Frames of the first trajectory, the first and the last step among them. */
static tg_status add_film(tg_context *ctx, const cli_model *model, tg_dataset *dataset,
                          int64_t steps, tg_archive *archive) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t count = steps < FRAMES ? steps : FRAMES, zero = 0;
    tg_shape x_shape = {facts.n_dim + 2, {1, facts.in_channels}}, y_shape;
    tg_tensor x = {0}, y = {0}, pred = {0};
    double shown[FRAMES] = {1.0};
    memcpy(x_shape.dim + 2, facts.grid, (size_t)facts.n_dim * sizeof facts.grid[0]);
    y_shape = x_shape;
    y_shape.dim[1] = facts.out_channels;
    for (int64_t i = 1; i < count; i++) {
        shown[i] = (double)(1 + i * (steps - 1) / (count - 1));
    }
    tg_status status = tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &x_shape, &x);
    status = status ? status : tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &y_shape, &y);
    status = status ? status : tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &y_shape, &pred);
    status = status ? status : tg_dataset_read(dataset, &zero, 1, x.data, y.data);
    status = status ? status : tg_model_predict_steps(model->model, &x, steps, &pred);
    status = status ? status : keep_list(ctx, archive, "steps", shown, count);
    status = status ? status : keep_frames(ctx, archive, "y", &y, steps, shown, count);
    status = status ? status : keep_frames(ctx, archive, "pred", &pred, steps, shown, count);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&pred);
    return status;
}

tg_status cli_rollout_keep(tg_context *ctx, const cli_model *model, tg_dataset *dataset,
                           const tg_rollout_errors *e, const char *folder) {
    const struct {
        const char *name;
        const double *list;
        int64_t count;
    } lists[] = {{"l2", e->l2, e->steps},
                 {"correlation", e->correlation, e->steps},
                 {"correlated_steps", &e->correlated_steps, 1},
                 {"energy_truth_first", e->truth_first, e->wavenumbers},
                 {"energy_truth_last", e->truth_last, e->wavenumbers},
                 {"energy_pred_first", e->prediction_first, e->wavenumbers},
                 {"energy_pred_last", e->prediction_last, e->wavenumbers}};
    tg_archive *archive = NULL;
    char path[2048];
    snprintf(path, sizeof path, "%.1900s/%s", folder, CLI_ROLLOUT_FILE);
    tg_status status = tg_archive_create(ctx, &archive);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && status == TG_OK; i++) {
        status = keep_list(ctx, archive, lists[i].name, lists[i].list, lists[i].count);
    }
    status = status ? status : add_film(ctx, model, dataset, e->steps, archive);
    status = status ? status : tg_archive_write(ctx, path, archive);
    tg_archive_destroy(&archive);
    return status;
}

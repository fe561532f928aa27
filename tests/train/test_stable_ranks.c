/* opt.track_stable_rank: the values are those of the singular values of the gradients, by power
 * iteration here; the training goes on as without it; and what it cannot do is refused. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "support/files.h"
#include "support/sets.h"
#include "support/training.h"

#include <complex.h> /* after headers that name a field so */

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

static tg_context *ctx;

/* y += the unfolding of g along `mode` times its conjugate transpose times x. */
static void apply_gram(const tg_tensor *g, int mode, const double complex *x, double complex *y) {
    const float complex *entry = g->data;
    int64_t right = 1;
    for (int d = mode + 1; d < g->shape.ndim; d++) {
        right *= g->shape.dim[d];
    }
    const int64_t dim = g->shape.dim[mode], left = tg_tensor_numel(g) / dim / right;
    for (int64_t column = 0; column < left * right; column++) {
        const int64_t at = column / right * dim * right + column % right;
        double complex dot = 0.0;
        for (int64_t i = 0; i < dim; i++) {
            dot += conj((double complex)entry[at + i * right]) * x[i];
        }
        for (int64_t i = 0; i < dim; i++) {
            y[i] += (double complex)entry[at + i * right] * dot;
        }
    }
}

/* |g|^2 / sigma_1^2 of that unfolding. */
static double stable_rank(const tg_tensor *g, int mode) {
    enum { MOST = 64, ITERATIONS = 4000 };
    const int64_t dim = g->shape.dim[mode];
    double complex x[MOST];
    double energy = 0.0, largest = 0.0;
    assert_true(dim <= MOST);
    for (int64_t i = 0; i < dim; i++) {
        x[i] = cos((double)i) + sin(3.0 * (double)i) * (double complex)I;
    }
    for (int step = 0; step < ITERATIONS; step++) {
        double complex y[MOST] = {0.0};
        apply_gram(g, mode, x, y);
        double before = 0.0, after = 0.0;
        for (int64_t i = 0; i < dim; i++) {
            before += creal(x[i] * conj(x[i]));
            after += creal(y[i] * conj(y[i]));
        }
        largest = sqrt(after / before);
        for (int64_t i = 0; i < dim; i++) {
            x[i] = y[i] / sqrt(after);
        }
    }
    for (int64_t i = 0; i < tg_tensor_numel(g); i++) {
        const float complex entry = ((const float complex *)g->data)[i];
        energy += creal((double complex)entry * conj((double complex)entry));
    }
    return energy / largest;
}

/* The lines of a run's file. */
static json_t *read_lines(const char *run) {
    FILE *file = fopen(run_file(run, "stable_ranks.jsonl"), "r");
    json_t *lines = json_array();
    char text[4096];
    assert_non_null(file);
    while (fgets(text, sizeof text, file)) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        assert_int_equal(json_array_append_new(lines, line), 0);
    }
    fclose(file);
    return lines;
}

TEST(test_values) {
    static const char *const methods[] = {"adam", "tensorgrad"};
    for (int m = 0; m < 2; m++) {
        run_record record = {0};
        tg_model *model = NULL;
        tg_archive *gradients = NULL;
        set_ok(ctx, run_train(ctx, "good", methods[m],
                              MORE("opt.name", methods[m], "opt.n_epochs", "4", "opt.eval_interval",
                                   "2", "opt.min_entries", "10", "opt.track_stable_rank", "true"),
                              false, &record));
        json_t *lines = read_lines(methods[m]);
        assert_int_equal(json_array_size(lines), 3); /* epochs 0, 2 and 4 */
        for (size_t i = 0; i < 3; i++) {
            const json_t *line = json_array_get(lines, i);
            assert_int_equal(json_integer_value(json_object_get(line, "epoch")), 2 * i);
            const json_t *all = json_object_get(line, "parameters");
            for (size_t k = 0; k < json_array_size(all); k++) {
                const json_t *rank = json_object_get(json_array_get(all, k), "stable_rank");
                for (size_t d = 0; d < json_array_size(rank); d++) {
                    const double value = json_real_value(json_array_get(rank, d));
                    assert_true(isfinite(value) && value >= 1.0 - 1e-6);
                }
            }
        }
        set_ok(ctx, tg_model_load(ctx, record.end.checkpoint, &model));
        set_ok(ctx, tg_archive_create(ctx, &gradients));
        set_ok(ctx, tg_model_gradients(model, gradients));
        const json_t *last = json_object_get(json_array_get(lines, 2), "parameters");
        assert_int_equal(json_array_size(last), tg_archive_count(gradients));
        for (size_t k = 0; k < json_array_size(last); k++) {
            const json_t *row = json_array_get(last, k);
            const tg_tensor *g =
                tg_archive_find(gradients, json_string_value(json_object_get(row, "name")));
            assert_non_null(g);
            assert_int_equal(g->dtype, TG_C64);
            const json_t *rank = json_object_get(row, "stable_rank");
            assert_int_equal(json_array_size(rank), g->shape.ndim);
            for (int d = 0; d < g->shape.ndim; d++) {
                const double value = json_real_value(json_array_get(rank, (size_t)d));
                const double expected = stable_rank(g, d);
                if (!(fabs(value - expected) <= 1e-4 * expected)) {
                    fail_msg("%s, mode %d: %g, expected %g", methods[m], d, value, expected);
                }
            }
        }
        json_decref(lines);
        tg_archive_destroy(&gradients);
        tg_model_destroy(&model);
    }
}

/* With dropout, whose masks follow the passes that were made. */
TEST(test_training_is_the_same) {
    static const char *const track[] = {"false", "true"};
    run_record record[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        set_ok(ctx, run_train(ctx, "good", track[i],
                              MORE("opt.n_epochs", "3", "fno.channel_mlp_dropout", "0.2",
                                   "opt.track_stable_rank", track[i]),
                              false, &record[i]));
    }
    for (int e = 0; e < 3; e++) {
        assert_true(record[0].epoch[e].train_loss == record[1].epoch[e].train_loss);
        assert_true(record[0].epoch[e].test[0].l2 == record[1].epoch[e].test[0].l2);
    }
    assert_null(fopen(run_file("false", "stable_ranks.jsonl"), "r"));
}

TEST(test_rollouts_are_refused) {
    run_record record = {0};
    assert_int_equal(run_train(ctx, "good", "rollout",
                               MORE("opt.track_stable_rank", "true", "opt.rollout_steps", "2"),
                               false, &record),
                     TG_E_CONFIG);
    set_expect_sentence(ctx, "opt.track_stable_rank");
}

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1};
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "cpu"));
    run_write_set(ctx, "good", "train", 16, 40, 1, NULL);
    run_write_set(ctx, "good", "test", 16, 8, 2, NULL);
    return 0;
}

static int teardown(void **state) {
    tg_context_destroy(&ctx);
    run_folders_remove();
    return test_files_end(state);
}

int main(void) {
    return t_run_tests(setup, teardown);
}

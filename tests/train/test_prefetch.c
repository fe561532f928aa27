/* Batches for the trainer: the same ones on the host and read ahead for a device, whatever is
 * stopped and restarted in between; a file that fails while it is read ahead is reported. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/dataset.h"
#include "support/fake_device.h"
#include "support/files.h"
#include "support/sets.h"
#include "train/trainer.h"

enum { SAMPLES = 11, SIZE = 4, BATCHES = 3 };

/* A prefetcher over a file, with a normalizer of y. */
typedef struct rig {
    tg_context *ctx;
    tg_context reader;
    tg_model model;
    tg_dataset *set;
    tg_loader *loader;
    tg_prefetch *prefetch;
    tg_dataset_facts facts;
} rig;

static void begin(rig *r, const char *backend, const char *path, size_t cache_bytes, double noise) {
    *r = (rig){0};
    r->model.config.loop.input_noise = noise;
    assert_int_equal(tg_context_create(NULL, &r->ctx), TG_OK);
    set_ok(r->ctx, tg_backend_select(r->ctx, backend));
    r->reader = tg_context_branch(r->ctx);
    r->model.ctx = r->ctx;
    set_ok(r->ctx, tg_backend_get(r->ctx, &r->model.be));
    tg_dataset_config config = tg_dataset_config_default();
    config.cache_bytes = cache_bytes;
    r->set = set_open(&r->reader, path, &config);
    r->facts = tg_dataset_get_facts(r->set);
    set_ok(r->ctx, tg_normalizer_fit(r->ctx, r->set, TG_DATA_Y, &r->model.encoder[TG_DATA_Y]));
    const tg_loader_config loader = {
        .size = sizeof(tg_loader_config), .batch_size = SIZE, .seed = 3, .shuffle = true};
    set_ok(r->ctx, tg_loader_create(&r->reader, r->set, &loader, &r->loader));
    set_ok(r->ctx,
           tg_prefetch_create(&r->model, &r->reader, r->loader, &r->facts, SIZE, &r->prefetch));
}

static void end(rig *r) {
    tg_prefetch_destroy(&r->prefetch);
    tg_loader_destroy(&r->loader);
    tg_dataset_close(&r->set);
    tg_normalizer_destroy(&r->model.encoder[TG_DATA_Y]);
    assert_int_equal(tg_context_memory(r->ctx, TG_HOST).current[TG_MEM_DATA], 0);
    assert_int_equal(tg_context_memory(r->ctx, TG_DEVICE).current[TG_MEM_DATA], 0);
    tg_context_destroy(&r->ctx);
}

/* What the stream sees of a tensor, on the host, from malloc. */
static float *seen(rig *r, const tg_tensor *tensor) {
    float *values = malloc(tg_tensor_bytes(tensor));
    tg_tensor host;
    assert_non_null(values);
    set_ok(r->ctx, tg_tensor_wrap(r->ctx, TG_F32, &tensor->shape, values, &host));
    set_ok(r->ctx, tg_backend_copy(r->ctx, tensor, &host));
    return values;
}

/* The batches of an epoch from `first` on, `count` of them; the copy of the next one is asked for
 * before this one is looked at, as a step does. */
static void same_batches(rig *a, rig *b, int64_t epoch, int64_t first, int64_t count) {
    rig *const sides[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        set_ok(sides[i]->ctx, tg_prefetch_start(sides[i]->prefetch, epoch, first));
    }
    for (int64_t n = 0; n < count; n++) {
        float *values[2][2];
        tg_tensor x[2], y[2];
        for (int i = 0; i < 2; i++) {
            rig *r = sides[i];
            set_ok(r->ctx, tg_prefetch_next(r->prefetch, &x[i], &y[i]));
            tg_tensor now[2] = {{0}, {0}};
            const tg_tensor *const from[2] = {&x[i], &y[i]};
            for (int side = 0; side < 2; side++) {
                set_ok(r->ctx, tg_backend_tensor(r->ctx, TG_MEM_OTHER, TG_F32, &from[side]->shape,
                                                 &now[side]));
                set_ok(r->ctx, tg_backend_copy(r->ctx, from[side], &now[side]));
            }
            set_ok(r->ctx, tg_prefetch_ahead(r->prefetch));
            set_ok(r->ctx, tg_prefetch_recycle(r->prefetch));
            for (int side = 0; side < 2; side++) {
                values[i][side] = seen(r, &now[side]);
                tg_tensor_destroy(&now[side]);
            }
        }
        assert_int_equal(x[0].shape.dim[0], first + n == BATCHES - 1 ? SAMPLES % SIZE : SIZE);
        assert_true(tg_shape_equal(&x[0].shape, &x[1].shape));
        assert_true(tg_shape_equal(&y[0].shape, &y[1].shape));
        assert_memory_equal(values[0][0], values[1][0], tg_tensor_bytes(&x[0]));
        assert_memory_equal(values[0][1], values[1][1], tg_tensor_bytes(&y[0]));
        assert_true(isfinite(values[0][0][0]) && isfinite(values[0][1][0]));
        for (int i = 0; i < 4; i++) {
            free(values[i / 2][i % 2]);
        }
    }
    for (int i = 0; i < 2; i++) {
        set_ok(sides[i]->ctx, tg_prefetch_stop(sides[i]->prefetch));
    }
}

static const char *write_set(const char *name) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    const tg_shape shape = SET_SHAPE(SAMPLES, 2, 6, 5);
    const char *path = set_write(ctx, name, TG_F32, &shape, &shape);
    tg_context_destroy(&ctx);
    return path;
}

TEST(batches_are_the_same) {
    const char *path = write_set("set.h5");
    for (int cached = 0; cached < 2; cached++) {
        rig a, b;
        begin(&a, "cpu", path, cached ? 1 << 20 : 0, 0.0);
        begin(&b, "fake", path, cached ? 1 << 20 : 0, 0.0);
        assert_int_equal(a.facts.cached, cached);
        same_batches(&a, &b, 0, 0, BATCHES);
        same_batches(&a, &b, 1, 0, 1); /* stopped with the next batch under way */
        same_batches(&a, &b, 1, 1, 2);
        same_batches(&a, &b, 0, 0, 2);
        same_batches(&a, &b, 2, 2, 1);
        end(&a);
        end(&b);
    }
}

/* Noise is that of the sample and the epoch, on inputs alone, as large as was asked for. */
TEST(noise_is_of_the_sample) {
    enum { NUMBERS = 2 * 6 * 5 };
    const char *path = write_set("noise.h5");
    rig plain, a, b;
    double squares = 0.0;
    begin(&plain, "cpu", path, 1 << 20, 0.0);
    begin(&a, "cpu", path, 1 << 20, 0.5);
    begin(&b, "fake", path, 1 << 20, 0.5);
    same_batches(&a, &b, 0, 0, BATCHES);
    same_batches(&a, &b, 1, 1, 2);
    float first[NUMBERS] = {0};
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        set_ok(plain.ctx, tg_prefetch_start(plain.prefetch, epoch, 0));
        set_ok(a.ctx, tg_prefetch_start(a.prefetch, epoch, 0));
        for (int n = 0; n < BATCHES; n++) {
            tg_tensor x[2], y[2];
            int64_t samples[SIZE], count = 0;
            set_ok(plain.ctx, tg_loader_indices(plain.loader, epoch, n, samples, &count));
            set_ok(plain.ctx, tg_prefetch_next(plain.prefetch, &x[0], &y[0]));
            set_ok(a.ctx, tg_prefetch_next(a.prefetch, &x[1], &y[1]));
            const float *without = x[0].data, *with = x[1].data;
            assert_memory_equal(y[0].data, y[1].data, tg_tensor_bytes(&y[0]));
            for (int64_t i = 0; i < count * NUMBERS; i++) {
                const float noise = with[i] - without[i];
                squares += (double)(noise * noise);
                if (samples[i / NUMBERS] == 0) { /* other noise in the other epoch */
                    assert_true(epoch == 0 || noise != first[i % NUMBERS]);
                    first[i % NUMBERS] = noise;
                }
            }
        }
    }
    const double deviation = sqrt(squares / (2 * SAMPLES * NUMBERS));
    assert_true(deviation > 0.46 && deviation < 0.54);
    end(&plain);
    end(&a);
    end(&b);
}

TEST(a_file_that_ends_early_is_named) {
    static const char *const backends[] = {"cpu", "fake"};
    for (int i = 0; i < 2; i++) {
        rig r;
        tg_tensor x, y;
        const char *path = write_set("cut_x.npy");
        begin(&r, backends[i], path, 0, 0.0);
        assert_int_equal(truncate(path, 200), 0);
        tg_status status = tg_prefetch_start(r.prefetch, 0, 0);
        status = status == TG_OK ? tg_prefetch_next(r.prefetch, &x, &y) : status;
        assert_true(status == TG_E_IO || status == TG_E_FORMAT);
        set_expect_sentence(r.ctx, "cut_x.npy");
        end(&r);
    }
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, test_files_end);
}

/* Time and memory of a GINO, and of its search for neighbours.
 *
 *   bench_gino [THREADS [BACKEND]]
 *
 * Prints one JSON object: milliseconds of forward and backward of a GINO of 32^3 latent places,
 * 4000 points and queries, radius 0.05, C 64, modes 16^3 and one sample (the median of several; the
 * mean for CPU time), the bytes it holds on the backend, and seconds to find and list 20 neighbours
 * of each of 1e6 queries among 1e6 points on the backend, likewise. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "base/system.h"
#include "tgrad/tgrad.h"

enum { POINTS = 4000, STEPS = 5, MANY = 1000000 };

static tg_context *ctx;

/* Wall-clock seconds, and seconds of all processors. */
typedef struct seconds {
    double wall, cpu;
} seconds;

static seconds now(void) {
    return (seconds){.wall = tg_seconds(), .cpu = (double)clock() / CLOCKS_PER_SEC};
}

static void need(tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "bench_gino: %s\n", tg_context_error(ctx));
        exit(1);
    }
}

/* On the backend. */
static tg_tensor random_of(tg_shape shape, uint32_t stream) {
    const tg_rng rng = {.seed = 1, .purpose = TG_RNG_INIT, .step = stream};
    tg_tensor here, t;
    need(tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &here));
    for (int64_t i = 0; i < tg_tensor_numel(&here); i++) {
        ((float *)here.data)[i] = (float)tg_rng_uniform(&rng, (uint64_t)i);
    }
    need(tg_backend_tensor(ctx, TG_MEM_DATA, TG_F32, &shape, &t));
    need(tg_backend_copy(ctx, &here, &t));
    tg_tensor_destroy(&here);
    return t;
}

static tg_status ignore(void *user, const tg_gradient *gradient) {
    (void)user;
    (void)gradient;
    return TG_OK;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static size_t held(void) {
    const tg_mem_usage usage = tg_context_memory(ctx, tg_backend_place(ctx));
    size_t bytes = 0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        bytes += usage.current[c];
    }
    return bytes;
}

/* The median of a few steps, and the memory of the network. */
static seconds step_seconds(size_t *bytes) {
    static const char *const settings[][2] = {
        {"architecture", "gino"},          {"n_modes", "[16, 16, 16]"}, {"in_channels", "3"},
        {"projection_channel_ratio", "4"}, {"in_gno_radius", "0.05"},   {"out_gno_radius", "0.05"}};
    const int64_t sizes[] = {32, 32, 32, POINTS, POINTS};
    tg_fno_config config = tg_fno_config_default();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        need(tg_fno_config_set(ctx, &config, settings[i][0], settings[i][1]));
    }
    const size_t before = held();
    tg_fno *fno = NULL;
    need(tg_fno_create(ctx, &config, 0, &fno));
    need(tg_fno_prepare(fno, 1, sizes, true));
    *bytes = held() - before;
    tg_tensor points = random_of((tg_shape){2, {POINTS, 3}}, 1);
    tg_tensor x = random_of((tg_shape){3, {1, 3, POINTS}}, 2);
    tg_tensor target = random_of((tg_shape){3, {1, 1, POINTS}}, 3);
    tg_loss_config loss;
    need(tg_loss_config_parse(ctx, "loss", "l2", &loss));
    const tg_grad_sink sink = {.receive = ignore};
    double times[STEPS + 1], value;
    seconds first = now();
    for (int i = 0; i <= STEPS; i++) { /* the first one warms up */
        const seconds start = now();
        first = i == 1 ? start : first;
        need(tg_fno_set_points(fno, &points, &points, NULL));
        need(tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &value));
        need(tg_backend_synchronize(ctx));
        times[i] = now().wall - start.wall;
    }
    const double cpu = (now().cpu - first.cpu) / STEPS;
    qsort(times + 1, STEPS, sizeof *times, by_size);
    tg_fno_destroy(&fno);
    tg_tensor_destroy(&points);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
    return (seconds){.wall = times[1 + STEPS / 2], .cpu = cpu};
}

static seconds search_seconds(double *mean) {
    const double pi = 3.14159265358979323846;
    tg_tensor points = random_of((tg_shape){2, {MANY, 3}}, 4);
    tg_tensor queries = random_of((tg_shape){2, {MANY, 3}}, 5), splits, index;
    const double radius = cbrt(20.0 / MANY * 3.0 / (4.0 * pi));
    const bool warms_up = tg_backend_place(ctx) != TG_HOST; /* kernels are loaded on first use */
    if (warms_up) {
        need(tg_neighbours_find(ctx, radius, &points, &queries, &splits, &index));
        tg_tensor_destroy(&splits);
        tg_tensor_destroy(&index);
    }
    const seconds start = now();
    need(tg_neighbours_find(ctx, radius, &points, &queries, &splits, &index));
    need(tg_backend_synchronize(ctx));
    const seconds end = now();
    *mean = (double)tg_tensor_numel(&index) / MANY;
    tg_tensor *made[] = {&points, &queries, &splits, &index};
    for (int i = 0; i < 4; i++) {
        tg_tensor_destroy(made[i]);
    }
    return (seconds){.wall = end.wall - start.wall, .cpu = end.cpu - start.cpu};
}

int main(int argc, char **argv) {
    const tg_context_config config = {
        .size = sizeof config, .threads = argc > 1 ? atoi(argv[1]) : 0, .device = -1};
    need(tg_context_create(&config, &ctx));
    need(tg_backend_select(ctx, argc > 2 ? argv[2] : "cpu"));
    size_t bytes;
    double mean;
    const seconds step = step_seconds(&bytes), search = search_seconds(&mean);
    printf("{\"forward_backward_ms\": %.2f, \"forward_backward_cpu_ms\": %.1f, \"bytes\": %zu, "
           "\"search_s\": %.4f, \"search_cpu_s\": %.2f, \"mean_neighbours\": %.1f}\n",
           1e3 * step.wall, 1e3 * step.cpu, bytes, search.wall, search.cpu, mean);
    tg_context_destroy(&ctx);
    return 0;
}

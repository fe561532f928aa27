/* Residuals of equations in the loss: exact solutions have none, gradients are those of central
 * differences, the units of the data do not matter, and what does not fit is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "nn/losses.h"
#include "pde/solvers.h"
#include "support/files.h"
#include "support/network.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum { MOST = 512 };

static const double PI = 3.14159265358979323846;

typedef struct problem {
    tg_loss_config config;
    nn_physics call;
    double x[MOST], pred[MOST], target[MOST], gradient[MOST], value;
} problem;

static problem make(tg_physics physics, int64_t n, int64_t m) {
    problem p = {.config = tg_loss_config_default(),
                 .call = {.dtype = TG_F64, .batch = 1, .in_channels = 1, .grid = {n, m}}};
    p.config.physics = physics;
    p.config.physics_weight = 1.0;
    p.config.physics_time = 0.1;
    return p;
}

/* On a context's backend. */
static tg_context *ctx;

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}
static nn_residual residual;

static void add(const nn_physics *call) {
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    net_ok(ctx, nn_residual_prepare(be, call, call->batch, &residual));
    net_ok(ctx, nn_physics_add(be, &residual, call));
}

static double loss_of(problem *p, bool with_gradient) {
    p->value = 0.0;
    memset(p->gradient, 0, sizeof p->gradient);
    p->call.config = &p->config;
    p->call.x = p->x;
    p->call.pred = p->pred;
    p->call.target = p->target;
    p->call.value = &p->value;
    p->call.grad_scale = 1.0;
    p->call.dpred = with_gradient ? p->gradient : NULL;
    add(&p->call);
    return p->value;
}

static void fill(double *values, int count, unsigned seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = 0.5 + (seed >> 8) / (double)(1u << 24);
    }
}

TEST(test_differences) {
    static const struct {
        tg_physics physics;
        int64_t n, m, in_channels;
    } cases[] = {{TG_PHYSICS_DARCY, 3, 3, 1},   {TG_PHYSICS_DARCY, 5, 7, 1},
                 {TG_PHYSICS_BURGERS, 9, 1, 1}, {TG_PHYSICS_BURGERS, 8, 1, 3},
                 {TG_PHYSICS_NS, 6, 5, 1},      {TG_PHYSICS_NS, 7, 8, 2}};
    for (int c = 0; c < COUNT(cases); c++) {
        problem p = make(cases[c].physics, cases[c].n, cases[c].m);
        const int points = 2 * (int)(cases[c].n * cases[c].m);
        p.call.batch = 2;
        p.call.in_channels = cases[c].in_channels;
        p.config.x_mean = 0.3;
        p.config.x_scale = 2.0;
        p.config.y_mean = -0.1;
        p.config.y_scale = 0.7;
        p.config.physics_weight = 0.5;
        p.config.physics_length = 1.5;
        fill(p.x, MOST, 1);
        fill(p.pred, MOST, 2);
        fill(p.target, MOST, 3);
        (void)loss_of(&p, true);
        double gradient[MOST];
        memcpy(gradient, p.gradient, sizeof gradient);
        for (int i = 0; i < points; i++) {
            const double kept = p.pred[i];
            p.pred[i] = kept + 1e-6;
            const double up = loss_of(&p, false);
            p.pred[i] = kept - 1e-6;
            const double down = loss_of(&p, false);
            p.pred[i] = kept;
            assert_true(fabs((up - down) / 2e-6 - gradient[i]) <= 1e-6 * (1.0 + fabs(gradient[i])));
        }
        assert_true(gradient[points] == 0.0);
    }
}

/* a = 2, u = x (1 - x) / 4 solves -div(a grad u) = 1, also by the scheme; u = 0 leaves f. */
TEST(test_darcy) {
    enum { N = 9, M = 6 };
    problem p = make(TG_PHYSICS_DARCY, N, M);
    for (int i = 0; i < N * M; i++) {
        const double x = (double)(i / M) / (N - 1);
        p.x[i] = 2.0;
        p.pred[i] = x * (1.0 - x) / 4.0;
    }
    assert_true(loss_of(&p, false) <= 1e-13);
    memset(p.pred, 0, sizeof p.pred);
    p.config.physics_forcing = -3.0;
    p.config.physics_weight = 0.25;
    assert_true(fabs(loss_of(&p, false) - 0.25) <= 1e-15);
    p.config.physics_forcing = 0.0; /* and nothing of that has no gradient */
    assert_true(loss_of(&p, true) == 0.0 && p.gradient[N * M / 2] == 0.0);
    p.pred[N] = (double)NAN;
    assert_true(isnan(loss_of(&p, true)) && isnan(p.gradient[0]));
}

/* What the solver of the generator gives for a medium with jumps fulfils the equation. */
TEST(test_darcy_solver) {
    enum { N = 13 };
    tg_elliptic *solver = NULL;
    problem p = make(TG_PHYSICS_DARCY, N, N);
    double f[N * N];
    for (int i = 0; i < N * N; i++) {
        p.x[i] = (i * 7 / 3 + i / N) % 5 < 2 ? 12.0 : 3.0;
        f[i] = 1.0;
    }
    net_ok(ctx, tg_elliptic_create(pool(), N, &solver));
    tg_elliptic_set(solver, p.x);
    assert_true(tg_elliptic_solve(solver, f, 1e-12, 100, p.pred, NULL));
    assert_true(loss_of(&p, false) <= 1e-10);
    tg_pool_clear(pool());
}

/* Cole and Hopf: u = c - 2 nu phi_x / phi, phi = 1 + d cos 2 pi (x - c t), d = e^(-4 pi^2 nu t)
 * / 2.
 */
static double burgers(double x, double t, double nu) {
    const double drift = 0.5, wave = 2.0 * PI * (x - drift * t);
    const double decayed = 0.5 * exp(-4.0 * PI * PI * nu * t);
    return drift + 4.0 * PI * nu * decayed * sin(wave) / (1.0 + decayed * cos(wave));
}

static double burgers_error(int n, double dt) {
    problem p = make(TG_PHYSICS_BURGERS, n, 1);
    p.config.physics_time = dt;
    p.config.physics_viscosity = 0.05;
    for (int i = 0; i < n; i++) {
        p.x[i] = burgers((double)i / n, 0.0, 0.05);
        p.pred[i] = p.target[i] = burgers((double)i / n, dt, 0.05);
    }
    return loss_of(&p, false);
}

/* The residual of the truth falls with the square of both steps. */
TEST(test_burgers) {
    const double coarse = burgers_error(64, 0.04), fine = burgers_error(128, 0.02);
    assert_true(coarse < 0.05);
    assert_true(coarse / fine > 3.5 && coarse / fine < 4.5);
}

/* w = a cos x + b cos 2y on [0, 2 pi)^2 moves itself by a b (1/2 - 2) sin x sin 2y, so that the
 * residual of a flow at rest is known at every point. */
TEST(test_flow) {
    enum { N = 9, M = 12 };
    const double a = 0.7, b = -1.3, nu = 0.3, f = 0.2;
    double sum = 0.0;
    problem p = make(TG_PHYSICS_NS, N, M);
    p.config.physics_length = 2.0 * PI;
    p.config.physics_viscosity = nu;
    p.config.physics_forcing = f;
    for (int i = 0; i < N * M; i++) {
        const double x = 2.0 * PI * (i / M) / N, y = 2.0 * PI * (i % M) / M;
        p.x[i] = p.pred[i] = a * cos(x) + b * cos(2.0 * y);
        p.target[i] = p.x[i];
        const double r = a * b * (0.5 - 2.0) * sin(x) * sin(2.0 * y) +
                         nu * (a * cos(x) + 4.0 * b * cos(2.0 * y)) - f * (sin(x + y) + cos(x + y));
        sum += r * r;
    }
    assert_true(fabs(loss_of(&p, false) - sqrt(sum)) <= 1e-12 * sqrt(sum));
}

/* w = (-1)^i cos y + cos 2y, the highest frequency of an even grid in x beside another wave: it has
 * no slope at the points, and all flows along x, so that what is left at rest is their decay. */
TEST(test_highest_frequency) {
    enum { N = 6, M = 7 };
    const double nu = 0.3;
    double sum = 0.0;
    problem p = make(TG_PHYSICS_NS, N, M);
    p.config.physics_length = 2.0 * PI;
    p.config.physics_viscosity = nu;
    p.config.physics_forcing = 0.0;
    for (int i = 0; i < N * M; i++) {
        const double y = 2.0 * PI * (i % M) / M, high = (i / M % 2 ? -1.0 : 1.0) * cos(y);
        p.x[i] = p.pred[i] = p.target[i] = high + cos(2.0 * y);
        const double r = nu * ((N / 2 * N / 2 + 1) * high + 4.0 * cos(2.0 * y));
        sum += r * r;
    }
    assert_true(fabs(loss_of(&p, false) - sqrt(sum)) <= 1e-12 * sqrt(sum));
}

/* Taylor and Green: w decays by e^(-q t), q = 2 nu (2 pi / L)^2, and does not move itself; what is
 * left is the error of the trapezoidal rule. */
TEST(test_decaying_flow) {
    enum { N = 8 };
    const double dt = 0.1, nu = 0.02, length = 3.0, q = 8.0 * PI * PI * nu / (length * length);
    const double left = exp(-q * dt);
    problem p = make(TG_PHYSICS_NS, N, N);
    p.config.physics_length = length;
    p.config.physics_viscosity = nu;
    p.config.physics_time = dt;
    p.config.physics_forcing = 0.0;
    for (int i = 0; i < N * N; i++) {
        p.x[i] = cos(2.0 * PI * (i / N) / N) * cos(2.0 * PI * (i % N) / N);
        p.pred[i] = p.target[i] = left * p.x[i];
    }
    const double expected = fabs((left - 1.0) / dt + q * (left + 1.0) / 2.0) * dt / (1.0 - left);
    assert_true(expected < 1e-3);
    assert_true(fabs(loss_of(&p, false) - expected) <= 1e-10);
    p.pred[5] = (double)NAN;
    assert_true(isnan(loss_of(&p, true)) && isnan(p.gradient[0]));
}

/* The residual of the second frame that the generator makes, dt after the first. */
static double residual_of_generated(const char *time) {
    enum { N = 32 };
    const tg_pde_value values[] = {
        {"time", time}, {"grid", "64"}, {"reynolds", "1000"}, {"alpha", "7"}};
    tg_generator_config config = tg_generator_config_default();
    tg_dataset_config how = tg_dataset_config_default();
    tg_generator *generator = NULL;
    tg_generator_file file;
    tg_dataset *set = NULL;
    bool complete = false;
    const int64_t first = 0;
    static float x[N * N], y[N * N];
    problem p = make(TG_PHYSICS_NS, N, N);
    config.equation = "ns";
    config.folder = test_path(time);
    config.n_train = 1;
    config.n_test = 0;
    config.resolution = N;
    config.frames = 2;
    config.values = values;
    config.value_count = COUNT(values);
    net_ok(ctx, tg_generator_create(ctx, &config, &generator));
    net_ok(ctx, tg_generator_run(generator, NULL, NULL, &complete));
    assert_true(tg_generator_get_file(generator, 0, &file));
    net_ok(ctx, tg_dataset_open(ctx, file.path, NULL, &how, &set));
    net_ok(ctx, tg_dataset_read(set, &first, 1, x, y));
    p.config.physics_time = strtod(time, NULL);
    p.config.physics_viscosity = 0.001;
    p.config.physics_forcing = 0.1;
    p.call.dtype = TG_F32;
    p.call.config = &p.config;
    p.call.x = x;
    p.call.pred = p.call.target = y;
    p.call.value = &p.value;
    add(&p.call);
    tg_dataset_close(&set);
    tg_generator_destroy(&generator);
    return p.value;
}

/* Flows of the generator fulfil the equation, to the second order in dt. */
TEST(test_generated_flow) {
    const double coarse = residual_of_generated("0.8"), fine = residual_of_generated("0.4");
    assert_true(coarse < 1e-3);
    assert_true(coarse / fine > 3.5 && coarse / fine < 4.5);
}

static const char *backend;

static int begin(void **state) {
    (void)state;
    ctx = net_context(backend, 1);
    return 0;
}

static int end(void **state) {
    (void)state;
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    nn_residual_free(be, &residual);
    tg_context_destroy(&ctx);
    return test_files_end(state);
}

/* Data that are normalized, and of f32, have the residual of the data themselves. */
TEST(test_units) {
    for (int physics = TG_PHYSICS_DARCY; physics <= TG_PHYSICS_NS; physics++) {
        problem p = make((tg_physics)physics, 7, physics == TG_PHYSICS_BURGERS ? 1 : 5);
        fill(p.x, MOST, 4);
        fill(p.pred, MOST, 5);
        fill(p.target, MOST, 6);
        const double expected = loss_of(&p, false);
        float x[MOST], pred[MOST], target[MOST];
        p.config.x_mean = 0.25;
        p.config.x_scale = 0.5;
        p.config.y_mean = -1.0;
        p.config.y_scale = 4.0;
        for (int i = 0; i < MOST; i++) {
            x[i] = (float)((p.x[i] - 0.25) / 0.5);
            pred[i] = (float)((p.pred[i] + 1.0) / 4.0);
            target[i] = (float)((p.target[i] + 1.0) / 4.0);
        }
        double value = 0.0;
        nn_physics call = p.call;
        call.config = &p.config;
        call.dtype = TG_F32;
        call.x = x;
        call.pred = pred;
        call.target = target;
        call.value = &value;
        call.dpred = NULL;
        add(&call);
        assert_true(fabs(value - expected) <= 1e-5 * expected);
    }
}

/* A network with the residual in its loss: forward and backward of tg_fno_loss_backward agree. */
TEST(test_network) {
    static const char *const backends[] = {"ref", "cpu"};
    double expected[2] = {0};
    for (int b = 0; b < 2; b++) {
        tg_context *own = net_context(backends[b], 2);
        tg_fno_config config = net_config(
            own,
            "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 1, \"micro_batch\": 1}");
        const int64_t grid[] = {6, 5};
        tg_fno *fno = NULL;
        net_ok(own, tg_fno_create(own, &config, 1, &fno));
        net_ok(own, tg_fno_prepare(fno, 2, grid, true));
        tg_tensor x = net_random(own, &config, 2, 1, grid, 1);
        tg_tensor y = net_random(own, &config, 2, 1, grid, 2);
        net_gradients kept = net_gradients_make(own, fno);
        const tg_grad_sink sink = net_sink(&kept);
        tg_loss_config loss = tg_loss_config_default();
        double plain = 0.0, value = 0.0;
        net_ok(own, tg_fno_loss_backward(fno, &x, &y, &loss, &sink, &plain));
        net_gradients_free(&kept);
        kept = net_gradients_make(own, fno);
        loss.physics = TG_PHYSICS_DARCY;
        loss.x_mean = 3.0;
        net_ok(own, tg_fno_loss_backward(fno, &x, &y, &loss, &sink, &value));
        assert_true(value > plain + 0.05);
        assert_true(b == 0 || (fabs(plain - expected[0]) <= 1e-5 * plain &&
                               fabs(value - expected[1]) <= 1e-4 * value));
        expected[0] = plain;
        expected[1] = value;
        double alone = 0.0;
        assert_int_equal(tg_loss_eval(own, &loss, &y, &y, &alone, NULL), TG_E_ARGUMENT);
        assert_non_null(strstr(tg_context_error(own), "needs x"));
        loss.physics = TG_PHYSICS_BURGERS;
        assert_int_equal(tg_fno_loss_backward(fno, &x, &y, &loss, &sink, &value), TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(own), "opt.physics: burgers is an equation for"));
        net_gradients_free(&kept);
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
        tg_fno_destroy(&fno);
        tg_context_destroy(&own);
    }
}

int main(void) {
    backend = "ref";
    const int failures = t_run_tests(begin, end);
    backend = "cpu";
    return failures + t_run_tests(begin, end);
}

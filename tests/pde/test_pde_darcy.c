/* The elliptic solver: manufactured solutions, the operator's algebra, jumps, any size. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "pde/pde.h"
#include "pde/solvers.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}

#define PI 3.14159265358979323846

/* A problem on n x n points: arrays of one allocation. */
typedef struct problem {
    int64_t n;
    tg_elliptic *solver;
    double *a, *f, *u, *w; /* (n, n) each */
} problem;

static problem open_problem(int64_t n) {
    problem p = {.n = n};
    assert_int_equal(tg_elliptic_create(pool(), n, &p.solver), TG_OK);
    p.a = calloc(4 * (size_t)(n * n), sizeof *p.a);
    assert_non_null(p.a);
    p.f = p.a + n * n;
    p.u = p.f + n * n;
    p.w = p.u + n * n;
    return p;
}

static void close_problem(problem *p) {
    tg_pool_clear(pool());
    free(p->a);
}

static double dot(int64_t count, const double *x, const double *y) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

static bool is_boundary(int64_t n, int64_t i, int64_t j) {
    return i == 0 || j == 0 || i == n - 1 || j == n - 1;
}

/* Two phases in irregular stripes. */
static void set_two_phases(problem *p, double low, double high) {
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            const double x = (double)i / (double)(p->n - 1), y = (double)j / (double)(p->n - 1);
            const double g = sin(9.0 * x + 5.0 * y * y) + cos(11.0 * y - 4.0 * x * x);
            p->a[i * p->n + j] = g >= 0.0 ? high : low;
            p->f[i * p->n + j] = 1.0;
        }
    }
    tg_elliptic_set(p->solver, p->a);
}

/* |A u - h^2 f| / |h^2 f| over inner points. */
static double residual(const problem *p) {
    const double h = 1.0 / (double)(p->n - 1);
    double above = 0.0, below = 0.0;
    tg_elliptic_apply(p->solver, p->u, p->w);
    for (int64_t i = 1; i < p->n - 1; i++) {
        for (int64_t j = 1; j < p->n - 1; j++) {
            const double b = h * h * p->f[i * p->n + j], r = p->w[i * p->n + j] - b;
            above += r * r;
            below += b * b;
        }
    }
    return sqrt(above / below);
}

/* u = sin(pi x) sin(2 pi y) e^x with a = 1 + x + y^2: f = -(a_x u_x + a_y u_y + a Laplace u). */
static double manufactured_error(int64_t n) {
    problem p = open_problem(n);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            const double x = (double)i / (double)(n - 1), y = (double)j / (double)(n - 1);
            const double s = sin(PI * x), c = cos(PI * x), e = exp(x), q = sin(2.0 * PI * y);
            const double u = s * q * e, ux = (PI * c + s) * q * e;
            const double uxx = (2.0 * PI * c + s - PI * PI * s) * q * e;
            const double uy = 2.0 * PI * s * cos(2.0 * PI * y) * e, uyy = -4.0 * PI * PI * u;
            p.a[i * n + j] = 1.0 + x + y * y;
            p.f[i * n + j] = -(ux + 2.0 * y * uy + p.a[i * n + j] * (uxx + uyy));
            p.w[i * n + j] = u;
        }
    }
    tg_elliptic_set(p.solver, p.a);
    double worst = 0.0;
    assert_true(tg_elliptic_solve(p.solver, p.f, 1e-12, 100, p.u, NULL));
    for (int64_t i = 0; i < n * n; i++) {
        worst = fabs(p.u[i] - p.w[i]) <= worst ? worst : fabs(p.u[i] - p.w[i]);
    }
    close_problem(&p);
    return worst;
}

TEST(test_order_two) {
    double last = manufactured_error(11);
    for (int64_t n = 21; n <= 161; n = 2 * n - 1) {
        const double error = manufactured_error(n), order = log2(last / error);
        assert_true(order >= 1.9 && order <= 2.1);
        last = error;
    }
    assert_true(last <= 1e-3);
}

/* <A u, w> = <u, A w>, <u, A u> > 0, also where a jumps. */
TEST(test_symmetric_positive) {
    uint64_t seed = 5;
    const int64_t sizes[] = {3, 4, 7, 33, 50};
    for (int s = 0; s < 5; s++) {
        problem p = open_problem(sizes[s]);
        const int64_t n = p.n;
        double *images = calloc(2 * (size_t)(n * n), sizeof *images);
        set_two_phases(&p, 3.0, 12.0);
        for (int64_t i = 0; i < n * n; i++) {
            const bool inner = !is_boundary(n, i / n, i % n);
            p.u[i] = inner ? (double)(test_random(&seed) % 2001) / 1000.0 - 1.0 : 0.0;
            p.w[i] = inner ? (double)(test_random(&seed) % 2001) / 1000.0 - 1.0 : 0.0;
        }
        tg_elliptic_apply(p.solver, p.u, images);
        tg_elliptic_apply(p.solver, p.w, images + n * n);
        const double one = dot(n * n, images, p.w), other = dot(n * n, p.u, images + n * n);
        assert_true(fabs(one - other) <= 1e-11 * (fabs(one) + 1.0));
        assert_true(dot(n * n, images, p.u) > 0.0);
        free(images);
        close_problem(&p);
    }
}

/* Any size, from one inner point on; the true residual, and few cycles whatever the size. */
TEST(test_residual) {
    const int64_t sizes[] = {3, 4, 5, 6, 7, 8, 9, 16, 31, 33, 64, 85, 107, 129, 211};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        problem p = open_problem(sizes[s]);
        int iterations = 0;
        set_two_phases(&p, 3.0, 12.0);
        memset(p.u, 0xff, (size_t)(p.n * p.n) * sizeof *p.u);
        assert_true(tg_elliptic_solve(p.solver, p.f, 1e-10, 100, p.u, &iterations));
        assert_true(iterations <= 25);
        assert_true(residual(&p) <= 1.001e-10);
        for (int64_t i = 0; i < p.n; i++) {
            for (int64_t j = 0; j < p.n; j++) {
                const double u = p.u[i * p.n + j];
                assert_true(is_boundary(p.n, i, j) ? u == 0.0 : u > 0.0); /* maximum principle */
            }
        }
        close_problem(&p);
    }
}

/* What flows out through the boundary is what the sources give, jumps or not. */
TEST(test_conservation) {
    const double contrasts[] = {1.0, 4.0, 1000.0};
    for (int c = 0; c < 3; c++) {
        problem p = open_problem(66);
        const int64_t n = p.n;
        set_two_phases(&p, 3.0, 3.0 * contrasts[c]);
        assert_true(tg_elliptic_solve(p.solver, p.f, 1e-12, 400, p.u, NULL));
        double out = 0.0;
        for (int64_t k = 1; k < n - 1; k++) {
            const int64_t edge[4][2] = {{k, n + k},
                                        {(n - 1) * n + k, (n - 2) * n + k},
                                        {k * n, k * n + 1},
                                        {k * n + n - 1, k * n + n - 2}};
            for (int e = 0; e < 4; e++) {
                const double a = p.a[edge[e][0]], b = p.a[edge[e][1]];
                out += 2.0 * a * b / (a + b) * p.u[edge[e][1]];
            }
        }
        const double in = (double)((n - 2) * (n - 2)) / (double)((n - 1) * (n - 1));
        assert_true(fabs(out - in) <= 1e-9 * in);
        close_problem(&p);
    }
}

/* With a jump at x = 1/3 (between the points, elsewhere on every grid) the solution in the middle
 * converges: twice the points, at most little more than half the error. */
TEST(test_jump_converges) {
    double middle[3];
    const int64_t sizes[] = {61, 121, 481};
    for (int s = 0; s < 3; s++) {
        problem p = open_problem(sizes[s]);
        const int64_t n = p.n;
        for (int64_t i = 0; i < n * n; i++) {
            p.a[i] = 3 * (i / n) <= n - 1 ? 12.0 : 3.0;
            p.f[i] = 1.0;
        }
        tg_elliptic_set(p.solver, p.a);
        assert_true(tg_elliptic_solve(p.solver, p.f, 1e-11, 100, p.u, NULL));
        middle[s] = p.u[(n - 1) / 2 * n + (n - 1) / 2];
        close_problem(&p);
    }
    assert_true(fabs(middle[1] - middle[2]) <= 0.62 * fabs(middle[0] - middle[2]));
    assert_true(fabs(middle[1] - middle[2]) <= 0.01 * middle[2]);
}

TEST(test_refusals) {
    tg_elliptic *solver = NULL;
    assert_int_equal(tg_elliptic_create(pool(), 2, &solver), TG_E_ARGUMENT);
    assert_null(solver);
    tg_pool_clear(pool());
    problem p = open_problem(33);
    set_two_phases(&p, 3.0, 12.0);
    assert_false(tg_elliptic_solve(p.solver, p.f, 1e-10, 2, p.u, NULL)); /* too few iterations */
    p.f[40] = (double)NAN;
    assert_false(tg_elliptic_solve(p.solver, p.f, 1e-10, 100, p.u, NULL));
    for (int64_t i = 0; i < 33 * 33; i++) {
        p.f[i] = 0.0;
        p.u[i] = (double)NAN;
    }
    assert_true(tg_elliptic_solve(p.solver, p.f, 1e-10, 100, p.u, NULL));
    assert_true(dot(33 * 33, p.u, p.u) == 0.0);
    close_problem(&p);
    tg_status status = TG_E_MEMORY;
    for (long n = 1; status == TG_E_MEMORY; n++) {
        tg_mem_test_fail_at(n);
        status = tg_elliptic_create(pool(), 17, &solver);
        tg_mem_test_fail_at(0);
        tg_pool_clear(pool());
    }
    assert_int_equal(status, TG_OK);
}

/* ---- samples ---- */

/* a (61, 61) is 12 where the underlying field, summed from its cosines, is positive, and 3 where it
 * is negative. */
static void expect_permeability(const tg_field_key *key, const float *a) {
    enum { N = 61 };
    const tg_covariance covariance = {2.0, 3.0, tg_covariance_sigma(2.0, 3.0)};
    double *coefficients = malloc(sizeof *coefficients * N * N);
    int counted = 0;
    assert_non_null(coefficients);
    tg_grf_neumann(key, &covariance, N, coefficients);
    for (int i = 0; i < N; i += 10) {
        for (int j = 0; j < N; j += 6) {
            double g = 0.0;
            for (int k = 0; k < N * N; k++) {
                g += coefficients[k] * cos(PI * (k / N) * i / 60.0) * cos(PI * (k % N) * j / 60.0);
            }
            if (fabs(g) > 1e-6) {
                assert_true(a[i * N + j] == (g > 0.0 ? 12.0f : 3.0f));
                counted++;
            }
        }
    }
    assert_true(counted > 60);
    free(coefficients);
}

/* One sample on a fine grid, a part of it, and a grid that is no part. */
TEST(test_sample_on_grids) {
    const tg_pde *darcy = &tg_pde_darcy;
    double config[64]; /* room, aligned */
    memcpy(config, darcy->defaults, darcy->config_bytes);
    assert_int_equal(tg_pde_set(ctx, darcy, config, "grid", "61"), TG_OK);
    assert_int_equal(darcy->prepare(ctx, config, 61), TG_OK);
    const int64_t resolution[] = {61, 21, 32};
    const tg_pde_setup made = {.pool = pool(),
                               .be = be,
                               .batch = 1,
                               .config = config,
                               .views = 3,
                               .resolution = resolution};
    void *solver = NULL;
    assert_int_equal(tg_pde_open(darcy, &made, &solver), TG_OK);
    static float x[3][61 * 61], y[3][61 * 61];
    const tg_pde_view views[] = {{61, x[0], y[0]}, {21, x[1], y[1]}, {32, x[2], y[2]}};
    const tg_field_key key = tg_field_key_of(0, darcy->id, TG_SPLIT_TRAIN, 3);
    assert_int_equal(darcy->sample(solver, &key, views), TG_OK);
    int high = 0;
    for (int i = 0; i < 61 * 61; i++) {
        assert_true(x[0][i] == 3.0f || x[0][i] == 12.0f);
        high += x[0][i] == 12.0f;
    }
    assert_true(high > 100 && high < 61 * 61 - 100);
    expect_permeability(&key, x[0]);
    for (int i = 0; i < 21; i++) {
        for (int j = 0; j < 21; j++) {
            assert_true(x[1][i * 21 + j] == x[0][3 * i * 61 + 3 * j]);
            assert_true(y[1][i * 21 + j] == y[0][3 * i * 61 + 3 * j]);
        }
    }
    int same = 0;
    for (int i = 0; i < 32; i++) {
        for (int j = 0; j < 32; j++) {
            const int near = (60 * i + 15) / 31 * 61 + (60 * j + 15) / 31;
            same += x[2][i * 32 + j] == x[0][near];
            assert_true(fabsf(y[2][i * 32 + j] - y[0][near]) <= 1.2e-3f);
            assert_true(is_boundary(32, i, j) == (y[2][i * 32 + j] == 0.0f));
        }
    }
    assert_true(same > 32 * 32 * 8 / 10);
    tg_pool_clear(pool());
}

int main(void) {
    return t_run_tests(test_backend_begin, test_context_end);
}

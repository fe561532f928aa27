/* Flows on the GPU against the same flows on the CPU: several at once, on grids that are
 * transformed by each of the two ways. Skipped where there is no GPU. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "pde/fields.h"
#include "pde/vorticity.h"
#include "support/cmocka.h"

enum { FLOWS = 5 };

static tg_context *ctx;
static tg_backend *host, *device;
static tg_pool pool; /* of the flows of a test */

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2};
    if (tg_context_create(&config, &ctx) != TG_OK || tg_backend_open(ctx, "cpu", &host) != TG_OK) {
        return -1;
    }
    if (tg_backend_open(ctx, "cuda", &device) != TG_OK) {
        device = NULL;
    }
    pool.ctx = ctx;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tg_backend_close(&device);
    tg_backend_close(&host);
    tg_context_destroy(&ctx);
    return 0;
}

/* Random flows, each faster than the one before, with a forcing. */
static tg_vorticity *open_flows(tg_backend *be, int64_t grid) {
    const tg_vorticity_desc desc = {grid, 1.0, 0.001, 1.0, 0.02, FLOWS};
    tg_vorticity *v = NULL;
    assert_int_equal(tg_vorticity_create(&pool, be, &desc, &v), TG_OK);
    const int64_t modes = tg_vorticity_modes(v), reals = tg_vorticity_reals(v);
    for (uint32_t i = 0; i < FLOWS; i++) {
        const tg_field_key key = tg_field_key_of(1, 3, TG_SPLIT_TRAIN, i);
        const tg_covariance c = {2.5, 7.0, 18.5 * (1.0 + i)};
        tg_grf_periodic_2d(&key, &c, 1.0, modes, tg_vorticity_state(v) + i * reals);
        tg_vorticity_forcing(v)[i * reals + 2 * ((modes + 1) * (modes + 1) + 1)] = 0.1 * i;
    }
    return v;
}

TEST(test_as_on_the_cpu) {
    static const int64_t grids[] = {16, 22, 23, 45, 128, 256};
    if (!device) {
        skip();
    }
    for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
        tg_vorticity *a = open_flows(device, grids[g]), *b = open_flows(host, grids[g]);
        const int64_t reals = FLOWS * tg_vorticity_reals(a);
        assert_int_equal(tg_vorticity_advance(a, FLOWS, 0.3, NULL), TG_OK);
        assert_int_equal(tg_vorticity_advance(b, FLOWS, 0.3, NULL), TG_OK);
        const double *found = tg_vorticity_state(a), *expected = tg_vorticity_state(b);
        double apart = 0.0, most = 0.0;
        for (int64_t i = 0; i < reals; i++) {
            const double distance = fabs(found[i] - expected[i]);
            apart = distance <= apart ? apart : distance; /* NaN wins */
            most = fmax(most, fabs(expected[i]));
        }
        assert_true(apart <= 1e-9 * most);
        tg_pool_clear(&pool);
    }
}

/* Each flow has the bits that it has in other company: what is beside it and how many move. */
TEST(test_company) {
    static const int64_t grids[] = {32, 23, 27};
    if (!device) {
        skip();
    }
    for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
        tg_vorticity *a = open_flows(device, grids[g]), *b = open_flows(device, grids[g]);
        const int64_t reals = tg_vorticity_reals(a);
        double *state_a = tg_vorticity_state(a), *state_b = tg_vorticity_state(b);
        double *forcing_a = tg_vorticity_forcing(a), *forcing_b = tg_vorticity_forcing(b);
        const size_t bytes = (size_t)reals * sizeof(double);
        memcpy(state_b, state_a + 3 * reals, bytes); /* flow 3 of a is flow 0 of b, alone */
        memcpy(forcing_b, forcing_a + 3 * reals, bytes);
        assert_int_equal(tg_vorticity_advance(a, FLOWS, 0.3, NULL), TG_OK);
        assert_int_equal(tg_vorticity_advance(b, 1, 0.3, NULL), TG_OK);
        assert_memory_equal(state_a + 3 * reals, state_b, bytes);
        tg_pool_clear(&pool);
    }
}

int main(void) {
    return t_run_tests(setup, teardown);
}

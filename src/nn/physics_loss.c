/* Residuals r of equations, which training makes small beside the error against the data. Fields
 * are in the units of the data, v = mean + scale z; of each sample |r| / unit is added:
 *
 *   darcy    x = a, y = u on the unit square with its boundary, h_j = 1 / (N_j - 1), inner points
 * p: r_p = sum_q t_pq (u_p - u_q) / h_pq^2 - f,   t_pq = 2 a_p a_q / (a_p + a_q) over the four
 * neighbours q; unit = |f| sqrt(inner points), of f = 0 with 1 for |f| burgers  the last frame v of
 * x and y = u, a time dt later, on the unit circle, h = 1 / N: r = (u - v) / dt + (B(u) + B(v)) /
 * 2,   B(w) = D(w^2 / 2) - nu L w with central differences D and L; unit = |(target - v) / dt|, or
 * 1 if that is 0
 *
 * The gradient is J^T r / (unit |r|): J of Darcy is symmetric; D^T = -D, L^T = L. Residuals are
 * made again where their neighbours need them, so that nothing is stored. */
#include "nn/physics_loss.h"

#include <math.h>

#include "nn/reals.h"

/* One sample. */
typedef struct fields {
    const nn_physics *call;
    int64_t n, m; /* grid; of one dimension m is 1 */
    int64_t x, y; /* number of its first element, of the channel that is used */
} fields;

static double x_at(const fields *s, int64_t p) {
    const tg_loss_config *config = s->call->config;
    return config->x_mean + config->x_scale * nn_get_real(s->call->dtype, s->call->x, s->x + p);
}

static double y_at(const fields *s, const void *field, int64_t p) {
    const tg_loss_config *config = s->call->config;
    return config->y_mean + config->y_scale * nn_get_real(s->call->dtype, field, s->y + p);
}

/* ---- darcy ---- */

/* Number of the neighbour of p in direction d, 0 .. 3, and 1/h^2 towards it; -1: there is none. */
static int64_t darcy_neighbour(const fields *s, int64_t p, int d, double *weight) {
    const int64_t i = p / s->m, j = p % s->m, step = d % 2 ? 1 : -1;
    const int64_t n = d < 2 ? s->n : s->m, at = (d < 2 ? i : j) + step;
    *weight = (double)((n - 1) * (n - 1));
    return at < 0 || at >= n ? -1 : p + step * (d < 2 ? s->m : 1);
}

static bool is_inner(const fields *s, int64_t p) {
    const int64_t i = p / s->m, j = p % s->m;
    return i > 0 && i < s->n - 1 && j > 0 && j < s->m - 1;
}

static double permeability(const fields *s, int64_t p, int64_t q) {
    const double a = x_at(s, p), b = x_at(s, q);
    return a + b == 0.0 ? 0.0 : 2.0 * a * b / (a + b);
}

static double darcy_residual(const fields *s, int64_t p) {
    double sum = -s->call->config->physics_forcing;
    if (!is_inner(s, p)) {
        return 0.0;
    }
    for (int d = 0; d < 4; d++) {
        double weight;
        const int64_t q = darcy_neighbour(s, p, d, &weight);
        sum += weight * permeability(s, p, q) *
               (y_at(s, s->call->pred, p) - y_at(s, s->call->pred, q));
    }
    return sum;
}

static double darcy_slope(const fields *s, int64_t p) {
    const double here = darcy_residual(s, p);
    double sum = 0.0;
    for (int d = 0; d < 4; d++) {
        double weight;
        const int64_t q = darcy_neighbour(s, p, d, &weight);
        const double there = q < 0 ? 0.0 : darcy_residual(s, q);
        sum += q < 0 || here == there ? 0.0 : weight * permeability(s, p, q) * (here - there);
    }
    return sum;
}

static double darcy_unit(const fields *s) {
    const double f = fabs(s->call->config->physics_forcing);
    return (f == 0.0 ? 1.0 : f) * sqrt((double)((s->n - 2) * (s->m - 2)));
}

/* ---- burgers ---- */

typedef double (*frame_fn)(const fields *s, int64_t p);

static double last_frame(const fields *s, int64_t p) {
    return x_at(s, p);
}

static double predicted(const fields *s, int64_t p) {
    return y_at(s, s->call->pred, p);
}

static int64_t wrap(const fields *s, int64_t p) {
    return (p + s->n) % s->n;
}

/* B(w), w one of the two frames. */
static double burgers_operator(const fields *s, frame_fn w, int64_t p) {
    const double n = (double)s->n, nu = s->call->config->physics_viscosity;
    const double before = w(s, wrap(s, p - 1)), here = w(s, p), next = w(s, wrap(s, p + 1));
    return n / 4.0 * (next * next - before * before) - nu * n * n * (next - 2.0 * here + before);
}

static double burgers_residual(const fields *s, int64_t p) {
    return (predicted(s, p) - last_frame(s, p)) / s->call->config->physics_time +
           (burgers_operator(s, predicted, p) + burgers_operator(s, last_frame, p)) / 2.0;
}

static double burgers_slope(const fields *s, int64_t p) {
    const tg_loss_config *config = s->call->config;
    const double n = (double)s->n, here = burgers_residual(s, p);
    const double before = burgers_residual(s, wrap(s, p - 1));
    const double next = burgers_residual(s, wrap(s, p + 1));
    return here / config->physics_time - predicted(s, p) * n / 4.0 * (next - before) -
           config->physics_viscosity * n * n / 2.0 * (next - 2.0 * here + before);
}

static double burgers_unit(const fields *s) {
    double sum = 0.0;
    for (int64_t p = 0; p < s->n; p++) {
        const double change = y_at(s, s->call->target, p) - last_frame(s, p);
        sum += change * change;
    }
    return sum == 0.0 ? 1.0 : sqrt(sum) / s->call->config->physics_time;
}

/* ---- all of them ---- */

static const struct equation {
    const char *name;
    int n_dim;
    double (*residual)(const fields *s, int64_t p);
    double (*slope)(const fields *s, int64_t p); /* of |r|^2 / 2, by pred */
    double (*unit)(const fields *s);
} equations[] = {
    [TG_PHYSICS_DARCY] = {"darcy", 2, darcy_residual, darcy_slope, darcy_unit},
    [TG_PHYSICS_BURGERS] = {"burgers", 1, burgers_residual, burgers_slope, burgers_unit},
    [TG_PHYSICS_NS] = {"ns", 2, NULL, NULL, NULL}, /* flow_residual.c */
};

enum { EQUATIONS = sizeof equations / sizeof equations[0] };

tg_status nn_physics_check(tg_backend *be, const tg_loss_config *loss,
                           const tg_fno_config *network) {
    if (loss->physics == TG_PHYSICS_NONE) {
        return TG_OK;
    }
    if ((unsigned)loss->physics >= EQUATIONS) {
        return tg_fail(be->ctx, TG_E_CONFIG, "opt.physics: no such equation");
    }
    const struct equation *e = &equations[loss->physics];
    if (be->ops->place != TG_HOST) {
        return tg_fail(be->ctx, TG_E_UNSUPPORTED,
                       "opt.physics: backend %s has no residuals; leave it at none, or take "
                       "--backend cpu",
                       be->ops->name);
    }
    const bool has_channels = network->out_channels == 1 &&
                              (network->in_channels == 1 || loss->physics != TG_PHYSICS_DARCY);
    if (network->architecture != TG_ARCHITECTURE_FNO || network->complex_data ||
        network->n_dim != e->n_dim || !has_channels) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics: %s is an equation for one real field in %d dimension%s, found "
                       "%s data in %d, %lld -> %lld channels",
                       e->name, e->n_dim, e->n_dim == 1 ? "" : "s",
                       network->complex_data ? "complex" : "real", network->n_dim,
                       (long long)network->in_channels, (long long)network->out_channels);
    }
    if (!(loss->physics_weight >= 0.0 && loss->physics_weight <= 1e12)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_weight: expected a number in 0 .. 1e12, found %g",
                       loss->physics_weight);
    }
    if (loss->physics != TG_PHYSICS_DARCY && !(loss->physics_time > 0.0)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_time: %s needs the time from the last frame of x to y, above 0",
                       e->name);
    }
    if (!(loss->physics_length > 0.0)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_length: expected a number above 0, found %g",
                       loss->physics_length);
    }
    return TG_OK;
}

static void add_sample(const fields *s) {
    const nn_physics *call = s->call;
    const struct equation *e = &equations[call->config->physics];
    double sum = 0.0;
    for (int64_t p = 0; p < s->n * s->m; p++) {
        const double r = e->residual(s, p);
        sum += r * r;
    }
    const double norm = sqrt(sum), unit = e->unit(s), weight = call->config->physics_weight;
    if (norm == 0.0) {
        return;
    }
    *call->value += weight * norm / unit;
    const double factor = call->grad_scale * weight * call->config->y_scale / (unit * norm);
    for (int64_t p = 0; call->dpred && p < s->n * s->m; p++) {
        const double slope = isfinite(norm) ? factor * e->slope(s, p) : (double)NAN;
        nn_set_real(call->dtype, call->dpred, s->y + p,
                    nn_get_real(call->dtype, call->dpred, s->y + p) + slope);
    }
}

void nn_physics_add(const nn_physics *call) {
    const bool is_plane = equations[call->config->physics].n_dim == 2;
    const int64_t n = call->grid[0], m = is_plane ? call->grid[1] : 1;
    for (int64_t b = 0; b < call->batch; b++) {
        const fields s = {.call = call,
                          .n = n,
                          .m = m,
                          .x = ((b + 1) * call->in_channels - 1) * n * m,
                          .y = b * n * m};
        add_sample(&s);
    }
}

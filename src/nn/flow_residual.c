/* w_t + N(w) = 0, N(w) = u w_x + v w_y - nu Laplace w - f on [0, L)^2, periodic, with the velocity
 * of the stream function, -Laplace psi = w, u = psi_y, v = -psi_x. From the last frame w0 of x to y
 * = w, a time dt later,
 *
 *   r = (w - w0) / dt + (N(w) + N(w0)) / 2,   unit = |(target - w0) / dt|, or 1 if that is 0
 *
 * All derivatives are those of the trigonometric polynomial; products are taken at the points. The
 * maps D_x, D_y, U: w -> u and V: w -> v are antisymmetric, so that the gradient of |r|^2 / 2 is
 *
 *   r / dt + (-nu Laplace r - D_x(u r) - D_y(v r) - U(r w_x) - V(r w_y)) / 2 */
#include "nn/flow_residual.h"

#include <math.h>

#include "base/memory.h"
#include "nn/reals.h"

#define PI 3.14159265358979323846

/* Maps between fields: D_x, D_y, U, V, Laplace. */
typedef enum map { SLOPE_X, SLOPE_Y, VELOCITY_X, VELOCITY_Y, LAPLACE } map;

void nn_flow_free(tg_backend *be, nn_flow *flow) {
    if (be) {
        be->ops->fft_destroy(be, &flow->fft);
        tg_mem_free(be->ctx, flow->u);
        tg_mem_free(be->ctx, flow->spectrum);
    }
    *flow = (nn_flow){0};
}

tg_status nn_flow_prepare(tg_backend *be, int64_t n, int64_t m, nn_flow *flow) {
    enum { FIELDS = 6, SPECTRA = 2 };
    if (flow->fft && flow->n == n && flow->m == m) {
        return TG_OK;
    }
    tg_status status = TG_OK;
    const int64_t points = n * m;
    const tg_fft_desc desc = {.dtype = TG_F64,
                              .ndim = 2,
                              .grid = {n, m},
                              .kept = {n, m / 2 + 1},
                              .first = {-(n / 2), 0},
                              .howmany = 1};
    nn_flow_free(be, flow);
    flow->n = n;
    flow->m = m;
    flow->kept = n * (m / 2 + 1);
    TG_TRY(be->ops->fft_create(be, &desc, &flow->fft));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, flow->u, FIELDS * points));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, flow->spectrum, SPECTRA * 2 * flow->kept));
    double **const fields[] = {&flow->v, &flow->wx, &flow->wy, &flow->r, &flow->field};
    for (int i = 0; i < FIELDS - 1; i++) {
        *fields[i] = flow->u + (i + 1) * points;
    }
    flow->other = flow->spectrum + 2 * flow->kept;
fail:
    if (status != TG_OK) {
        nn_flow_free(be, flow);
    }
    return status;
}

/* What coefficient i is multiplied by: the real factor of Laplace, that of i for all others, which
 * leave out the highest frequency of an even grid: it has no sign. */
static double factor_of(const nn_flow *flow, double length, map which, int64_t i) {
    const int64_t half = flow->m / 2 + 1, a = i / half - flow->n / 2, b = i % half;
    const double unit = 2.0 * PI / length, kx = unit * (double)a, ky = unit * (double)b;
    const double square = kx * kx + ky * ky;
    const double odd_x = 2 * a == -flow->n ? 0.0 : kx, odd_y = 2 * b == flow->m ? 0.0 : ky;
    switch (which) {
    case SLOPE_X:
        return odd_x;
    case SLOPE_Y:
        return odd_y;
    case VELOCITY_X:
        return square == 0.0 ? 0.0 : odd_y / square;
    case VELOCITY_Y:
        return square == 0.0 ? 0.0 : -odd_x / square;
    case LAPLACE:
        break;
    }
    return -square;
}

/* to = scale * the map of `from`, added to what is there if `add` says so; both (kept, 2). */
static void multiply(const nn_flow *flow, double length, map which, double scale, bool add,
                     const double *from, double *to) {
    for (int64_t i = 0; i < flow->kept; i++) {
        const double factor = scale * factor_of(flow, length, which, i);
        const double re = from[2 * i], im = from[2 * i + 1];
        const double out[2] = {which == LAPLACE ? factor * re : -factor * im,
                               which == LAPLACE ? factor * im : factor * re};
        to[2 * i] = out[0] + (add ? to[2 * i] : 0.0);
        to[2 * i + 1] = out[1] + (add ? to[2 * i + 1] : 0.0);
    }
}

static tg_status forward(tg_backend *be, nn_flow *flow, const double *field) {
    return be->ops->fft_forward(be, flow->fft, 1, TG_FFT_PLAIN, 1.0, field, flow->spectrum);
}

static tg_status inverse(tg_backend *be, nn_flow *flow, double *field) {
    return be->ops->fft_inverse(be, flow->fft, 1, TG_FFT_PLAIN, 1.0 / (double)(flow->n * flow->m),
                                flow->other, field);
}

/* r += w / dt * sign + N(w) / 2, w in `field`; velocity and gradient stay behind. */
static tg_status add_frame(tg_backend *be, nn_flow *flow, const tg_loss_config *config,
                           double sign) {
    double *const out[] = {flow->wx, flow->wy, flow->u, flow->v};
    const int64_t points = flow->n * flow->m;
    for (int64_t p = 0; p < points; p++) {
        const double phase =
            2.0 * PI *
            ((double)(p / flow->m) / (double)flow->n + (double)(p % flow->m) / (double)flow->m);
        flow->r[p] += sign * flow->field[p] / config->physics_time -
                      config->physics_forcing / 2.0 * (sin(phase) + cos(phase));
    }
    TG_CALL(forward(be, flow, flow->field));
    for (int which = SLOPE_X; which <= VELOCITY_Y; which++) {
        multiply(flow, config->physics_length, (map)which, 1.0, false, flow->spectrum, flow->other);
        TG_CALL(inverse(be, flow, out[which]));
    }
    multiply(flow, config->physics_length, LAPLACE, 1.0, false, flow->spectrum, flow->other);
    TG_CALL(inverse(be, flow, flow->field));
    for (int64_t p = 0; p < points; p++) {
        flow->r[p] += (flow->u[p] * flow->wx[p] + flow->v[p] * flow->wy[p] -
                       config->physics_viscosity * flow->field[p]) /
                      2.0;
    }
    return TG_OK;
}

/* The gradient of |r|^2 / 2 but for r / dt, in `field`. */
static tg_status find_slope(tg_backend *be, nn_flow *flow, const tg_loss_config *config) {
    const double *const factors[] = {flow->u, flow->v, flow->wx, flow->wy}; /* by map */
    const double length = config->physics_length;
    TG_CALL(forward(be, flow, flow->r));
    multiply(flow, length, LAPLACE, -config->physics_viscosity / 2.0, false, flow->spectrum,
             flow->other);
    for (int which = SLOPE_X; which <= VELOCITY_Y; which++) {
        for (int64_t p = 0; p < flow->n * flow->m; p++) {
            flow->field[p] = factors[which][p] * flow->r[p];
        }
        TG_CALL(forward(be, flow, flow->field));
        multiply(flow, length, (map)which, -0.5, true, flow->spectrum, flow->other);
    }
    return inverse(be, flow, flow->field);
}

static tg_status add_sample(tg_backend *be, nn_flow *flow, const nn_physics *call, int64_t b) {
    const tg_loss_config *config = call->config;
    const int64_t points = flow->n * flow->m, y = b * points;
    const int64_t x = ((b + 1) * call->in_channels - 1) * points;
    double change = 0.0, sum = 0.0;
    for (int64_t p = 0; p < points; p++) {
        flow->r[p] = 0.0;
        flow->field[p] =
            config->x_mean + config->x_scale * nn_get_real(call->dtype, call->x, x + p);
        const double truth =
            config->y_mean + config->y_scale * nn_get_real(call->dtype, call->target, y + p);
        change += (truth - flow->field[p]) * (truth - flow->field[p]);
    }
    TG_CALL(add_frame(be, flow, config, -1.0));
    for (int64_t p = 0; p < points; p++) {
        flow->field[p] =
            config->y_mean + config->y_scale * nn_get_real(call->dtype, call->pred, y + p);
    }
    TG_CALL(add_frame(be, flow, config, 1.0));
    for (int64_t p = 0; p < points; p++) {
        sum += flow->r[p] * flow->r[p];
    }
    if (sum == 0.0) {
        return TG_OK;
    }
    const double norm = sqrt(sum), unit = change == 0.0 ? 1.0 : sqrt(change) / config->physics_time;
    *call->value += config->physics_weight * norm / unit;
    if (!call->dpred) {
        return TG_OK;
    }
    const double factor =
        call->grad_scale * config->physics_weight * config->y_scale / (unit * norm);
    TG_CALL(find_slope(be, flow, config));
    for (int64_t p = 0; p < points; p++) {
        const double slope = flow->r[p] / config->physics_time + flow->field[p];
        nn_set_real(call->dtype, call->dpred, y + p,
                    nn_get_real(call->dtype, call->dpred, y + p) +
                        (isfinite(norm) ? factor * slope : (double)NAN));
    }
    return TG_OK;
}

tg_status nn_flow_add(tg_backend *be, nn_flow *flow, const nn_physics *call) {
    TG_CALL(nn_flow_prepare(be, call->grid[0], call->grid[1], flow));
    for (int64_t b = 0; b < call->batch; b++) {
        TG_CALL(add_sample(be, flow, call, b));
    }
    return TG_OK;
}

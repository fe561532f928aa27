/* From the last frame w0 of x to y = w, a time dt later, with N of backend/nn.h,
 *
 *   r = (w - w0) / dt + (N(w) + N(w0)) / 2,   unit = |(target - w0) / dt|, or 1 if that is 0
 *
 * The maps D_x, D_y, U: w -> u and V: w -> v are antisymmetric; the gradient of |r|^2 / 2 is
 *
 *   r / dt + (-nu Laplace r - D_x(u r) - D_y(v r) - U(r w_x) - V(r w_y)) / 2 */

#include "nn/losses.h"

/* Arrays of all fields, and of all spectra. */
enum { FIELDS = 5, SPECTRA = 2 };

static int64_t numbers_of(int64_t samples, int64_t n, int64_t m) {
    return samples * (FIELDS * n * m + SPECTRA * 2 * n * (m / 2 + 1));
}

tg_status nn_flow_prepare(tg_backend *be, int64_t samples, int64_t n, int64_t m, nn_flow *flow) {
    const tg_fft_desc desc = nn_transforms_of(2, (int64_t[]){n, m}, false, samples);
    TG_CALL(nn_transforms_prepare(be, &desc, numbers_of(samples, n, m), &flow->all));
    const int64_t field = flow->all.desc.howmany * n * m;
    flow->u = flow->all.memory;
    flow->v = flow->u + field;
    flow->wx = flow->v + field;
    flow->wy = flow->wx + field;
    flow->r = flow->wy + field;
    flow->spectrum = flow->r + field;
    flow->other = flow->spectrum + flow->all.desc.howmany * 2 * n * (m / 2 + 1);
    return TG_OK;
}

tg_status nn_flow_plan(tg_backend *be, int64_t samples, int64_t n, int64_t m, size_t *bytes,
                       size_t *host) {
    const tg_fft_desc desc = nn_transforms_of(2, (int64_t[]){n, m}, false, samples);
    return nn_transforms_plan(be, &desc, numbers_of(samples, n, m), bytes, host);
}

/* The arguments of a call, for all samples of `of`. */
typedef struct frames {
    tg_backend *be;
    nn_flow *flow;
    const tg_residual *of;
    double length;
    double *field; /* to be transformed */
} frames;

static tg_status at_points(const frames *f, tg_equation part, const double *by) {
    const nn_flow *flow = f->flow;
    tg_residual op = *f->of;
    op.equation = part;
    op.u = flow->u;
    op.v = flow->v;
    op.wx = flow->wx;
    op.wy = flow->wy;
    op.by = by;
    op.r = flow->r;
    op.field = f->field;
    return f->be->ops->residual(f->be, &op);
}

/* other = factor map(spectrum), or += .. */
static tg_status map_spectrum(const frames *f, tg_vorticity_map map, double factor, bool adds) {
    tg_residual op = *f->of;
    op.equation = TG_VORTICITY_MAP;
    op.map = map;
    op.length = f->length;
    op.factor = factor;
    op.adds = adds;
    op.from = f->flow->spectrum;
    op.to = f->flow->other;
    return f->be->ops->residual(f->be, &op);
}

static tg_status forward(const frames *f, const double *field) {
    return f->be->ops->fft(f->be, f->flow->all.fft, TG_FFT_FORWARD, f->of->batch, TG_FFT_PLAIN, 1.0,
                           field, f->flow->spectrum);
}

static tg_status inverse(const frames *f, double *field) {
    return f->be->ops->fft(f->be, f->flow->all.fft, TG_FFT_INVERSE, f->of->batch, TG_FFT_PLAIN,
                           1.0 / (double)(f->of->n * f->of->m), f->flow->other, field);
}

/* A frame's part of r; leaves its velocity and gradient in `flow`. */
static tg_status add_frame(const frames *f, tg_equation which) {
    const nn_flow *flow = f->flow;
    double *const out[] = {flow->wx, flow->wy, flow->u, flow->v, f->field}; /* by map */
    TG_CALL(at_points(f, which, NULL));
    TG_CALL(forward(f, f->field));
    for (int map = TG_VORTICITY_SLOPE_X; map <= TG_VORTICITY_LAPLACE; map++) {
        TG_CALL(map_spectrum(f, (tg_vorticity_map)map, 1.0, false));
        TG_CALL(inverse(f, out[map]));
    }
    return at_points(f, TG_VORTICITY_MOVE, NULL);
}

static tg_status find_slope(const frames *f) {
    const nn_flow *flow = f->flow;
    const double *const by[] = {flow->u, flow->v, flow->wx, flow->wy}; /* by map */
    TG_CALL(forward(f, flow->r));
    TG_CALL(map_spectrum(f, TG_VORTICITY_LAPLACE, -f->of->viscosity / 2.0, false));
    for (int map = TG_VORTICITY_SLOPE_X; map <= TG_VORTICITY_SPEED_Y; map++) {
        TG_CALL(at_points(f, TG_VORTICITY_TIMES, by[map]));
        TG_CALL(forward(f, f->field));
        TG_CALL(map_spectrum(f, (tg_vorticity_map)map, -0.5, true));
    }
    return inverse(f, f->field);
}

tg_status nn_flow_find(tg_backend *be, nn_flow *flow, const tg_residual *of, double length,
                       bool wants_slope, double *field) {
    const frames f = {.be = be, .flow = flow, .of = of, .length = length, .field = field};
    TG_CALL(add_frame(&f, TG_VORTICITY_BEGIN));
    TG_CALL(add_frame(&f, TG_VORTICITY_END));
    return wants_slope ? find_slope(&f) : TG_OK;
}

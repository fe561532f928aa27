/* Operands of the neural-operator slots.
 *
 * Activations are real, (batch, channels, pixels) with the pixels of a channel contiguous; complex
 * data are two such arrays, called planes, of real and of imaginary parts. dtype is f32 or f64
 * here, spectra are its complex type; weights, biases and their gradients have that precision,
 * while activations and spectra may be stored in 16 bits (`store`). Gradients of weights are
 * accumulated
 * (+=), everything else is overwritten unless there is a beta; beta = 0 never reads the output.
 * `backward` selects the direction, which ignores the pointers of the other one. */
#ifndef TG_BACKEND_NN_H
#define TG_BACKEND_NN_H

#include "base/rng.h"
#include "tgrad/tensor.h"

/* Storage of an array of a float dtype: full, or a 16-bit format converted on each access to f32.
 * 16-bit storage is for dtypes f32 and c64 only. */
typedef enum tg_storage { TG_STORE_FULL, TG_STORE_BF16, TG_STORE_F16 } tg_storage;

/* The dtype of stored elements of `dtype`. */
tg_dtype tg_stored(tg_dtype dtype, tg_storage store);
/* The storage of an array of `dtype`, seen as one of tg_dtype_wide(dtype). */
tg_storage tg_storage_of(tg_dtype dtype);

/* Elementwise. GELU is the exact x Phi(x), SiLU x / (1 + e^-x); tuned backends are within 1e-6. */
typedef enum tg_act { TG_ACT_NONE, TG_ACT_GELU, TG_ACT_TANH, TG_ACT_RELU, TG_ACT_SILU } tg_act;

/* Copies a box of each of `howmany` arrays: dst[h, dst_at + i] = src[h, src_at + i] for
 * 0 <= i < size. Float dtypes, real or complex. */
typedef struct tg_box {
    tg_dtype dtype;
    int ndim; /* 1 .. 3 */
    int64_t howmany;
    int64_t size[3];
    int64_t src_dim[3], src_at[3]; /* src is (howmany, src_dim..) */
    int64_t dst_dim[3], dst_at[3];
    bool clear; /* dst outside the box becomes 0; otherwise it is unchanged */
    const void *src;
    void *dst;
} tg_box;

/* y (batch, channels + ndim, grid..) = x (batch, channels, grid..), followed by one channel
 * unit * i_j / grid_j per dimension j. Without x the first channels of y are unchanged. The grid is
 * rows `first` .. of one with `whole` rows in dimension 0. */
typedef struct tg_embed {
    tg_dtype dtype;
    int64_t batch, channels;
    int ndim; /* 1 .. 3 */
    int64_t grid[3];
    int64_t first, whole; /* 0 and grid[0] for all of it */
    double unit;          /* 1; 0 for the plane of imaginary parts */
    const void *x;        /* may be NULL */
    void *y;
} tg_embed;

/* Planes {re, im} of n numbers to interleaved pairs, or back if from[1] is NULL. Real dtypes. */
typedef struct tg_planes {
    tg_dtype dtype;
    int64_t n;
    const void *from[2];
    void *to[2];
} tg_planes;

/* y = act(x), or y = dy act'(x) if there is a dy. y may be x or dy. */
typedef struct tg_activation {
    tg_dtype dtype;
    tg_act act;
    int64_t n;
    const void *x, *dy;
    void *y;
} tg_activation;

/* S u, the linear map of a skip connection at a pixel. */
typedef enum tg_skip_map {
    TG_SKIP_MAP_NONE,     /* 0: only the bias */
    TG_SKIP_MAP_IDENTITY, /* u */
    TG_SKIP_MAP_GATE,     /* weight[c] u[c] */
    TG_SKIP_MAP_LINEAR    /* weight (out, in) times u */
} tg_skip_map;

/* A skip connection with the sum around it, u = act(x):
 *   forward   y = beta y + alpha S u + bias
 *   backward  dweight += alpha sum dy u^T (GATE: its diagonal);  dbias += sum dy;
 *             dx = (beta dx + alpha S^T dy) [act'(x) if through], with respect to u otherwise;
 *             dx may be dy unless LINEAR. */
typedef struct tg_skip {
    tg_dtype dtype;
    bool backward;
    tg_skip_map kind;
    int64_t batch, in, out, pixels; /* in == out unless LINEAR */
    tg_act act;
    bool through;
    const void *weight; /* LINEAR (out, in), GATE (out), else NULL */
    const void *bias;   /* (out); NULL: none */
    double alpha, beta;
    const void *x; /* (batch, in, pixels); NONE: NULL, backward without dweight and act: NULL */
    void *y;       /* (batch, out, pixels) */
    const void *dy;
    void *dweight, *dbias; /* like weight and bias; may be NULL */
    void *dx;              /* (batch, in, pixels); may be NULL */
    void *workspace;       /* tg_workspace_bytes() bytes */
    tg_storage store;      /* of x, y, dy and dx */
} tg_skip;

/* An MLP with one hidden layer at every pixel, u = act(x):
 *   f(u) = D2 (w2 D1 hidden_act(w1 u + b1) + b2)
 *   forward   y = beta y + alpha f(u) + gate add;  activated = gelu(y)
 *   backward  dw1, db1, dw2, db2 += those of alpha f for dy at y;
 *             dx = (beta dx + alpha f'^T dy) [act'(x) if through], with respect to u otherwise.
 * The hidden layer is never stored: backward recomputes it tile by tile. D1 and D2 are dropout:
 * element e of the hidden layer (batch, hidden, pixels) survives, divided by 1 - dropout, if
 * uniform(rng, stream + e) >= dropout; e continues through the output. */
typedef struct tg_mlp {
    tg_dtype dtype;
    bool backward;
    int64_t batch, in, hidden, out, pixels;
    tg_act act;
    tg_act hidden_act; /* NONE: GELU */
    bool through;
    const void *w1; /* (hidden, in) */
    const void *b1; /* (hidden) */
    const void *w2; /* (out, hidden) */
    const void *b2; /* (out) */
    double alpha, beta;
    double dropout; /* 0: none */
    tg_rng rng;
    uint64_t stream;
    const void *x;    /* (batch, in, pixels) */
    void *y;          /* (batch, out, pixels); may be x if in == out and beta is 0 */
    const void *add;  /* (batch, out, pixels); NULL: none */
    const void *gate; /* (out); NULL: ones */
    void *activated;  /* (batch, out, pixels), may be y (then overwritten) or add; NULL: none */
    const void *dy;   /* (batch, out, pixels) */
    void *dw1, *db1, *dw2, *db2;
    void *dx;                    /* (batch, in, pixels), may be x if beta is 0; may be NULL */
    void *workspace;             /* tg_workspace_bytes() bytes */
    tg_storage x_store, y_store; /* of x and dx; of y, add, activated and dy */
    bool x_quantized; /* backward: x is quantized to 8 bits (quantize.h), beta is 0 and dx is
                         elsewhere; only if tg_has() it */
} tg_mlp;

/* A block of a Fourier neural operator in one call, u = act(x):
 *   z1 = scale F^-1(spectrum) + skip u + bias
 *   z2 = w2 gelu(w1 act1(z1) + b1) + b2 + gate u;  activated = gelu(z2)
 * Real data, the inverse transform as of fft with weights TG_FFT_PLAIN. Alignment 16 bytes. */
typedef struct tg_block {
    tg_dtype dtype;
    int64_t batch, channels, hidden; /* hidden 0: no MLP, only z1 is computed */
    const struct tg_fft_desc *desc;  /* of the transform */
    struct tg_fft_plan *fft;         /* its plan; not for tg_workspace_bytes() */
    double scale;
    const void *spectrum; /* (batch, channels, modes) */
    const void *x;        /* (batch, channels, pixels) */
    tg_act act;
    const void *skip;                /* (channels, channels) */
    const void *bias;                /* (channels); NULL: none */
    tg_act act1;                     /* NONE or GELU */
    const void *w1, *b1, *w2, *b2;   /* as of tg_mlp */
    bool adds;                       /* gate u */
    const void *gate;                /* (channels); NULL: ones */
    void *z1, *z2, *activated;       /* like x, may be NULL. The last one given may be x */
    bool z1_quantized, z2_quantized; /* quantized to 8 bits (quantize.h), not in place of x */
    void *workspace;                 /* tg_workspace_bytes() bytes */
    tg_storage store;                /* of x, z1, z2 and activated */
} tg_block;

/* Backward through the sums of such a block, u = act(x), from dz1 at z1 and dz2 at z2:
 *   dx = (scale F^-1(spectrum) + skip^T dz1 + gate dz2) [act'(x) if through], with respect to u
 *        otherwise; may be x, dz1 or dz2;
 *   dskip += sum dz1 u^T;  dbias += sum dz1;  dgate += the diagonal of sum dz2 u^T.
 * The inverse transform as of fft with weights TG_FFT_ADJOINT; arrays aligned as in tg_block. */
typedef struct tg_block_back {
    tg_dtype dtype;
    int64_t batch, channels;
    const struct tg_fft_desc *desc; /* of the transform */
    struct tg_fft_plan *fft;        /* its plan; not for tg_workspace_bytes() */
    double scale;
    const void *spectrum; /* (batch, channels, modes) */
    const void *x;        /* (batch, channels, pixels) */
    tg_act act;
    bool through;
    const void *skip;            /* (channels, channels) */
    const void *gate;            /* (channels); NULL: ones */
    const void *dz1, *dz2;       /* like x */
    void *dskip, *dbias, *dgate; /* like skip and gate; the latter two may be NULL */
    void *dx;                    /* like x */
    void *workspace;             /* tg_workspace_bytes() bytes */
    tg_storage store;            /* of x, dz1, dz2 and dx */
    bool x_quantized;            /* x is quantized to 8 bits (quantize.h), dx elsewhere */
} tg_block_back;

/* A norm whose groups are spread over several arrays is computed in two calls for each. */
typedef enum tg_norm_part {
    TG_NORM_ALL,
    TG_NORM_MEASURE, /* stats of these pixels; backward the means, dweight and dbias of them */
    TG_NORM_APPLY    /* y from given stats; backward dx from given means */
} tg_norm_part;

/* y = (x - mean) / sqrt(variance + eps) * weight[c] + bias[c], mean and (biased) variance over the
 * pixels of a channel of a sample (per_channel: instance norm) or over the whole sample (one
 * group). Backward reads x, stats and dy. */
typedef struct tg_norm {
    tg_dtype dtype;
    bool backward;
    tg_norm_part part;
    int64_t batch, channels, pixels;
    bool per_channel;
    double eps;
    const void *weight, *bias; /* (channels); NULL: 1 and 0 */
    const void *x;             /* (batch, channels, pixels) */
    double *stats;             /* (groups, 2): mean, 1 / sqrt(variance + eps); forward writes it */
    void *y;                   /* may not be x */
    const void *dy;
    void *dweight, *dbias; /* (channels), +=; may be NULL */
    void *dx;              /* may be x or dy */
    double *means;    /* (groups, 2) of parts, backward: mean of dn and of dn n, dn = dy weight,
                         n = the normalised x */
    tg_storage store; /* of x, y, dy and dx */
} tg_norm;

/* The spectral convolution at the kept modes, all arrays complex:
 *   forward   dst (batch, out, modes): dst[b,o,k] = sum_i src[b,i,k] weight[i,o,k]
 *   adjoint   dst (batch, in, modes):  dst[b,i,k] = sum_o src[b,o,k] conj(weight[i,o,k])
 * (The gradient of the weight is grad_dense, from the factors.) */
typedef struct tg_spectral {
    tg_dtype dtype; /* c64 or c128 */
    bool adjoint;
    int64_t batch, in, out, modes;
    const void *weight; /* (in, out, modes) */
    const void *src;    /* (batch, in or out, modes) */
    void *dst;
    tg_storage weight_store, store; /* of weight; of src and dst */
} tg_spectral;

/* The last two modes of a Tucker weight, all arrays complex: planes (d1, d2) of planes (r1, r2),
 *   weight[p] = left core[p] right^T;
 * and from the gradient at the weight, which is not changed,
 *   dcore[p] = left^H weight[p] conj(right),  dleft = sum_p weight[p] conj(right) core[p]^H,
 *   dright = sum_p weight[p]^T conj(left core[p]). */
typedef struct tg_two_modes {
    tg_dtype dtype;
    bool backward;
    int64_t planes, d1, d2, r1, r2;
    const void *core;  /* (planes, r1, r2) */
    const void *left;  /* (d1, r1) */
    const void *right; /* (d2, r2) */
    void *weight;      /* (planes, d1, d2): forward writes it, backward reads its gradient */
    void *dcore, *dleft, *dright;
} tg_two_modes;

/* The spectral product between two maps of channels, for every sample and mode, all arrays complex;
 * a and b are intermediate:
 *   forward  a = map_in^T src,   b[o] = sum_i a[i] weight[i,o],        dst = map_out b
 *   adjoint  b = map_out^H src,  a[i] = sum_o b[o] conj(weight[i,o]),  dst = conj(map_in) a */
typedef struct tg_mapped {
    tg_dtype dtype;
    bool adjoint;
    int64_t batch, channels, in, out, modes;
    const void *map_in, *map_out; /* (channels, in), (channels, out) */
    const void *weight;           /* (in, out, modes) */
    const void *src;              /* (batch, channels, modes) */
    void *inner_in, *inner_out; /* (batch, in, modes) a, (batch, out, modes) b: both are written */
    void *dst;                  /* like src */
} tg_mapped;

/* Its gradients, sums over samples, from the a and b of both directions: dmap_in = sum conj(x)
 * da^T, dmap_out = sum dy b^H, dweight[i,o,k] = sum conj(a[i,k]) db[o,k]. */
typedef struct tg_map_gradients {
    tg_dtype dtype;
    int64_t batch, channels, in, out, modes;
    const void *x, *dy;                 /* (batch, channels, modes) */
    const void *inner_in, *dinner_in;   /* (batch, in, modes): a, da */
    const void *inner_out, *dinner_out; /* (batch, out, modes): b, db */
    void *dmap_in, *dmap_out, *dweight;
} tg_map_gradients;

enum { TG_LOSS_WEIGHTS = 8 }; /* maximum number of weighted channels */

typedef enum tg_loss_norm {
    TG_LOSS_NORM_LP,   /* (sum |e|^p)^(1/p) */
    TG_LOSS_NORM_H1,   /* sqrt(sum |e|^2 + sum_j |D_j e|^2), D_j e = (e[i+1] - e[i-1]) N_j / 2 */
    TG_LOSS_NORM_GIVEN /* of squares and slopes already computed: pred and target are ignored */
} tg_loss_norm;

/* value += sum over images of its weight times |pred - target| / |target| (relative; a target of
 * norm 0 divides by 1) or (1 / points)^(1/p) |pred - target| (absolute, p = 2 for H1), and its
 * gradient times grad_scale, dpred = beta dpred + .. (0 where pred equals target; NaN for an image
 * whose loss is not finite). Sums are accumulated in f64 in a fixed order. */
typedef struct tg_loss_op {
    tg_dtype dtype;  /* of one number: f32 or f64 */
    int components;  /* 2: pairs {re, im}, |.| is the modulus; 1: real */
    int64_t images;  /* batch * channels, each with its own norm */
    int ndim;        /* 1 .. 3 */
    int64_t grid[3]; /* pred is (images, grid.., components) */
    tg_loss_norm norm;
    double p; /* >= 1 */
    bool relative;
    double weight, beta;
    int channels; /* image i is of channel i % channels, with the additional factor .. */
    double channel_weight[TG_LOSS_WEIGHTS]; /* .. here; no channels: 1 */
    double grad_scale;                      /* of the gradient only */
    const void *pred, *target;
    void *dpred;         /* may be NULL */
    double *value;       /* (1), in the backend's memory; may be NULL */
    double *powers;      /* (images, 2), there: sum |e|^p or |e|_H1^2, and the same of the target if
                            relative, else 0; may be NULL. If the norm is given, input: |e|^2 and,
                            if relative, |target|^2 */
    const double *slope; /* (images, grid.., components), if the norm is given and a gradient
                            wanted: that of |e|^2 / 2 */
    /* Of slabs: pred and target have grid[0] of `whole` rows (0: all), and of LP or H1 a first call
       sets their powers alone, another one has the sums over all slabs as input */
    int64_t whole;
    bool is_measured;
    const void *pred_edges, *target_edges; /* H1: (images, 4, .., components), the 2 rows before and
                                              the 2 after the slab, with wrap */
} tg_loss_op;

#ifdef __CUDACC__
#define TG_LOSS_FN static __host__ __device__ inline
#else
#define TG_LOSS_FN static inline
#endif

/* Factor of image i. */
TG_LOSS_FN double tg_loss_weight(const tg_loss_op *op, int64_t i) {
    return op->channels > 0 ? op->weight * op->channel_weight[i % op->channels] : op->weight;
}

/* Points of the whole grid along dimension d. */
TG_LOSS_FN int64_t tg_loss_size(const tg_loss_op *op, int d) {
    return d == 0 && op->whole > 0 ? op->whole : op->grid[d];
}

/* Numbers of an image's edges. */
TG_LOSS_FN int64_t tg_loss_edges(const tg_loss_op *op) {
    int64_t numbers = 4 * op->components;
    for (int d = 1; d < op->ndim; d++) {
        numbers *= op->grid[d];
    }
    return numbers;
}

/* The number of row `to` along dimension d: with wrap or, of a slab's n rows, among these and the
 * edges after them. */
TG_LOSS_FN int64_t tg_loss_row(int64_t to, int64_t n, bool has_edges) {
    if (has_edges) {
        return to < 0 ? n + 2 + to : to < n ? to : to + 2;
    }
    return (to % n + n) % n;
}

/* Sobolev norms of fields on the unit periodic grid of P points, by their spectra
 * X_k = sum_x v(x) exp(-2 pi i k.x):
 *
 *   squares[2 n] = 1/P sum_k w_k |X_k|^2 of image n,   w_k = (1 + |2 pi k|^2)^order
 *
 * and X_k *= w_k if `weighs` is set. Frequencies are all -(N/2) .. of each dimension, for the last
 * one of real fields 0 .. N/2: those that represent two count twice. In f64. */
typedef struct tg_sobolev {
    bool complex; /* fields are */
    int ndim;     /* 1 .. 3 */
    int64_t grid[3];
    int64_t images;
    double order;
    bool weighs;
    double *spectrum; /* (images, K.., 2), K = N but N/2 + 1 in the last dimension of real fields */
    double *squares;  /* (images, 2), of which the first ones are written */
} tg_sobolev;

/* Residuals r of equations, for losses whose norm is given: powers = {|r|^2, unit^2} of each sample
 * and, if not NULL, slope = the gradient of |r|^2 / 2 by pred. Fields are in the units of the data,
 * v = mean + scale z of the stored z:
 *
 *   DARCY    x = a, y = u on the unit square with its boundary, h_j = 1 / (N_j - 1); at inner
 *            points p r_p = sum_q t_pq (u_p - u_q) / h_pq^2 - f,  t_pq = 2 a_p a_q / (a_p + a_q)
 *            over the four neighbours q; unit = |f| sqrt(inner points), of f = 0 with 1 for |f|
 *   BURGERS  the last frame v of x and y = u, a time dt later, on the unit circle, h = 1 / N:
 *            r = (u - v) / dt + (B(u) + B(v)) / 2,  B(w) = D(w^2 / 2) - nu L w with central
 *            differences D and L; unit = |(target - v) / dt|
 *   FLOW     r and the rest of the slope, without r / dt, are given; unit as of burgers
 *
 * or a part of the r of FLOW, the vorticity equation on the periodic square [0, L)^2,
 *
 *   w_t + N(w) = 0,   N(w) = u w_x + v w_y - nu Laplace w - A (sin 2 pi s + cos 2 pi s),
 *
 * s = (x + y) / L, with the velocity of the stream function, -Laplace psi = w, u = psi_y,
 * v = -psi_x, from the last frame w0 of x and w of pred; all in f64. Derivatives are those of the
 * trigonometric polynomial, products are taken at the points (nn/flow_residual.c). */
typedef enum tg_equation {
    TG_EQUATION_DARCY,
    TG_EQUATION_BURGERS,
    TG_EQUATION_FLOW,
    TG_VORTICITY_BEGIN, /* field = w0,  r = -w0 / dt - A/2 (sin + cos) */
    TG_VORTICITY_END,   /* field = w,  r += w / dt - A/2 (sin + cos) */
    TG_VORTICITY_MOVE,  /* r += (u wx + v wy - nu field) / 2 */
    TG_VORTICITY_TIMES, /* field = by r */
    TG_VORTICITY_MAP    /* to = factor map(from), or to += if it adds */
} tg_equation;

/* Maps of spectra; all but Laplace omit the highest frequency of an even grid. */
typedef enum tg_vorticity_map {
    TG_VORTICITY_SLOPE_X, /* w -> w_x */
    TG_VORTICITY_SLOPE_Y, /* w -> w_y */
    TG_VORTICITY_SPEED_X, /* w -> u */
    TG_VORTICITY_SPEED_Y, /* w -> v */
    TG_VORTICITY_LAPLACE
} tg_vorticity_map;

typedef struct tg_residual {
    tg_equation equation;
    tg_dtype dtype; /* f32 or f64 */
    int64_t batch, in_channels;
    int64_t n, m;           /* grid; of one dimension m is 1 */
    double x_mean, x_scale; /* units */
    double y_mean, y_scale;
    double forcing, viscosity, time; /* f or A, nu, dt */
    const void *x;             /* (batch, in_channels, n, m), of which the last channel is used */
    const void *pred, *target; /* (batch, n, m) */
    const double *residual, *rest; /* (batch, n, m), of a flow; rest: if a slope is wanted */
    double *powers;                /* (batch, 2) */
    double *slope;                 /* (batch, n, m); may be rest */
    /* parts of a flow */
    const double *u, *v, *wx, *wy, *by; /* (batch, n, m), as the next two */
    double *r, *field;
    tg_vorticity_map map;
    double length, factor; /* L */
    bool adds;
    const double *from; /* (batch, n, m / 2 + 1, 2), rows from frequency -(n / 2) on */
    double *to;
} tg_residual;

/* ---- flow ---- */

/* Operands of the slot for flow in two dimensions: the steps between Fourier transforms of
 * w_t + u.grad w = nu Laplace w + f on a periodic square (pde/vorticity.c), in f64, for several
 * flows at once. Arrays must not alias.
 *
 * A spectrum is (flows, 2K + 1, K + 1) complex, row k1 + K, and q = 2 pi k / length is the wave
 * vector of k = (k1, k2). Fields on the grid are (flows, 2, N, N). */

typedef struct tg_flow {
    int64_t flows;
    int64_t grid;  /* N */
    int64_t modes; /* K */
    double length; /* of the square's side */
} tg_flow;

/* The stages are those of a Runge-Kutta step with an integrating factor:
 * slope = forcing + q1 q2 D + (q1^2 - q2^2) P, and e = decay[k1] decay[k2]. */
typedef enum tg_flow_part {
    TG_FLOW_VELOCITY, /* velocity = i q2 w / q^2 and -i q1 w / q^2, 0 at q = 0 */
    TG_FLOW_PRODUCTS, /* (u, v) in values becomes (u v, v^2 - u^2); speed = the largest |u| + |v|,
                         NaN if one is NaN */
    TG_FLOW_DECAY,    /* decay = e^{-viscosity q^2 dt / 2}, q of wave number k = -K .. K */
    TG_FLOW_STAGE_0,  /* next = e (state + dt/2 slope);  sum = e^2 (state + dt/6 slope) */
    TG_FLOW_STAGE_1,  /* next = e state + dt/2 slope;  sum += e dt/3 slope */
    TG_FLOW_STAGE_2,  /* next = e (e state + dt slope);  sum += e dt/3 slope */
    TG_FLOW_STAGE_3   /* state = sum + dt/6 slope */
} tg_flow_part;

typedef struct tg_flow_op {
    tg_flow of;
    tg_flow_part part;
    double viscosity;
    const double *dt;       /* (flows) */
    double *decay;          /* (flows, 2K + 1) */
    const double *w;        /* a spectrum */
    double *velocity;       /* (flows, 2, 2K + 1, K + 1) complex */
    double *values;         /* (flows, 2, N, N) */
    double *speed;          /* (flows) */
    const double *products; /* (flows, 2, 2K + 1, K + 1) complex: P of u v, D of v^2 - u^2 */
    const double *forcing;  /* a spectrum, as the next three */
    double *state, *next, *sum;
} tg_flow_op;

#endif

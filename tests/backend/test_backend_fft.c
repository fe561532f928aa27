/* Pruned Fourier transforms of every backend.
 *
 * Unit vectors show every entry of the transform's matrix, forward and inverse, and are compared
 * with cosines and sines; together with linearity that is the whole definition. Then the
 * properties that users rest on: shift, Parseval, round trip, and <F x, Y> = <x, F^adj Y>. A row's
 * dtype is that of the data on the grid: complex dtypes run complex plans. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "support/runner.h"

/* ---- grids and windows ---- */

static const struct {
    int ndim;
    int64_t size[3];
} grids[] = {{1, {1}},       {1, {2}},      {1, {3}},     {1, {7}},       {1, {8}},
             {1, {13}},      {1, {16}},     {2, {1, 1}},  {2, {5, 7}},    {2, {8, 6}},
             {2, {1, 9}},    {2, {10, 1}},  {2, {2, 13}}, {3, {1, 1, 1}}, {3, {2, 2, 2}},
             {3, {4, 3, 5}}, {3, {3, 5, 4}}};

/* Which frequencies are kept, dimension by dimension. */
typedef enum window {
    ALL_CENTRED,    /* all, -(N/2) .. */
    HALF_CENTRED,   /* about half of them */
    HALF_FROM_ZERO, /* 0 .. */
    HALF_FROM_LOW,  /* -(N-1) ..: wraps to 1 .. */
    FEW_CENTRED,    /* about an eighth */
    ONE_AT_TOP,     /* N-1 alone, that is -1 */
    WINDOWS
} window;

static tg_fft_desc describe(tg_dtype dtype, int ndim, const int64_t *size, window kind,
                            int64_t howmany) {
    tg_fft_desc desc = {.dtype = tg_dtype_real(dtype),
                        .complex = tg_dtype_is_complex(dtype),
                        .ndim = ndim,
                        .howmany = howmany};
    for (int d = 0; d < ndim; d++) {
        const int64_t n = size[d];
        const bool halved = !desc.complex && d == ndim - 1;
        const int64_t most = halved ? n / 2 + 1 : n;
        const int64_t kept = kind == ALL_CENTRED   ? most
                             : kind == ONE_AT_TOP  ? 1
                             : kind == FEW_CENTRED ? (most + 7) / 8
                                                   : (most + 1) / 2;
        const int64_t firsts[WINDOWS] = {-(kept / 2), -(kept / 2), 0, 1 - n, -(kept / 2), n - 1};
        desc.grid[d] = n;
        desc.kept[d] = kept;
        desc.first[d] = halved ? 0 : firsts[kind];
    }
    return desc;
}

static int64_t points(const tg_fft_desc *desc) {
    int64_t n = 1;
    for (int d = 0; d < desc->ndim; d++) {
        n *= desc->grid[d];
    }
    return n;
}

static int64_t modes(const tg_fft_desc *desc) {
    int64_t n = 1;
    for (int d = 0; d < desc->ndim; d++) {
        n *= desc->kept[d];
    }
    return n;
}

static tg_dtype spectrum_dtype(const t_side *s) {
    return tg_dtype_complex(s->dtype);
}

/* e^{2 pi i f . n / N} for kept mode `mode` and grid point `point`. */
static tg_scalar wave(const tg_fft_desc *desc, int64_t mode, int64_t point) {
    double turns = 0.0;
    for (int d = desc->ndim - 1; d >= 0; d--) {
        const int64_t frequency = desc->first[d] + mode % desc->kept[d];
        turns +=
            (double)(frequency * (point % desc->grid[d]) % desc->grid[d]) / (double)desc->grid[d];
        mode /= desc->kept[d];
        point /= desc->grid[d];
    }
    const double angle = 6.283185307179586477 * turns;
    return (tg_scalar){cos(angle), sin(angle)};
}

/* How often an entry of a half spectrum counts: alone at index 0 and Nyquist, else twice. */
static double multiplicity(const tg_fft_desc *desc, int64_t mode) {
    const int last = desc->ndim - 1;
    const int64_t k = mode % desc->kept[last];
    return desc->complex || k == 0 || 2 * k == desc->grid[last] ? 1.0 : 2.0;
}

static tg_scalar multiply(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* How many transforms a plan is made for. */
static int64_t none(const tg_fft_desc *desc) {
    (void)desc;
    return 0;
}

static int64_t one(const tg_fft_desc *desc) {
    (void)desc;
    return 1;
}

static int64_t five(const tg_fft_desc *desc) {
    (void)desc;
    return 5;
}

typedef void (*check_fn)(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan);

static void check_window(t_side *s, int ndim, const int64_t *size, window kind,
                         int64_t (*howmany)(const tg_fft_desc *desc), check_fn check) {
    tg_fft_desc desc = describe(s->dtype, ndim, size, kind, 0);
    desc.howmany = howmany(&desc);
    t_note(s, "%d-D %lld x %lld x %lld, window %d, %lld transforms", ndim, (long long)size[0],
           (long long)size[1], (long long)size[2], (int)kind, (long long)desc.howmany);
    tg_fft_plan *plan = NULL;
    t_ok(s, s->ops->fft_create(s->be, &desc, &plan));
    check(s, &desc, plan);
    t_release(s);
    s->ops->fft_destroy(s->be, &plan);
    t_true(s, plan == NULL);
}

static void check_windows(t_side *s, int ndim, const int64_t *size,
                          int64_t (*howmany)(const tg_fft_desc *desc), check_fn check) {
    for (int w = 0; w < WINDOWS; w++) {
        if (!t_leaves_out(s)) {
            check_window(s, ndim, size, (window)w, howmany, check);
        }
    }
}

/* Runs `check` on a plan for every grid and window. */
static void for_all_plans(t_side *s, int64_t (*howmany)(const tg_fft_desc *desc), check_fn check) {
    for (int g = 0; g < T_COUNT(grids); g++) {
        check_windows(s, grids[g].ndim, grids[g].size, howmany, check);
    }
}

static void *forward(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan, tg_fft_weight weight,
                     double scale, const void *host) {
    void *out = t_output(s, spectrum_dtype(s), desc->howmany * modes(desc));
    const void *x = t_input(s, s->dtype, desc->howmany * points(desc), host);
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_FORWARD, desc->howmany, weight, scale, x, out));
    return t_download(s, out);
}

static void *inverse(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan, tg_fft_weight weight,
                     double scale, const void *host) {
    void *out = t_output(s, s->dtype, desc->howmany * points(desc));
    const void *x = t_input(s, spectrum_dtype(s), desc->howmany * modes(desc), host);
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_INVERSE, desc->howmany, weight, scale, x, out));
    return t_download(s, out);
}

/* ---- the matrix itself: transform j is the j-th unit vector ---- */

static void check_unit_points(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int64_t n = points(desc), k = modes(desc);
    const double scale = 0.75;
    const tg_scalar height = {1.0, -2.0};
    void *x = t_host_alloc(s, s->dtype, n * n);
    for (int64_t i = 0; i < n * n; i++) {
        tg_store(s->dtype, x, i, i % (n + 1) == 0 ? height : (tg_scalar){0});
    }
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        void *expected = t_host_alloc(s, spectrum_dtype(s), n * k);
        for (int64_t i = 0; i < n * k; i++) {
            const tg_scalar w = wave(desc, i % k, i / k);
            const tg_scalar v = multiply((tg_scalar){w.re, -w.im},
                                         (tg_scalar){height.re, desc->complex ? height.im : 0.0});
            const double factor = scale * (adjoint ? multiplicity(desc, i % k) : 1.0);
            tg_store(spectrum_dtype(s), expected, i, (tg_scalar){factor * v.re, factor * v.im});
        }
        const void *found =
            forward(s, desc, plan, adjoint ? TG_FFT_ADJOINT : TG_FFT_PLAIN, scale, x);
        t_below(s, t_relative_error(spectrum_dtype(s), n * k, found, expected),
                t_tolerance(s->dtype));
    }
}

static void check_unit_modes(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int64_t n = points(desc), k = modes(desc);
    const double scale = 0.75;
    const tg_scalar height = {1.0, -2.0};
    void *x = t_host_alloc(s, spectrum_dtype(s), k * k);
    for (int64_t i = 0; i < k * k; i++) {
        tg_store(spectrum_dtype(s), x, i, i % (k + 1) == 0 ? height : (tg_scalar){0});
    }
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        void *expected = t_host_alloc(s, s->dtype, k * n);
        for (int64_t i = 0; i < k * n; i++) {
            const tg_scalar v = multiply(wave(desc, i / n, i % n), height);
            const double factor = scale * (adjoint ? 1.0 : multiplicity(desc, i / n));
            tg_store(s->dtype, expected, i, (tg_scalar){factor * v.re, factor * v.im});
        }
        const void *found =
            inverse(s, desc, plan, adjoint ? TG_FFT_ADJOINT : TG_FFT_PLAIN, scale, x);
        t_below(s, t_relative_error(s->dtype, k * n, found, expected), t_tolerance(s->dtype));
    }
}

ROW(unit_points, "unit points", T_WIDE) {
    for_all_plans(s, points, check_unit_points);
}

ROW(unit_modes, "unit modes", T_WIDE) {
    for_all_plans(s, modes, check_unit_modes);
}

/* ---- properties ---- */

/* F(a x + y) = a F x + F y, and likewise back. Real data and real spectra take a real a. */
static void check_linear(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const tg_scalar a = {-1.5, desc->complex ? 0.5 : 0.0};
    for (int back = 0; back < 2; back++) {
        const tg_dtype in = back ? spectrum_dtype(s) : s->dtype;
        const tg_dtype out = back ? s->dtype : spectrum_dtype(s);
        const int64_t n = back ? modes(desc) : points(desc);
        const int64_t count = back ? points(desc) : modes(desc);
        void *(*run)(t_side *, const tg_fft_desc *, tg_fft_plan *, tg_fft_weight, double,
                     const void *) = back ? inverse : forward;
        const void *x = t_host_random(s, in, n), *y = t_host_random(s, in, n);
        void *sum = t_host_alloc(s, in, n), *expected = t_host_alloc(s, out, count);
        for (int64_t i = 0; i < n; i++) {
            const tg_scalar v = multiply(a, tg_load(in, x, i)), w = tg_load(in, y, i);
            tg_store(in, sum, i, (tg_scalar){v.re + w.re, v.im + w.im});
        }
        const void *fx = run(s, desc, plan, TG_FFT_PLAIN, 1.0, x);
        const void *fy = run(s, desc, plan, TG_FFT_PLAIN, 1.0, y);
        for (int64_t i = 0; i < count; i++) {
            const tg_scalar v = multiply(a, tg_load(out, fx, i)), w = tg_load(out, fy, i);
            tg_store(out, expected, i, (tg_scalar){v.re + w.re, v.im + w.im});
        }
        /* Errors are those of the terms; their sum may be smaller than they are. */
        t_below(s,
                t_relative_error(out, count, run(s, desc, plan, TG_FFT_PLAIN, 1.0, sum), expected),
                t_tolerance(s->dtype) * 4.0 * sqrt((double)n));
    }
}

ROW(linearity, "linearity", T_WIDE) {
    for_all_plans(s, one, check_linear);
}

/* x moved by `step` points along every dimension: X[k] times the wave at -step. */
static void check_shift(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    static const int64_t steps[3] = {1, 2, 3};
    const int64_t n = points(desc), k = modes(desc);
    const void *x = t_host_random(s, s->dtype, n);
    void *moved = t_host_alloc(s, s->dtype, n);
    int64_t origin = 0; /* where point 0 moves to */
    for (int64_t i = 0; i < n; i++) {
        int64_t to = 0, rest = i, unit = 1;
        for (int d = desc->ndim - 1; d >= 0; d--) {
            to += (rest % desc->grid[d] + steps[d]) % desc->grid[d] * unit;
            rest /= desc->grid[d];
            unit *= desc->grid[d];
        }
        tg_store(s->dtype, moved, to, tg_load(s->dtype, x, i));
        origin = i == 0 ? to : origin;
    }
    const void *fx = forward(s, desc, plan, TG_FFT_PLAIN, 1.0, x);
    void *expected = t_host_alloc(s, spectrum_dtype(s), k);
    for (int64_t i = 0; i < k; i++) {
        const tg_scalar w = wave(desc, i, origin);
        tg_store(spectrum_dtype(s), expected, i,
                 multiply(tg_load(spectrum_dtype(s), fx, i), (tg_scalar){w.re, -w.im}));
    }
    const void *found = forward(s, desc, plan, TG_FFT_PLAIN, 1.0, moved);
    t_below(s, t_relative_error(spectrum_dtype(s), k, found, expected),
            t_tolerance(s->dtype) * 4.0 * sqrt((double)n));
}

ROW(shift, "shift", T_WIDE) {
    for_all_plans(s, one, check_shift);
}

/* With all frequencies kept: sum |x|^2 = sum c_k |X_k|^2 / N, and the inverse gives x back. */
static void check_parseval(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int64_t n = points(desc), k = modes(desc);
    const int last = desc->ndim - 1;
    for (int d = 0; d < desc->ndim; d++) {
        const bool halved = !desc->complex && d == last;
        if (desc->kept[d] < (halved ? desc->grid[d] / 2 + 1 : desc->grid[d])) {
            return;
        }
    }
    const void *x = t_host_random(s, s->dtype, n);
    const void *fx = forward(s, desc, plan, TG_FFT_PLAIN, 1.0, x);
    double on_grid = 0.0, in_spectrum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar v = tg_load(s->dtype, x, i);
        on_grid += v.re * v.re + v.im * v.im;
    }
    for (int64_t i = 0; i < k; i++) {
        const tg_scalar v = tg_load(spectrum_dtype(s), fx, i);
        in_spectrum += multiplicity(desc, i) * (v.re * v.re + v.im * v.im) / (double)n;
    }
    t_below(s, fabs(in_spectrum - on_grid), on_grid * t_tolerance(s->dtype) * sqrt((double)n));
    const void *back = inverse(s, desc, plan, TG_FFT_PLAIN, 1.0 / (double)n, fx);
    t_below(s, t_relative_error(s->dtype, n, back, x), t_tolerance(s->dtype) * sqrt((double)n));
}

ROW(parseval, "Parseval and round trip", T_WIDE) {
    for_all_plans(s, one, check_parseval);
}

/* Re <x, y>, and the sum of |x| |y| that its rounding error is measured by. */
static double inner(tg_dtype dtype, int64_t n, const void *x, const void *y, double *size) {
    double sum = 0.0;
    *size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar a = tg_load(dtype, x, i), b = tg_load(dtype, y, i);
        sum += a.re * b.re + a.im * b.im;
        *size += hypot(a.re, a.im) * hypot(b.re, b.im);
    }
    return sum;
}

/* Re <F x, Y> = Re <x, F' Y>, F' the inverse with ADJOINT weights, and Re <G Y, x> = Re <Y, G' x>
 * for the inverse G and the forward G' with ADJOINT weights. That real part is the inner product of
 * the real vector spaces between which gradients run. */
static void check_adjoint(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int64_t n = points(desc), k = modes(desc);
    const void *x = t_host_random(s, s->dtype, n), *y = t_host_random(s, spectrum_dtype(s), k);
    for (int back = 0; back < 2; back++) {
        const tg_fft_weight there = back ? TG_FFT_ADJOINT : TG_FFT_PLAIN;
        const tg_fft_weight here = back ? TG_FFT_PLAIN : TG_FFT_ADJOINT;
        double size_k = 0.0, size_n = 0.0;
        const double in_spectrum =
            inner(spectrum_dtype(s), k, forward(s, desc, plan, there, 0.25, x), y, &size_k);
        const double on_grid =
            inner(s->dtype, n, x, inverse(s, desc, plan, here, 0.25, y), &size_n);
        t_below(s, fabs(in_spectrum - on_grid),
                t_tolerance(s->dtype) * sqrt((double)n) * (size_k + size_n));
    }
}

ROW(adjointness, "adjointness", T_WIDE) {
    for_all_plans(s, one, check_adjoint);
}

/* A line's imaginary parts at index 0 and Nyquist do not count, whatever they are. */
ROW(ignored_parts, "ignored parts", T_REALS) {
    static const int64_t sizes[] = {1, 2, 5, 8, 33};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const tg_fft_desc desc = describe(s->dtype, 1, &sizes[i], ALL_CENTRED, 3);
        const int64_t k = modes(&desc);
        t_note(s, "%lld points", (long long)sizes[i]);
        tg_fft_plan *plan = NULL;
        t_ok(s, s->ops->fft_create(s->be, &desc, &plan));
        void *y = t_host_random(s, spectrum_dtype(s), 3 * k);
        const void *results[2];
        for (int poisoned = 0; poisoned < 2; poisoned++) {
            for (int64_t j = 0; j < 3 * k; j++) {
                const tg_scalar v = tg_load(spectrum_dtype(s), y, j);
                if (j % k == 0 || 2 * (j % k) == sizes[i]) {
                    const double part = poisoned ? (double)NAN : 0.0;
                    tg_store(spectrum_dtype(s), y, j, (tg_scalar){v.re, part});
                }
            }
            results[poisoned] = inverse(s, &desc, plan, TG_FFT_PLAIN, 1.0, y);
        }
        t_below(s, t_relative_error(s->dtype, 3 * sizes[i], results[1], results[0]), 0.0);
        s->ops->fft_destroy(s->be, &plan);
        t_release(s);
    }
}

/* ---- against ref: several transforms, larger grids ---- */

static void check_twin(t_side *s, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int64_t n = desc->howmany * points(desc), k = desc->howmany * modes(desc);
    const double growth = 2.0 * sqrt((double)points(desc));
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        const tg_fft_weight weight = adjoint ? TG_FFT_ADJOINT : TG_FFT_PLAIN;
        const void *x = t_host_random(s, s->dtype, n);
        const void *y = t_host_random(s, spectrum_dtype(s), k);
        t_record_close(s, spectrum_dtype(s), k,
                       forward(s, desc, plan, weight, 1.0 / (double)points(desc), x), growth);
        t_record_close(s, s->dtype, n, inverse(s, desc, plan, weight, 1.0, y), growth);
    }
}

ROW(many_small, "many small", T_WIDE) {
    for_all_plans(s, none, check_twin);
    for_all_plans(s, five, check_twin);
}

ROW(large, "large", T_WIDE) {
    static const struct {
        int ndim;
        int64_t size[3];
    } sizes[] = {{1, {65}},      {1, {97}},      {1, {128}},      {1, {360}},
                 {1, {704}},     {1, {1024}},    {2, {33, 31}},   {2, {32, 24}},
                 {2, {128, 40}}, {2, {10, 128}}, {3, {9, 7, 11}}, {3, {4, 16, 12}}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        check_windows(s, sizes[i].ndim, sizes[i].size, five, check_twin);
    }
}

/* Rows and columns of powers of two of which few frequencies are kept. */
ROW(few_kept, "few kept", T_WIDE) {
    static const int64_t sizes[][3] = {{3, 256}, {256, 6}, {5, 512}, {512, 3}, {1024, 2}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        check_window(s, 2, sizes[i], FEW_CENTRED, five, check_twin);
    }
}

/* ---- 16-bit formats in memory ---- */

static void *as_dtype(t_side *s, tg_dtype from, tg_dtype to, int64_t n, const void *x) {
    void *out = t_host_alloc(s, to, n);
    for (int64_t i = 0; i < n; i++) {
        tg_store(to, out, i, tg_load(from, x, i));
    }
    return out;
}

/* `stored` is as `full` but for how data are kept: the results are those of the full plan, rounded.
 * Arrays are given in full and taken in full. */
static void check_stored(t_side *s, const tg_fft_desc *full, const tg_fft_desc *stored, bool back) {
    const tg_dtype grid = tg_stored(s->dtype, stored->grid_store);
    const tg_dtype kept = tg_stored(spectrum_dtype(s), stored->kept_store);
    const tg_dtype wide_in = back ? spectrum_dtype(s) : s->dtype;
    const tg_dtype wide_out = back ? s->dtype : spectrum_dtype(s);
    const tg_dtype in = back ? kept : grid, out = back ? grid : kept;
    const int64_t n = full->howmany * (back ? modes(full) : points(full));
    const int64_t count = full->howmany * (back ? points(full) : modes(full));
    tg_fft_plan *plans[2] = {NULL, NULL};
    const tg_status status = s->ops->fft_create(s->be, stored, &plans[1]);
    if (status == TG_E_UNSUPPORTED) {
        return;
    }
    t_ok(s, status);
    t_ok(s, s->ops->fft_create(s->be, full, &plans[0]));
    const void *x = t_host_random(s, in, n);
    const void *wide = as_dtype(s, in, wide_in, n, x);
    const void *expected = back ? inverse(s, full, plans[0], TG_FFT_ADJOINT, 0.5, wide)
                                : forward(s, full, plans[0], TG_FFT_ADJOINT, 0.5, wide);
    void *found = t_output(s, out, count);
    const void *given = t_input(s, in, n, x);
    t_ok(s, back ? s->ops->fft(s->be, plans[1], TG_FFT_INVERSE, full->howmany, TG_FFT_ADJOINT, 0.5,
                               given, found)
                 : s->ops->fft(s->be, plans[1], TG_FFT_FORWARD, full->howmany, TG_FFT_ADJOINT, 0.5,
                               given, found));
    const void *widened = as_dtype(s, out, wide_out, count, t_download(s, found));
    t_below(s, t_relative_error(wide_out, count, widened, expected), t_tolerance(out));
    for (int i = 0; i < 2; i++) {
        s->ops->fft_destroy(s->be, &plans[i]);
    }
}

ROW(half_formats, "16-bit formats", 1 << TG_F32 | 1 << TG_C64) {
    static const struct {
        int ndim;
        int64_t size[3];
    } sizes[] = {{1, {16}}, {1, {31}}, {2, {12, 18}}, {2, {31, 10}}, {2, {8, 23}}, {3, {3, 17, 4}}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int k = 1; k < 9; k++) {
            const tg_fft_desc full =
                describe(s->dtype, sizes[i].ndim, sizes[i].size, HALF_CENTRED, 3);
            tg_fft_desc stored = full;
            stored.grid_store = (tg_storage)(k % 3);
            stored.kept_store = (tg_storage)(k / 3);
            t_note(s, "grid %d stored as %d, %d", i, k % 3, k / 3);
            check_stored(s, &full, &stored, false);
            check_stored(s, &full, &stored, true);
            t_release(s);
        }
    }
}

/* ---- failures ---- */

ROW(refusals, "refusals", T_WIDE) {
    const int64_t size[3] = {4, 6, 8};
    const tg_fft_desc good = describe(s->dtype, 3, size, ALL_CENTRED, 2);
    tg_fft_desc bad[10];
    for (int i = 0; i < T_COUNT(bad); i++) {
        bad[i] = good;
    }
    bad[0].dtype = TG_F16;
    bad[1].ndim = 0;
    bad[2].ndim = 4;
    bad[3].grid[1] = 0;
    bad[4].kept[0] = 0;
    bad[5].kept[0] = 5;
    bad[6].kept[2] = good.complex ? 9 : 6;
    bad[7].first[0] = -4;
    bad[8].first[2] = good.complex ? 8 : 1;
    bad[9].howmany = -1;
    for (int i = 0; i < T_COUNT(bad); i++) {
        t_note(s, "wrong description %d", i);
        tg_fft_plan *plan = (tg_fft_plan *)&bad[i];
        t_true(s, s->ops->fft_create(s->be, &bad[i], &plan) != TG_OK);
        t_true(s, plan == NULL && strncmp(tg_context_error(s->be->ctx), "fft", 3) == 0);
    }
    s->ops->fft_destroy(s->be, NULL);
}

ROW(out_of_memory, "out of memory", T_WIDE) {
    const int64_t size[3] = {4, 6, 8};
    const tg_fft_desc desc = describe(s->dtype, 3, size, HALF_CENTRED, 2);
    tg_status status = TG_E_MEMORY;
    for (long n = 1; status != TG_OK; n++) {
        t_note(s, "allocation %ld fails", n);
        tg_fft_plan *plan = NULL;
        const size_t before = tg_context_memory(s->be->ctx, TG_HOST).blocks;
        tg_mem_test_fail_at(n);
        status = s->ops->fft_create(s->be, &desc, &plan);
        tg_mem_test_fail_at(0);
        t_true(s, (status == TG_OK) == (plan != NULL) && n < 100);
        s->ops->fft_destroy(s->be, &plan);
        t_true(s, tg_context_memory(s->be->ctx, TG_HOST).blocks == before);
    }
}

/* Nothing is allocated when a plan runs. */
ROW(no_allocation, "no allocation", T_WIDE) {
    const int64_t size[3] = {4, 6, 8};
    const tg_fft_desc desc = describe(s->dtype, 3, size, HALF_CENTRED, 2);
    tg_fft_plan *plan = NULL;
    t_ok(s, s->ops->fft_create(s->be, &desc, &plan));
    const void *x = t_random(s, s->dtype, 2 * points(&desc));
    void *spectrum = t_output(s, spectrum_dtype(s), 2 * modes(&desc));
    void *y = t_output(s, s->dtype, 2 * points(&desc));
    tg_mem_test_fail_at(0);
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_FORWARD, desc.howmany, TG_FFT_PLAIN, 1.0, x, spectrum));
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_INVERSE, desc.howmany, TG_FFT_PLAIN, 1.0, spectrum, y));
    t_true(s, tg_mem_test_count() == 0);
    s->ops->fft_destroy(s->be, &plan);
}

/* ---- the cpu backend's own transforms, also where FFTW is ---- */

/* Lengths of every kind: single passes, all radices, primes up to and beyond the largest radix. */
static void own_lengths(t_side *s) {
    static const int64_t lengths[] = {4, 9, 25, 31, 37, 60, 74, 101, 210, 421, 1024};
    for (int i = 0; i < T_COUNT(lengths); i++) {
        const int64_t size[3] = {lengths[i], 0, 0};
        check_windows(s, 1, size, one, check_twin);
    }
}

ROW(own_transforms, "own transforms", T_WIDE) {
    static void (*const scripts[])(t_side *) = {unit_points,   unit_modes,    own_lengths,
                                                ignored_parts, out_of_memory, no_allocation};
    const bool is_cpu = strcmp(s->ops->name, "cpu") == 0;
    const cpu_lines_engine *before = is_cpu ? cpu_state_of(s->be)->lines : NULL;
    for (int i = 0; i < T_COUNT(scripts); i++) {
        if (scripts[i] == ignored_parts && tg_dtype_is_complex(s->dtype)) {
            continue;
        }
        if (is_cpu) {
            cpu_state_of(s->be)->lines = &cpu_lines_own;
        }
        scripts[i](s);
        t_release(s);
    }
    if (is_cpu) {
        cpu_state_of(s->be)->lines = before;
    }
}

int main(void) {
    return t_run_rows("fft");
}

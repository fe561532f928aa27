/* Fourier transforms by FFTW, pruned to the kept modes; the only file that sees FFTW.
 *
 * All transforms are complex. Rows (last dimension) of real data are taken two at a time as one
 * complex row, which FFTW does more than twice as fast as real ones; only their kept columns are
 * stored, in groups of LANES columns side by side: slab (groups, rows, LANES). Transforms along an
 * outer dimension run inside one group, LANES columns at once, and only kept frequencies leave it.
 * So no full spectrum exists anywhere, and what is in work fits in cache:
 *
 *   1-D  x -> [rows] -> slab -> X
 *   2-D  x -> [rows] -> slab -> [columns] -> X
 *   3-D  x -> [rows] -> slab -> [columns] -> volume (K1, groups, N0, LANES) -> [outer] -> X
 *
 * and the inverse backwards. Stage A is all up to the slab (3-D: up to the volume), stage B the
 * rest. With enough transforms each thread does both stages for its own share; with fewer, all
 * threads share stage A and then stage B of one transform. 1-D transforms run as "2-D" ones of a
 * block of rows without column transform. Plans are FFTW_ESTIMATE: the same plan every time, hence
 * the same bits. */
#include "backend/cpu/cpu.h"

#include <fftw3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/check.h"

/* Sizes are in complex numbers of the plan's precision. */
struct tg_fft_plan {
    tg_fft_desc desc;
    const cpu_kernels *kernels;
    int parts;    /* threads at work */
    bool shared;  /* they share each transform */
    int64_t many; /* transforms (1-D: blocks of rows) */

    /* Dimensions of one transform, outer first: 1 where there is none. */
    int64_t planes, rows, length;            /* N0, N1, N2 */
    int64_t kept_planes, kept_rows, columns; /* K0, K1, K2 */
    int64_t first_plane, first_row;          /* where the kept ones begin, 0 .. N-1 */
    int64_t first_column;                    /* likewise; complex data only */

    int64_t lanes;      /* columns of a group */
    int64_t groups;     /* ceil(columns / lanes) */
    int64_t slab_rows;  /* rows, one more if odd: two rows of real data are written at once */
    int64_t block;      /* complex rows transformed at once */
    int64_t block_rows; /* rows of the grid that are in a block */
    int64_t pitch;      /* distance of its rows: length + 1 or more, whole cache lines */

    void *scratch;  /* all of the below, zero at first */
    size_t line;    /* bytes of a block of rows, one per part */
    size_t slab;    /* bytes of a slab: one per part, one in all if 2-D and shared */
    size_t volume;  /* bytes of a volume: one per part, one in all if shared; 0 if not 3-D */
    size_t slab_at; /* where the slabs begin */
    size_t volume_at;

    /* fftw_plan or fftwf_plan, forward and inverse; NULL: nothing to do along that dimension. The
     * last group has fewer columns and plans of its own. */
    void *along_row[2];
    void *along_column[2][2]; /* [inverse][last group] */
    void *along_outer[2][2];
};

/* One call of forward or inverse. */
typedef struct fft_job {
    const tg_fft_plan *plan;
    double edge, interior; /* factors of spectrum entries by their place in the last dimension */
    const void *in;        /* grid (forward) or spectrum */
    void *out;             /* the other one */
} fft_job;

/* Scratch of one part. */
typedef struct fft_scratch {
    void *line, *slab, *volume;
} fft_scratch;

static fft_scratch scratch_of(const tg_fft_plan *plan, int part) {
    char *base = plan->scratch;
    const bool one_slab = plan->shared && plan->planes == 1;
    return (fft_scratch){base + (size_t)part * plan->line,
                         base + plan->slab_at + (one_slab ? 0 : (size_t)part * plan->slab),
                         base + plan->volume_at + (plan->shared ? 0 : (size_t)part * plan->volume)};
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Columns of a group that count. */
static int64_t group_width(const tg_fft_plan *plan, int64_t group) {
    return smaller(plan->lanes, plan->columns - group * plan->lanes);
}

/* Rows of transform number h: all, except for the last block of rows in 1-D. */
static int64_t rows_of(const tg_fft_plan *plan, int64_t h) {
    return plan->desc.ndim > 1 ? plan->rows
                               : smaller(plan->rows, plan->desc.howmany - h * plan->rows);
}

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static int64_t kept_rows_of(const tg_fft_plan *plan, int64_t h) {
    return plan->desc.ndim > 1 ? plan->kept_rows : rows_of(plan, h);
}

/* Index of kept frequency k of a dimension of n points whose kept ones begin at `first`. */
static int64_t wrapped(int64_t n, int64_t first, int64_t k) {
    return first + k < n ? first + k : first + k - n;
}

#define REAL    float
#define NAME(x) x##_f32
#define FFTW(x) fftwf_##x
#define LANES   CPU_LANES_F32
#define KERNELS rows_f32
#include "backend/cpu/fftw.inc"
#undef KERNELS
#undef LANES
#undef FFTW
#undef NAME
#undef REAL

#define REAL    double
#define NAME(x) x##_f64
#define FFTW(x) fftw_##x
#define LANES   CPU_LANES_F64
#define KERNELS rows_f64
#include "backend/cpu/fftw.inc"
#undef KERNELS
#undef LANES
#undef FFTW
#undef NAME
#undef REAL

/* ---- plans ---- */

static pthread_mutex_t planner = PTHREAD_MUTEX_INITIALIZER; /* FFTW's planner is not thread-safe */

void cpu_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    if (!plan || !*plan) {
        return;
    }
    pthread_mutex_lock(&planner);
    if ((*plan)->desc.dtype == TG_F32) {
        destroy_plans_f32(*plan);
    } else {
        destroy_plans_f64(*plan);
    }
    pthread_mutex_unlock(&planner);
    tg_mem_free(be->ctx, (*plan)->scratch);
    TG_FREE(be->ctx, *plan);
}

/* Everything but scratch and FFTW's plans. */
static void lay_out(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const int last = desc->ndim - 1;
    const bool f32 = desc->dtype == TG_F32;
    const size_t number = f32 ? 2 * sizeof(float) : 2 * sizeof(double);
    int64_t first[3];
    for (int d = 0; d < desc->ndim; d++) {
        first[d] = (desc->first[d] + desc->grid[d]) % desc->grid[d];
    }
    plan->desc = *desc;
    plan->kernels = cpu_state_of(be)->kernels;
    plan->lanes = f32 ? CPU_LANES_F32 : CPU_LANES_F64;
    plan->length = desc->grid[last];
    plan->columns = desc->kept[last];
    plan->first_column = first[last];
    plan->groups = (plan->columns + plan->lanes - 1) / plan->lanes;
    plan->pitch = round_up(plan->length + 1, plan->lanes);

    const int64_t row_bytes = plan->pitch * (int64_t)number;
    const int64_t pair = desc->complex ? 1 : 2;
    const int64_t all_rows = last > 0 ? desc->grid[last - 1] : desc->howmany;
    plan->block = smaller(8, (all_rows + pair - 1) / pair);
    plan->block = smaller(plan->block, 1 + 65536 / row_bytes);
    plan->block = plan->block > 0 ? plan->block : 1;

    plan->planes = last > 1 ? desc->grid[0] : 1;
    plan->kept_planes = last > 1 ? desc->kept[0] : 1;
    plan->first_plane = last > 1 ? first[0] : 0;
    plan->block_rows = pair * plan->block;
    plan->rows = last > 0 ? desc->grid[last - 1] : plan->block_rows;
    plan->slab_rows = round_up(plan->rows, 2);
    plan->kept_rows = last > 0 ? desc->kept[last - 1] : plan->rows;
    plan->first_row = last > 0 ? first[last - 1] : 0;
    plan->many = last > 0 ? desc->howmany : (desc->howmany + plan->rows - 1) / plan->rows;

    plan->shared = last > 0 && plan->many < be->threads;
    plan->parts = plan->shared ? be->threads : cpu_parts(be, plan->many, 1);

    const size_t one = plan->shared ? 1 : (size_t)plan->parts;
    const size_t parts = (size_t)plan->parts;
    plan->line = (size_t)(plan->block * plan->pitch) * number;
    plan->slab = (size_t)(plan->groups * plan->slab_rows * plan->lanes) * number;
    plan->slab_at = parts * plan->line;
    plan->volume_at = plan->slab_at + (plan->planes > 1 ? parts : one) * plan->slab;
    plan->volume =
        plan->planes > 1
            ? (size_t)(plan->kept_rows * plan->groups * plan->planes * plan->lanes) * number
            : 0;
}

static size_t scratch_bytes(const tg_fft_plan *plan) {
    return plan->volume_at + (plan->shared ? 1 : (size_t)plan->parts) * plan->volume;
}

tg_status cpu_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_fft_plan *plan = NULL;
    *out = NULL;
    TG_TRY(tg_check_fft(be->ctx, desc));
    for (int d = 0; d < desc->ndim; d++) {
        if (desc->grid[d] > INT32_MAX / 16) {
            return tg_fail(be->ctx, TG_E_UNSUPPORTED,
                           "fft: %lld points along dimension %d; FFTW "
                           "takes up to %d here",
                           (long long)desc->grid[d], d, INT32_MAX / 16);
        }
    }
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, plan, 1));
    lay_out(be, desc, plan);
    plan->scratch = tg_mem_calloc(be->ctx, TG_MEM_WORKSPACE, scratch_bytes(plan), 1);
    if (!plan->scratch) {
        TG_TRY(TG_E_MEMORY);
    }
    pthread_mutex_lock(&planner);
    const bool planned = desc->dtype == TG_F32 ? make_plans_f32(plan) : make_plans_f64(plan);
    pthread_mutex_unlock(&planner);
    if (!planned) {
        TG_TRY(tg_fail(be->ctx, TG_E_BACKEND, "fft: FFTW makes no plan for this grid"));
    }
    *out = plan;
    return TG_OK;
fail:
    cpu_fft_destroy(be, &plan);
    return status;
}

int cpu_fftw_version(char *text, size_t capacity) {
    /* "fftw-3.3.10-sse2-avx": the number between the dashes. */
    const char *version = fftwf_version;
    version += strcspn(version, "-");
    version += *version ? 1 : 0;
    return snprintf(text, capacity, "FFTW %.*s", (int)strcspn(version, "-"), version);
}

/* ---- execution ---- */

typedef void (*stage_fn)(const fft_job *job, int64_t h, const fft_scratch *s, tg_range units);

/* Runs two stages of every transform; `units` is how much there is to share of each. */
static void run(const fft_job *job, const stage_fn stages[2], const int64_t units[2]) {
    const tg_fft_plan *plan = job->plan;
    const int parts = plan->parts;
    if (!plan->shared) {
#pragma omp parallel for num_threads(parts) schedule(static)
        for (int p = 0; p < parts; p++) {
            const fft_scratch s = scratch_of(plan, p);
            const tg_range share = tg_partition(plan->many, 1, parts, p);
            for (int64_t h = share.begin; h < share.end; h++) {
                stages[0](job, h, &s, (tg_range){0, units[0]});
                stages[1](job, h, &s, (tg_range){0, units[1]});
            }
        }
        return;
    }
    for (int64_t h = 0; h < plan->many; h++) {
        for (int stage = 0; stage < 2; stage++) {
#pragma omp parallel for num_threads(parts) schedule(static)
            for (int p = 0; p < parts; p++) {
                const fft_scratch s = scratch_of(plan, p);
                stages[stage](job, h, &s, tg_partition(units[stage], 1, parts, p));
            }
        }
    }
}

/* Stage A counts blocks of rows (3-D: planes), stage B groups (3-D: groups of every kept row). */
static void units_of(const tg_fft_plan *plan, int64_t *a, int64_t *b) {
    const int64_t blocks = (plan->rows + plan->block_rows - 1) / plan->block_rows;
    *a = plan->planes > 1 ? plan->planes : blocks;
    *b = plan->groups * (plan->planes > 1 ? plan->kept_rows : 1);
}

tg_status cpu_fft_forward(tg_backend *be, tg_fft_plan *plan, tg_fft_weight weight, double scale,
                          const void *x, void *spectrum) {
    (void)be;
    const bool real = !plan->desc.complex;
    const double edge = real ? 0.5 * scale : scale; /* rows leave the split doubled */
    const double interior = real && weight == TG_FFT_ADJOINT ? 2.0 * edge : edge;
    const fft_job job = {plan, edge, interior, x, spectrum};
    const bool f32 = plan->desc.dtype == TG_F32;
    const stage_fn stages[2] = {f32 ? forward_a_f32 : forward_a_f64,
                                f32 ? forward_b_f32 : forward_b_f64};
    int64_t units[2];
    units_of(plan, &units[0], &units[1]);
    run(&job, stages, units);
    return TG_OK;
}

tg_status cpu_fft_inverse(tg_backend *be, tg_fft_plan *plan, tg_fft_weight weight, double scale,
                          const void *spectrum, void *x) {
    (void)be;
    const bool halved = !plan->desc.complex && weight == TG_FFT_ADJOINT;
    const fft_job job = {plan, scale, halved ? 0.5 * scale : scale, spectrum, x};
    const bool f32 = plan->desc.dtype == TG_F32;
    const stage_fn stages[2] = {f32 ? inverse_b_f32 : inverse_b_f64,
                                f32 ? inverse_a_f32 : inverse_a_f64};
    int64_t units[2];
    units_of(plan, &units[1], &units[0]);
    run(&job, stages, units);
    return TG_OK;
}

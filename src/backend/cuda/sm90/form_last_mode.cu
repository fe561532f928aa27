/* Forms a gradient and contracts its last mode in one kernel; see compress.cuh.
 *
 * A block takes 4 indices of mode 0, one for each warpgroup, with 8 of mode 1 and 8 rows of their
 * planes, which are 64 rows of a product: a warpgroup keeps its part of G in registers, as left
 * factor. x of these rows stays in shared memory for all of mode 1. While the warpgroups multiply,
 * bulk copies load dy into shared memory and four more warps look up the kept entries of the rows.
 * Row g of warp w is row 4 (g % 2) + w of the plane g / 2 of mode 1, row g + 8 that of the fourth
 * plane after it: rows have an odd number of entries, so half a warp then reads from different
 * banks. SPLIT: numbers are sums of two in TF32 and three products are taken; the factor's second
 * terms follow its first ones. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    GROUPS = CUDA_FORM_INDICES, /* warpgroups */
    PLANES = 8,                 /* of mode 1 */
    ROWS = 8,                   /* of a plane */
    HELPERS = 128,              /* threads */
    FORM_THREADS = GROUPS * WG_THREADS + HELPERS,
    MAX_ROW_ENTRIES = 68, /* of a row */
    SHORT_ROW_STEPS = 9,  /* steps of 4 entries whose products fit into registers */
    LONG_ROW_STEPS = 17   /* steps of 4 entries of the longest rows */
};

/* Kept entries of a row, and how many before it. */
struct alignas(16) kept_row {
    uint32_t word[3], before;
};

struct form_task {
    const float2 *x, *dy;    /* (batch, dim0, d2, d3), (batch, dim1, d2, d3) */
    int64_t next_x, next_dy; /* from sample to sample */
    int64_t begin;           /* of mode 0 */
    int batch, dim1, d2, d3;
    factor_reader u;
    int right; /* reals of a part of out's rows */
    kept_set kept;
    float2 *values; /* scale G */
    float scale;
    float *out;
    bool apart;  /* as in cuda_plan */
    int units;   /* pieces of work: those of mode 1 within rows within mode 0 */
    int stages;  /* of dy */
    int samples; /* of a stage; batch is a multiple of it */
};

/* Rows of the factor in shared memory. */
static __host__ __device__ inline int factor_rows(int d3) {
    const int steps = (d3 + 3) / 4;
    return ((steps > SHORT_ROW_STEPS ? steps : SHORT_ROW_STEPS) * 8 + 31) / 32 * 32;
}

/* Bytes of shared memory. */
struct form_layout {
    int term, factor, x, dy, kept, stage, all; /* term: one of the factor */
};

static __host__ __device__ inline form_layout layout_of(int n, bool split, int d3, int batch,
                                                        int samples, int stages) {
    form_layout at;
    at.term = factor_rows(d3) / 32 * (n * 128);
    at.factor = (split ? 2 : 1) * at.term;
    at.x = batch * GROUPS * ROWS * d3 * (int)sizeof(float2);
    at.dy = samples * PLANES * ROWS * d3 * (int)sizeof(float2);
    at.kept = GROUPS * 64 * (int)sizeof(kept_row);
    at.stage = at.dy + at.kept;
    at.all = 1024 + at.factor + at.x + stages * at.stage + 6 * (int)sizeof(uint64_t);
    return at;
}

/* Position of a unit. */
struct form_unit {
    int i0, i1, i2; /* the first of mode 0, counted from task.begin, of mode 1, and of rows */
    int x;          /* units with the same x index share x */
};

static __device__ inline form_unit unit_of(const form_task &task, int unit) {
    const int across = task.dim1 / PLANES, down = task.d2 / ROWS, x = unit / across;
    return {x / down * GROUPS, unit % across * PLANES, x % down * ROWS, x};
}

/* The plane of mode 1 and the row of product row m. */
static __device__ inline int plane_of_row(int m) {
    return m % 8 / 2 + m % 16 / 8 * 4;
}
static __device__ inline int row_of_row(int m) {
    return m % 2 * 4 + m / 16;
}

struct form_shared {
    char *factor, *x, *stage;
    uint64_t *full, *empty; /* of stages */
    uint64_t *x_full, *x_empty;
};

/* ---- inputs ---- */

static __device__ inline kept_row find_row(const kept_set &set, int64_t entry, int d3) {
    const int64_t word = entry / 64;
    const int shift = (int)(entry % 64);
    const uint64_t here = set.words[word];
    const uint64_t next = word + 1 < set.count ? set.words[word + 1] : 0;
    const uint64_t last = word + 2 < set.count ? set.words[word + 2] : 0;
    uint32_t before = set.ranks[entry / 512];
    before += (uint32_t)__popcll(here & ((UINT64_C(1) << shift) - 1));
    before = add_earlier_words(set, word, before);
    uint64_t low = here >> shift, high = next >> shift;
    low |= shift ? next << (64 - shift) : 0;
    high |= shift ? last << (64 - shift) : 0;
    low &= d3 < 64 ? (UINT64_C(1) << d3) - 1 : ~UINT64_C(0);
    high &= d3 > 64 ? (UINT64_C(1) << (d3 - 64)) - 1 : 0;
    return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high}, before};
}

static __device__ void help(const form_task &task, const form_layout &at, const form_shared &to,
                            int first, int end) {
    const int thread = (int)threadIdx.x - GROUPS * WG_THREADS, lane = thread % 32;
    const int64_t entries = (int64_t)task.d2 * task.d3;
    const int piece = ROWS * task.d3 * (int)sizeof(float2);
    const int passes = task.batch / task.samples;
    int x = -1, x_parity = 1;
    for (int round = 0; round < (end - first) * passes; round++) {
        const int pass = round % passes, stage = round % task.stages;
        const form_unit now = unit_of(task, first + round / passes);
        char *dy = to.stage + stage * at.stage;
        if (thread < 32 && now.x != x) {
            barrier_wait(to.x_empty, x_parity);
            x_parity ^= 1;
            x = now.x;
            if (lane == 0) {
                barrier_expect(to.x_full, at.x);
            }
            __syncwarp();
            for (int e = lane; e < task.batch * GROUPS; e += 32) {
                const int64_t i0 = task.begin + now.i0 + e % GROUPS;
                copy_bulk(to.x + e * piece,
                          task.x + e / GROUPS * task.next_x + i0 * entries + now.i2 * task.d3,
                          piece, to.x_full);
            }
        }
        barrier_wait(to.empty + stage, (round / task.stages + 1) % 2);
        if (thread < 32) {
            if (lane == 0) {
                barrier_expect(to.full + stage, at.dy);
            }
            __syncwarp();
            for (int e = lane; e < task.samples * PLANES; e += 32) {
                const int64_t i1 = now.i1 + e % PLANES, b = pass * task.samples + e / PLANES;
                copy_bulk(dy + e * piece,
                          task.dy + b * task.next_dy + i1 * entries + now.i2 * task.d3, piece,
                          to.full + stage);
            }
        }
        kept_row *rows = reinterpret_cast<kept_row *>(dy + at.dy);
#pragma unroll 2
        for (int e = thread; pass == 0 && e < GROUPS * 64; e += HELPERS) {
            const int64_t plane =
                (task.begin + now.i0 + e / 64) * task.dim1 + now.i1 + plane_of_row(e % 64);
            const int64_t row = plane * task.d2 + now.i2 + row_of_row(e % 64);
            rows[e] = find_row(task.kept, row * task.d3, task.d3);
        }
        barrier_arrive(to.full + stage); /* each publishes its kept entries */
    }
}

/* ---- forming G ---- */

/* A thread's entries 4 s + t of its two rows, s = 0, 1, .., as {Re of both, Im of both}. */
struct row_former {
    const float2 *x, *dy[2]; /* entry t */
    int next_x, next_dy;     /* from sample to sample */
    int samples, left;       /* left: entries of a row from t on */
    kept_row kept[2];        /* from the next word on */
    kept_run run[2];         /* of the current word, from entry t on */
    int t;
    float2 *values;
    float scale;

    /* Adds the samples of a stage to g; PAIRED: two samples, of long rows. */
    template <bool PAIRED> __device__ float4 form(int s, float4 g) const {
        if ((PAIRED && s < LONG_ROW_STEPS - 1) || 4 * s < left) {
            const float2 *u = x + 4 * s, *v = dy[0] + 4 * s, *w = dy[1] + 4 * s;
#pragma unroll 2
            for (int b = 0; b < (PAIRED ? 2 : samples); b++) {
                const float2 a = *u, c = *v, d = *w;
                g.x += a.x * c.x;
                g.x += a.y * c.y;
                g.z += a.x * c.y;
                g.z -= a.y * c.x;
                g.y += a.x * d.x;
                g.y += a.y * d.y;
                g.w += a.x * d.y;
                g.w -= a.y * d.x;
                u += next_x;
                v += next_dy;
                w += next_dy;
            }
        }
        return g;
    }
    /* Writes kept entries to values and sets them to 0; for s = 0, 1, .. in this order. */
    __device__ void gather(int s, int h, float *re, float *im) {
        if (s % 8 == 0) {
            const uint32_t word = kept[h].word[0];
            run[h] = {word >> t, kept[h].before + (uint32_t)__popc(word & ((1u << t) - 1))};
            kept[h] = {{kept[h].word[1], kept[h].word[2], 0},
                       kept[h].before + (uint32_t)__popc(word)};
        }
        const uint32_t bit = 1u << (4 * s % 32);
        const uint32_t at = run[h].before + (uint32_t)__popc(run[h].mask & (bit - 1));
        const bool keeps = run[h].mask & bit;
        store_two_if(keeps, values + at, scale * *re, scale * *im);
        *re = keeps ? 0.0f : *re;
        *im = keeps ? 0.0f : *im;
    }
    __device__ float4 gather(int s, float4 g) {
        gather(s, 0, &g.x, &g.z);
        gather(s, 1, &g.y, &g.w);
        return g;
    }
};

/* conj(U) as right factor: rows are the parts of 4 entries, real ones first. */
template <int N, bool SPLIT>
static __device__ inline void store_factor(const form_task &task, const form_layout &at,
                                           char *factor) {
    wg_zero<N>(factor, (SPLIT ? 2 : 1) * factor_rows(task.d3));
    __syncthreads();
    for_each_term<SPLIT>(task.u, [&](int i, int j, float2 u, int term) {
        const int k = i / 4 * 8 + i % 4;
        char *matrix = factor + term * at.term;
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = towards(u, to);
            *reinterpret_cast<float *>(matrix + wg_at<N>(to * task.right + j, k)) = parts.x;
            *reinterpret_cast<float *>(matrix + wg_at<N>(to * task.right + j, k + 4)) = parts.y;
        }
    });
}

/* Stores a warpgroup's rows of out. */
template <int N>
static __device__ inline void store_rows(const form_task &task, const form_unit &now, int group,
                                         int m, int t, const float (&sum)[N / 2]) {
    const int64_t plane = (int64_t)(now.i0 + group) * task.dim1 + now.i1;
    const int row = now.i2 + row_of_row(m), width = 2 * task.right;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t to = (plane + plane_of_row(m + 8 * h)) * task.d2 + row;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (8 * j + 2 * t < width) {
                store_two(task.out + to * width + 8 * j + 2 * t, sum[4 * j + 2 * h],
                          sum[4 * j + 2 * h + 1]);
            }
        }
    }
}

/* STEPS of 4 entries: all are formed stage by stage before they are multiplied; 0: a stage has all
 * samples, and each step is multiplied while the next one is formed. PAIRED: two samples, and
 * LONG_ROW_STEPS. */
template <int N, int STEPS, bool SPLIT, bool PAIRED>
static __device__ void form(const form_task &task, const form_layout &at, const form_shared &from,
                            int first, int end) {
    const int group = (int)threadIdx.x / WG_THREADS, lane = threadIdx.x % 32, t = lane % 4;
    const int m = (int)threadIdx.x % WG_THREADS / 32 * 16 + lane / 4, steps = (task.d3 + 3) / 4;
    const uint64_t factor = wg_matrix(from.factor), second = wg_matrix(from.factor + at.term);
    const float2 *x =
        reinterpret_cast<const float2 *>(from.x) + (group * ROWS + row_of_row(m)) * task.d3 + t;
    int x_now = -1, x_parity = 0, round = 0;
    row_former former;
    former.next_x = GROUPS * ROWS * task.d3;
    former.next_dy = PLANES * ROWS * task.d3;
    former.samples = task.samples;
    former.left = task.d3 - t;
    former.t = t;
    former.values = task.values;
    former.scale = task.scale;
    for (int unit = first; unit < end; unit++) {
        const form_unit now = unit_of(task, unit);
        if (now.x != x_now) {
            barrier_wait(from.x_full, x_parity);
            x_parity ^= 1;
            x_now = now.x;
        }
        const auto begin_pass = [&](int pass) {
            const int stage = round % task.stages;
            const char *dy = from.stage + stage * at.stage;
            barrier_wait(from.full + stage, round / task.stages % 2);
            former.x = x + pass * task.samples * former.next_x;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                former.dy[h] = reinterpret_cast<const float2 *>(dy) +
                               (plane_of_row(m + 8 * h) * ROWS + row_of_row(m)) * task.d3 + t;
                if (pass == 0) {
                    former.kept[h] =
                        reinterpret_cast<const kept_row *>(dy + at.dy)[group * 64 + m + 8 * h];
                }
            }
        };
        const auto end_pass = [&] {
            barrier_arrive(from.empty + round % task.stages);
            round++;
        };
        float sum[N / 2];
        if constexpr (STEPS > 0) {
            float4 g[STEPS] = {};
            for (int pass = 0; pass < task.batch / task.samples; pass++) {
                begin_pass(pass);
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    g[s] = former.form<false>(s, g[s]);
                }
                end_pass();
            }
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                g[s] = former.gather(s, g[s]);
                g[s] = SPLIT ? g[s] : to_tf32(g[s]);
                wg_hold(g[s]);
            }
            wg_begin();
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                wg_product(sum, g[s], wg_rows<N>(factor, s), s > 0);
                if constexpr (SPLIT) {
                    wg_product(sum, g[s], wg_rows<N>(second, s), true);
                }
            }
            wg_end();
            wg_wait<0>();
            if constexpr (SPLIT) { /* reuses the registers, as no others are free */
                wg_fence(sum);
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    wg_hold(g[s]);
                    g[s] = cut_off(g[s]);
                    wg_hold(g[s]);
                }
                wg_begin();
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    wg_product(sum, g[s], wg_rows<N>(factor, s), true);
                }
                wg_end();
                wg_wait<0>();
            }
        } else {
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            begin_pass(0);
            float4 next = former.gather(0, former.form<PAIRED>(0, none));
#pragma unroll(PAIRED ? (int)LONG_ROW_STEPS : 1)
            for (int s = 0; s < (PAIRED ? (int)LONG_ROW_STEPS : steps); s++) {
                wg_hold(next);
                /* in separate registers, as the next ones are formed during the product */
                const float4 a = SPLIT ? cut(next) : to_tf32(next);
                const float4 rest = SPLIT ? cut_off(next) : a;
                wg_begin();
                wg_product(sum, a, wg_rows<N>(factor, s), s > 0);
                if constexpr (SPLIT) {
                    wg_product(sum, a, wg_rows<N>(second, s), true);
                    wg_product(sum, rest, wg_rows<N>(factor, s), true);
                }
                wg_end();
                if (s + 1 < (PAIRED ? (int)LONG_ROW_STEPS : steps)) {
                    next = former.gather(s + 1, former.form<PAIRED>(s + 1, none));
                }
                wg_wait<0>();
            }
            end_pass();
        }
        wg_fence(sum);
        if (unit + 1 < end && unit_of(task, unit + 1).x != now.x) {
            barrier_arrive(from.x_empty);
        }
        store_rows<N>(task, now, group, m, t, sum);
    }
}

template <int N, int STEPS, bool SPLIT, bool PAIRED>
static __global__ void __launch_bounds__(FORM_THREADS, 1) form_and_contract(form_task task) {
    extern __shared__ char shared[];
    const form_layout at = layout_of(N, SPLIT, task.d3, task.batch, task.samples, task.stages);
    form_shared offsets;
    offsets.factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    offsets.x = offsets.factor + at.factor;
    offsets.stage = offsets.x + at.x;
    offsets.full = reinterpret_cast<uint64_t *>(offsets.stage + task.stages * at.stage);
    offsets.empty = offsets.full + 2;
    offsets.x_full = offsets.empty + 2;
    offsets.x_empty = offsets.x_full + 1;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            barrier_init(offsets.full + s, 1 + HELPERS);
            barrier_init(offsets.empty + s, GROUPS * WG_THREADS);
        }
        barrier_init(offsets.x_full, 1);
        barrier_init(offsets.x_empty, GROUPS * WG_THREADS);
        barriers_made();
    }
    store_factor<N, SPLIT>(task, at, offsets.factor);
    wg_publish();
    __syncthreads();
    if (!task.apart) {
        pdl_wait();
    }
    pdl_launch_dependents();
    const int first = (int)((int64_t)task.units * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)task.units * (blockIdx.x + 1) / gridDim.x);
    if (threadIdx.x < GROUPS * WG_THREADS) {
        registers_increase<104>();
        form<N, STEPS, SPLIT, PAIRED>(task, at, offsets, first, end);
    } else {
        registers_decrease<64>();
        help(task, at, offsets, first, end);
    }
    if (task.apart) {
        pdl_wait();
    }
}

/* ---- launches ---- */

/* f(N, STEPS, PAIRED) as constants. */
template <class F> static auto with_sizes(const plane_pass &s, int64_t batch, F f) {
    using std::integral_constant;
    const auto none = integral_constant<int, 0>();
    const auto with_pairs = [&](auto n) {
        return batch == 2 && s.d3 > 4 * (LONG_ROW_STEPS - 1) ? f(n, none, std::true_type())
                                                             : f(n, none, std::false_type());
    };
    return s.right <= 24 && s.d3 <= 4 * SHORT_ROW_STEPS
               ? f(integral_constant<int, 48>(), integral_constant<int, SHORT_ROW_STEPS>(),
                   std::false_type())
           : s.right <= 24 ? f(integral_constant<int, 48>(), none, std::false_type())
           : s.right <= 32 ? f(integral_constant<int, 64>(), none, std::false_type())
           : s.right <= 44 ? with_pairs(integral_constant<int, 88>())
                           : with_pairs(integral_constant<int, 96>());
}

/* Stages of dy and samples per stage, 0 if they do not fit. */
static void share_out(const tg_backend *be, const cuda_plan *plan, int64_t batch, form_task *task) {
    const plane_pass &s = plan->planes;
    const int most = cuda_state_of(be)->max_shared;
    task->stages = task->samples = 0;
    with_sizes(s, batch, [&](auto n, auto steps, auto) {
        constexpr int N = decltype(n)::value, STEPS = decltype(steps)::value;
        for (int parts = 1; parts <= batch && task->stages == 0; parts++) {
            for (int stages = 2; stages >= 1 && task->stages == 0; stages--) {
                const int samples = (int)batch / parts;
                const bool can = parts == 1 || STEPS > 0;
                /* a single stage does not overlap copies and products: last resort */
                const bool wanted = stages == 2 || STEPS == 0 || parts == batch;
                if (can && wanted && batch % parts == 0 &&
                    layout_of(N, plan->split, s.d3, (int)batch, samples, stages).all <= most) {
                    task->stages = stages;
                    task->samples = samples;
                }
            }
        }
    });
}

int64_t cuda_sm90_form_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const tg_grad_source *source = &op->source;
    const plane_pass &s = plan->planes;
    form_task task = form_task();
    if (!cuda_state_of(be)->is_hopper || !cuda_is_taken_out(op) || plan->large_chunk == 0 ||
        plan->step[1].left != op->modes.dim[1] || op->modes.dim[1] % PLANES != 0 ||
        s.d2 % ROWS != 0 || s.d3 > MAX_ROW_ENTRIES || s.d3 % 2 == 0 || s.right > 48) {
        return 0;
    }
    share_out(be, plan, source->batch, &task);
    return task.stages > 0 ? plan->large_chunk : 0;
}

tg_status cuda_sm90_form(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                         int64_t begin, int64_t count, void *out) {
    const plane_pass &s = plan->planes;
    const int64_t entries = (int64_t)s.d2 * s.d3;
    form_task task = form_task();
    task.x = static_cast<const float2 *>(op->source.x);
    task.dy = static_cast<const float2 *>(op->source.dy);
    task.next_x = plan->dim0 * entries;
    task.next_dy = op->modes.dim[1] * entries;
    task.begin = begin;
    task.apart = plan->apart;
    task.batch = (int)op->source.batch;
    task.dim1 = (int)op->modes.dim[1];
    task.d2 = s.d2;
    task.d3 = s.d3;
    task.u = reader_of(&plan->step[0].factor);
    task.right = s.right;
    task.kept = kept_set_of(op->bitmap);
    task.values = static_cast<float2 *>(op->values);
    task.scale = (float)op->scale;
    task.out = static_cast<float *>(out);
    task.units = (int)(count / GROUPS) * (task.dim1 / PLANES) * (s.d2 / ROWS);
    share_out(be, plan, op->source.batch, &task);
    return with_sizes(s, op->source.batch, [&](auto n, auto steps, auto paired) {
        constexpr int N = decltype(n)::value, STEPS = decltype(steps)::value;
        const auto kernel = plan->split
                                ? form_and_contract<N, STEPS, true, false>
                                : form_and_contract<N, STEPS, false, decltype(paired)::value>;
        const int shared =
            layout_of(N, plan->split, s.d3, task.batch, task.samples, task.stages).all;
        return launch_chained(be, "forming and contracting a gradient", plan->chained, kernel,
                              task.units, FORM_THREADS, shared, task);
    });
}

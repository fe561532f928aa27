/* Projects the last two modes with warpgroup products; see compress.cuh.
 *
 *     T = G conj(U3),   out^T = T^T conj(U2),   for planes G (d2, d3).
 *
 * A warpgroup takes two planes at a time. A separate warp loads them into shared memory with bulk
 * copies: the fence before a copy waits for all pending work of its thread. Rows of the first
 * product are rows of a plane: row m = 16 w + g + 8 h of warp w is 4 g + w + 32 h of the plane.
 * Planes have rows of an odd number of entries, so half a warp then reads from different banks. The
 * result goes through shared memory, row m at place m, since rows of the second product are columns
 * of both planes: g and g + 8 of a warp are neighbours. Four warpgroups fit on a multiprocessor
 * because T of the second plane overwrites that plane, which is therefore fetched later than the
 * first one, after T has been read. The planes of a gradient may be masked: kept entries are
 * written to `values` and set to 0; their lists share memory with T of the first plane. Non-finite
 * entries may be counted: they make a whole row of T non-finite, which shows whether there is
 * anything to count. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    GROUPS = 4, /* warpgroups, and one more, whose warps fetch */
    BLOCK = (GROUPS + 1) * WG_THREADS,
    PLANES_PER_PASS = 2, /* planes of a warpgroup's pass */
    MAX_PLANE_ROWS = 64, /* rows of a plane at most */
    STEPS = 9,           /* of 4 entries of a row */
    N = 48,              /* columns of either product */
    T_BYTES = MAX_PLANE_ROWS * N * (int)sizeof(float),
    LIST_ENTRIES = T_BYTES / PLANES_PER_PASS /
                   (int)sizeof(uint16_t) /* entries of a plane and of a rank block */
};

struct contract_task {
    const float2 *in;
    int planes, d2, d3;
    int r2, right;
    factor_reader last, before;
    kept_set kept;
    int64_t begin; /* the first entry */
    float2 *values;
    float scale;
    float *out;           /* (groups, part, planes_per_group, r2, right) */
    int planes_per_group; /* planes whose parts are stored together in out */
    uint32_t *guard;      /* NULL: do not count */
};

/* Bytes of shared memory. */
struct contract_layout {
    int last, before, plane, group, all;
};

static __host__ __device__ inline contract_layout layout_of(int d2, int d3) {
    contract_layout at;
    at.last = (8 * STEPS + 31) / 32 * (N * 128);
    at.before = MAX_PLANE_ROWS / 32 * (N * 128); /* of a part */
    at.plane = d2 * d3 * (int)sizeof(float2);
    at.group = T_BYTES + at.plane + (at.plane > T_BYTES ? at.plane : T_BYTES);
    at.all =
        1024 + at.last + 2 * at.before +
        GROUPS * (at.group + PLANES_PER_PASS * (int)(2 * sizeof(uint64_t) + 4 * sizeof(uint32_t)));
    return at;
}

/* conj(U) of both modes as right factors. The rows of the last mode's are the parts of 4 entries,
 * real ones first; those of the other's are rows of a plane. */
static __device__ inline void store_factors(const contract_task &task, char *last, char *re,
                                            char *im) {
    constexpr int WARPS = BLOCK / 32;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    factor_share<(4 * STEPS + WARPS - 1) / WARPS, 1> of_last;
    factor_share<(MAX_PLANE_ROWS + WARPS - 1) / WARPS, 2> of_before;
    of_last.load(task.last, warp, lane);
    of_before.load(task.before, warp, lane);
    wg_zero<N>(last, (8 * STEPS + 31) / 32 * 32);
    wg_zero<N>(re, MAX_PLANE_ROWS);
    wg_zero<N>(im, MAX_PLANE_ROWS);
    __syncthreads();
    of_last.put(task.last, warp, lane, [&](int i, int j, float2 u) {
        const int k = i / 4 * 8 + i % 4;
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = towards(make_float2(to_tf32(u.x), to_tf32(u.y)), to);
            const int at = wg_at<N>(to * task.right + j, k);
            *reinterpret_cast<float *>(last + at) = parts.x;
            *reinterpret_cast<float *>(last + (at ^ 16)) = parts.y; /* k + 4 */
        }
    });
    of_before.put(task.before, warp, lane, [&](int i, int j, float2 u) {
        const int at = wg_at<N>(j, i % 4 * 16 + i / 4 % 8 + i / 32 * 8);
        *reinterpret_cast<float *>(re + at) = to_tf32(u.x);
        *reinterpret_cast<float *>(im + at) = to_tf32(u.y);
    });
}

/* ---- kept entries ---- */

/* A plane's kept entries: half a warp takes a rank block, a lane a run of it. The words are loaded
 * one plane ahead. */
struct plane_runs {
    uint32_t mask, rank;
    uint32_t base; /* the rank of the first block */

    /* Start of a lane's run, counted from the plane. */
    static __device__ int place_of(int64_t begin, int warp, int lane) {
        return 512 * (2 * warp + lane / 16) + 32 * (lane % 16) - (int)(begin % 512);
    }
    __device__ void prefetch(const kept_set &kept, int64_t begin, int entries, int warp, int lane) {
        const int64_t block = begin / 512 + 2 * warp + lane / 16, word = 16 * block + lane % 16;
        const bool exists = block * 512 < begin + entries && word < 2 * kept.count;
        mask = exists ? reinterpret_cast<const uint32_t *>(kept.words)[word] : 0;
        rank = exists ? kept.ranks[block] : 0;
        base = kept.ranks[begin / 512];
    }
    /* Positions count from `base` on. */
    __device__ kept_run find(int64_t begin, int entries, int warp, int lane) const {
        const int before = -place_of(begin, warp, lane), left = before + entries;
        const uint32_t own = (uint32_t)__popc(mask);
        const uint32_t sum = sum_up_to<16>(own, lane % 16);
        /* of other planes */
        const uint32_t low = before >= 32 ? ~0u : before > 0 ? (1u << before) - 1 : 0;
        const uint32_t high = left >= 32 ? 0 : left > 0 ? ~0u << left : ~0u;
        return {mask & ~low & ~high, rank - base + sum - own + (uint32_t)__popc(mask & low)};
    }
};

static __device__ inline bool is_bad(float2 x) {
    return is_bad(x.x) || is_bad(x.y);
}

/* Places of a plane's kept entries, in their order. */
struct kept_places {
    uint16_t *list;
    uint32_t *bounds; /* the ends of the list, and the position of its beginning */

    /* One lane per run, since planes may be full of kept entries or have none. */
    __device__ void fill(const plane_runs &loaded, int64_t begin, int entries, int warp,
                         int lane) const {
        const int place = plane_runs::place_of(begin, warp, lane);
        const kept_run run = loaded.find(begin, entries, warp, lane);
        if (place <= 0 && place + 32 > 0) {
            bounds[0] = run.before;
            bounds[2] = loaded.base;
        }
        if (place < entries && place + 32 >= entries) {
            bounds[1] = run.before + (uint32_t)__popc(run.mask);
        }
        uint16_t *to = list + run.before;
        for (uint32_t left = run.mask; left; left &= left - 1) {
            *to++ = (uint16_t)(place + __ffs((int)left) - 1);
        }
    }
};

/* Moves the kept entries of a plane to `values`, all threads in turn. Returns the thread's number
 * of non-finite ones. */
static __device__ inline uint32_t gather(const contract_task &task, const kept_places &places,
                                         float2 *plane, int warp, int lane) {
    uint32_t bad = 0;
    const uint32_t end = places.bounds[1];
    float2 *values = task.values + places.bounds[2];
    for (uint32_t at = places.bounds[0] + (uint32_t)(32 * warp + lane); at < end;
         at += WG_THREADS) {
        float2 *entry = plane + places.list[at];
        const float2 x = *entry;
        *entry = make_float2(0.0f, 0.0f);
        bad += is_bad(x);
        __stcs(values + at, make_float2(task.scale * x.x, task.scale * x.y));
    }
    return bad;
}

/* ---- products ---- */

static __device__ inline float4 to_tf32(float2 low, float2 high) {
    return make_float4(to_tf32(low.x), to_tf32(high.x), to_tf32(low.y), to_tf32(high.y));
}

/* Rows m and m + 8 of a plane, from entry t on. */
struct plane_rows {
    float4 a[STEPS];

    __device__ void load(const contract_task &task, const float2 *plane, int row, int t) {
        const float2 *low = plane + min(row, task.d2 - 1) * task.d3 + t;
        const float2 *high = plane + min(row + 32, task.d2 - 1) * task.d3 + t;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float2 x = make_float2(0.0f, 0.0f), y = x;
            if (4 * s + t < task.d3) {
                x = low[4 * s];
                y = high[4 * s];
            }
            a[s] = to_tf32(x, y);
        }
    }
};

/* Non-finite entries of these rows that are not kept; the plane begins with entry `begin`. */
template <bool KEPT>
static __device__ inline uint32_t count_bad(const contract_task &task, const float2 *plane,
                                            int64_t begin, int row, int t) {
    uint32_t bad = 0;
    for (int r = row; r < min(row + 33, task.d2); r += 32) {
        for (int e = r * task.d3 + t; e < (r + 1) * task.d3; e += 4) {
            const int64_t entry = begin + e;
            const bool is_out = KEPT && task.kept.words[entry / 64] >> (entry % 64) & 1;
            bad += !is_out && is_bad(plane[e]);
        }
    }
    return bad;
}

/* T of a plane has rows of N numbers. In every other pair of rows the two 8s of each 16 are
 * exchanged, so that half a warp writes to and reads from different banks. */
static __device__ inline int exchanged(int row) {
    return row / 2 % 2 * 8;
}

/* Stores a thread's part of T. */
static __device__ inline void put_t(const float (&sum)[N / 2], float *transposed, int m, int t,
                                    int width) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *row = transposed + (m + 8 * h) * N + 2 * t;
        float *at[2] = {row + exchanged(m), row - exchanged(m)};
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (8 * j + 2 * t < width) {
                *reinterpret_cast<float2 *>(at[j % 2] + 8 * j) =
                    make_float2(to_tf32(sum[4 * j + 2 * h]), to_tf32(sum[4 * j + 2 * h + 1]));
            }
        }
    }
}

/* Two columns of T, as left factors of a step. */
struct columns_of_t {
    float4 re, im;

    __device__ void load(const float *re_of_t, const float *im_of_t, int step) {
        re = load_part(re_of_t + 8 * step * N);
        im = load_part(im_of_t + 8 * step * N);
    }
    static __device__ float4 load_part(const float *at) {
        const float2 low = *reinterpret_cast<const float2 *>(at);
        const float2 high = *reinterpret_cast<const float2 *>(at + 4 * N);
        return make_float4(low.x, low.y, high.x, high.y);
    }
};

static __device__ inline void store_plane(const contract_task &task, int plane, int j3, int t,
                                          const float (&re)[N / 2], const float (&im)[N / 2]) {
    const int before = plane / task.planes_per_group * task.planes_per_group; /* with both parts */
    const int part = task.planes_per_group * task.r2 * task.right;
    float *row =
        task.out + (int64_t)(plane + before) * task.r2 * task.right + j3 + 2 * t * task.right;
#pragma unroll
    for (int j = 0; j < N / 8; j++, row += 8 * task.right) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (8 * j + 2 * t + e < task.r2) {
                store_two(row + e * task.right, re[4 * j + e], re[4 * j + 2 + e]);
                store_two(row + part + e * task.right, im[4 * j + e], im[4 * j + 2 + e]);
            }
        }
    }
}

/* ---- the kernel ---- */

template <bool COMMON> static __device__ inline contract_task sizes_of(contract_task task) {
    if (COMMON) {
        task.d2 = COMMON_D2;
        task.d3 = COMMON_D3;
        task.right = COMMON_RIGHT;
    }
    return task;
}

template <bool KEPT, bool COUNTS, bool COMMON>
static __global__ void __launch_bounds__(BLOCK, 1) contract_planes(contract_task given) {
    const contract_task task = sizes_of<COMMON>(given);
    extern __shared__ char shared[];
    const contract_layout at = layout_of(task.d2, task.d3);
    char *last = shared + (1024 - shared_at(shared) % 1024) % 1024;
    char *re_of_u = last + at.last, *im_of_u = re_of_u + at.before;
    char *groups = im_of_u + at.before;
    const bool fetches = threadIdx.x >= GROUPS * WG_THREADS;
    const int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    const int group = fetches ? warp : (int)threadIdx.x / WG_THREADS;
    const int g = lane / 4, t = lane % 4;
    char *own = groups + group * at.group;
    const auto plane_of = [&](int h) { return own + T_BYTES + h * at.plane; };
    uint64_t *full =
        reinterpret_cast<uint64_t *>(groups + GROUPS * at.group) + group * (2 * PLANES_PER_PASS);
    uint64_t *empty = full + PLANES_PER_PASS;
    uint32_t *bounds = reinterpret_cast<uint32_t *>(
        groups + GROUPS * (at.group + 2 * PLANES_PER_PASS * (int)sizeof(uint64_t)));
    const int first = (int)blockIdx.x + (int)gridDim.x * group, stride = (int)gridDim.x * GROUPS;
    const int pairs = (task.planes + PLANES_PER_PASS - 1) / PLANES_PER_PASS;
    const auto plane_at = [&](int pair, int h) {
        return min(pair * PLANES_PER_PASS + h,
                   task.planes - 1); /* past the end: the last plane again */
    };
    const auto memory_of = [&](int pair, int h) {
        return task.in + plane_at(pair, h) * (int64_t)(task.d2 * task.d3);
    };
    if (fetches && lane == 0) {
        for (int h = 0; h < PLANES_PER_PASS; h++) {
            barrier_init(full + h, 1);
            barrier_init(empty + h, WG_THREADS);
        }
        barriers_made();
    }
    store_factors(task, last, re_of_u, im_of_u);
    wg_publish();
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    if (fetches) {
        registers_decrease<24>();
        for (int pair = first, round = 0; lane == 0 && pair < pairs; pair += stride, round++) {
            for (int h = 0; h < PLANES_PER_PASS; h++) {
                if (round > 0) {
                    barrier_wait(empty + h, (round - 1) % 2);
                    wg_publish();
                }
                barrier_expect(full + h, at.plane);
                copy_bulk(plane_of(h), memory_of(pair, h), at.plane, full + h);
            }
        }
        return;
    }
    registers_increase<112>();
    const auto begin_of = [&](int pair, int h) {
        return task.begin + plane_at(pair, h) * (int64_t)(task.d2 * task.d3);
    };
    /* shares memory with T: filled after the previous pair's products */
    const auto places_of = [&](int h) {
        return kept_places{reinterpret_cast<uint16_t *>(own) + h * LIST_ENTRIES,
                           bounds + (PLANES_PER_PASS * group + h) * 4};
    };
    plane_runs runs[PLANES_PER_PASS];
    for (int h = 0; h < PLANES_PER_PASS && KEPT && first < pairs; h++) {
        runs[h].prefetch(task.kept, begin_of(first, h), task.d2 * task.d3, warp, lane);
    }
    const uint64_t last_matrix = wg_matrix(last);
    const uint64_t re_matrix = wg_matrix(re_of_u), im_matrix = wg_matrix(im_of_u);
    const int width = PLANES_PER_PASS * task.right, m = 16 * warp + g;
    const int column = 16 * warp + 2 * g < width ? 16 * warp + 2 * g : 0;
    const int h_of = column / task.right, j3 = column - h_of * task.right;
    /* T of the second plane overwrites that plane */
    const auto t_of = [&](int h) {
        return reinterpret_cast<float *>(own + h * (T_BYTES + at.plane));
    };
    const float *rows_of_t = t_of(h_of) + t * N;
    const float *re_of_t = rows_of_t + (j3 ^ exchanged(t));
    const float *im_of_t = rows_of_t + ((task.right + j3) ^ exchanged(t));
    uint32_t bad = 0;
    for (int pair = first, round = 0; pair < pairs; pair += stride, round++) {
        const bool more = pair + stride < pairs;
        wg_sync(); /* T of the previous planes has been read */
        if (KEPT) {
#pragma unroll
            for (int h = 0; h < PLANES_PER_PASS; h++) {
                places_of(h).fill(runs[h], begin_of(pair, h), task.d2 * task.d3, warp, lane);
                if (more) {
                    runs[h].prefetch(task.kept, begin_of(pair + stride, h), task.d2 * task.d3, warp,
                                     lane);
                }
            }
            wg_sync();
        }
        const auto take_kept = [&](int h) {
            barrier_wait(full + h, round % 2);
            if (KEPT) {
                const uint32_t kept =
                    gather(task, places_of(h), reinterpret_cast<float2 *>(plane_of(h)), warp, lane);
                bad += pair * PLANES_PER_PASS + h < task.planes ? kept : 0;
                wg_sync();
            }
        };
        take_kept(0);
#pragma unroll
        for (int h = 0; h < PLANES_PER_PASS; h++) {
            plane_rows rows;
            rows.load(task, reinterpret_cast<const float2 *>(plane_of(h)), 4 * g + warp, t);
            if (h == 0) {
                barrier_arrive(empty);
            }
            float sum[N / 2];
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                wg_hold(rows.a[s]);
            }
            wg_begin();
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                wg_product(sum, rows.a[s], wg_rows<N>(last_matrix, s), s > 0);
            }
            wg_end();
            wg_wait<0>();
            wg_fence(sum);
            if (COUNTS && pair * PLANES_PER_PASS + h < task.planes &&
                (is_bad(sum[0]) || is_bad(sum[2]))) {
                bad +=
                    count_bad<KEPT>(task, memory_of(pair, h), begin_of(pair, h), 4 * g + warp, t);
            }
            if (h == 0) { /* whose T overwrites the lists */
                take_kept(1);
            } else {
                wg_sync(); /* all rows of the plane have been read */
            }
            put_t(sum, t_of(h), m, t, 2 * task.right);
        }
        wg_sync();
        float re[N / 2], im[N / 2];
        columns_of_t next;
        next.load(re_of_t, im_of_t, 0);
#pragma unroll
        for (int k = 0; k < MAX_PLANE_ROWS / 8; k++) {
            wg_hold(next.re);
            wg_hold(next.im);
            const float4 x = next.re, y = next.im, minus = make_float4(-x.x, -x.y, -x.z, -x.w);
            wg_begin();
            wg_product(re, x, wg_rows<N>(re_matrix, k), k > 0);
            wg_product(im, y, wg_rows<N>(re_matrix, k), k > 0);
            wg_product(re, y, wg_rows<N>(im_matrix, k), true);
            wg_product(im, minus, wg_rows<N>(im_matrix, k), true);
            wg_end();
            if (k + 1 < MAX_PLANE_ROWS / 8) {
                next.load(re_of_t, im_of_t, k + 1);
            }
            wg_wait<0>();
        }
        wg_fence(re);
        wg_fence(im);
        barrier_arrive(empty + 1);
        const int plane = pair * PLANES_PER_PASS + h_of;
        if (16 * warp + 2 * g < width && plane < task.planes) {
            store_plane(task, plane, j3, t, re, im);
        }
    }
    if (COUNTS && task.guard) {
        bad = __reduce_add_sync(~0u, bad);
        if (lane == 0 && bad > 0) {
            add_saturating(task.guard, bad);
        }
    }
}

/* ---- launches ---- */

bool cuda_sm90_contract_fits(const tg_backend *be, const plane_pass *s) {
    return cuda_state_of(be)->is_hopper && s->tiles > 0 && s->d2 > MAX_PLANE_ROWS / 2 &&
           s->d2 <= MAX_PLANE_ROWS && s->d2 * s->d3 % 2 == 0 && s->d3 <= 4 * STEPS && s->r2 <= N &&
           2 * s->right <= N && s->right % 4 == 0 &&
           layout_of(s->d2, s->d3).all <= cuda_state_of(be)->max_shared;
}

template <bool COMMON> static void (*kernel_of(bool gathers, bool counts))(contract_task) {
    if (gathers) {
        return counts ? contract_planes<true, true, COMMON> : contract_planes<true, false, COMMON>;
    }
    return counts ? contract_planes<false, true, COMMON> : contract_planes<false, false, COMMON>;
}

tg_status cuda_sm90_contract(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                             int64_t begin, int64_t count, bool gathers, bool after_mode_one,
                             const void *in, void *out) {
    const plane_pass &s = plan->planes;
    contract_task task = contract_task();
    task.in = static_cast<const float2 *>(in);
    task.planes_per_group = after_mode_one ? (int)plan->step[2].factor.rank : 1;
    task.planes = (int)(count * (after_mode_one ? task.planes_per_group : plan->step[1].left));
    task.d2 = s.d2;
    task.d3 = s.d3;
    task.r2 = s.r2;
    task.right = s.right;
    task.last = reader_of(&plan->step[0].factor);
    task.before = reader_of(&plan->step[1].factor);
    task.kept = kept_set_of(op->bitmap);
    task.begin = begin * plan->unit;
    task.values = static_cast<float2 *>(op->values);
    task.scale = (float)op->scale;
    task.out = static_cast<float *>(out);
    task.guard = op->guard;
    const int64_t pairs = (task.planes + PLANES_PER_PASS - 1) / PLANES_PER_PASS;
    const auto kernel = has_common_sizes(s) ? kernel_of<true>(gathers, op->guard != NULL)
                                            : kernel_of<false>(gathers, op->guard != NULL);
    return launch_chained(be, "contracting two modes", plan->chained, kernel, pairs, BLOCK,
                          layout_of(s.d2, s.d3).all, task);
}

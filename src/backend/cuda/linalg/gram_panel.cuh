/* Input of a block of the Gram kernel, x (left, dim, right): which rows and tiles a block has, and
 * how 16 columns c = (l, r) of x are copied to shared memory, masked and widened to planes of
 * f64. */
#ifndef TG_BACKEND_CUDA_LINALG_GRAM_PANEL_CUH
#define TG_BACKEND_CUDA_LINALG_GRAM_PANEL_CUH

#include <cuda_pipeline_primitives.h>

#include "backend/cuda/core/element.cuh"

enum {
    COLUMNS = 16, /* of x at a time */
    GROUP = 64,   /* rows */
    TILE = 32,    /* rows and columns of a warp */
    SUBTILES = 8  /* of 16 x 8 in a tile */
};

struct gram_job {
    const char *x;
    const uint32_t *mask; /* a bit per entry of x; NULL: none */
    int dim;
    int64_t right, columns;
    int64_t step_at, step_r; /* from one chunk of columns to the next, see cursor */
    tg_dtype real;           /* of the entries' parts */
    int size;                /* bytes of an entry */
    int copy;      /* bytes that are copied at once: 8, 4, or 2 if they are not aligned to 4 */
    bool triangle; /* the tiles of a triangle, or those of a square */
    int first;     /* triangle or square of the first row of blocks */
    int ahead;     /* chunks in flight while others are widened and multiplied: 1 or 2 */
    double *partials;
};

/* ---- which rows and tiles ---- */

/* The two groups of a block, low <= high. */
struct row_groups {
    int low, high;
};

/* Triangle q has groups 2q and 2q + 1. Squares: four for each pair of triangles q > p. */
static __device__ row_groups groups_of(bool triangle, int index) {
    if (triangle) {
        return {2 * index, 2 * index + 1};
    }
    const int corner = index % 4;
    int p = index / 4, q = 1;
    while (p >= q) {
        p -= q++;
    }
    return {2 * p + corner % 2, 2 * q + corner / 2};
}

/* The row of x for row i of a panel. */
static __device__ inline int row_of(const row_groups &groups, int i) {
    return i < GROUP ? groups.low * GROUP + i : (groups.high - 1) * GROUP + i;
}

struct tile_place {
    int row, column; /* first ones in the panel */
};

/* Tiles of a triangle are ordered so that those on the diagonal, which have less work, go to warps
 * 0, 1, 4 and 9: the quarters of a multiprocessor that run three of the ten warps, not two. */
static __device__ tile_place tile_of(bool triangle, int warp) {
    if (!triangle) {
        return {GROUP + warp / 2 * TILE, warp % 2 * TILE};
    }
    int row = 0;
    while ((row + 1) * (row + 2) / 2 <= warp) {
        row++;
    }
    const int place = warp - row * (row + 1) / 2 + (row == 1 || row == 2 ? 1 : 0);
    return {row * TILE, place % (row + 1) * TILE};
}

/* Bit b of the result: subtile b (row b / 4, column b % 4) has entries of the lower triangle. */
static __device__ unsigned active_subtiles(const gram_job &job, const row_groups &groups,
                                           tile_place tile) {
    unsigned active = 0;
    for (int b = 0; b < SUBTILES; b++) {
        const int i = tile.row + b / 4 * 16, j = tile.column + b % 4 * 8;
        const bool within = row_of(groups, i) < job.dim && row_of(groups, j) < job.dim;
        active |= within && j <= i + 15 ? 1u << b : 0u;
    }
    return active;
}

/* ---- panels ---- */

/* Which entries of 16 columns and ROWS rows a lane loads in slot `turn`. ROWS_ADJACENT: the rows of
 * a column are contiguous in memory (right = 1), so lanes run along them; else along the
 * columns. */
template <bool ROWS_ADJACENT, int ROWS> struct panel {
    static constexpr int loaders = ROWS / GROUP; /* warps */
    static constexpr int turns = COLUMNS * ROWS / 32;
    static constexpr int row_step = ROWS_ADJACENT ? 1 : COLUMNS + 4; /* in a plane of f64 */
    static constexpr int column_step = ROWS_ADJACENT ? ROWS + 4 : 1; /* 4 mod 16: no conflicts */
    static constexpr int plane = ROWS_ADJACENT ? COLUMNS * column_step : ROWS * row_step;

    static __device__ int row(int turn, int lane) {
        return ROWS_ADJACENT ? turn % (ROWS / 32) * 32 + lane : turn * 2 + lane / COLUMNS;
    }
    static __device__ int column(int turn, int lane) {
        return ROWS_ADJACENT ? turn / (ROWS / 32) : lane % COLUMNS;
    }
};

/* A lane's position in x: column `lane % 16` of a chunk if the columns are contiguous, else its
 * first column. */
template <bool ROWS_ADJACENT> struct cursor {
    int64_t left;  /* columns of x from the chunk's first one on */
    int64_t at, r; /* index of the column's entry in row 0, and its r */

    __device__ cursor(const gram_job &job, int64_t chunk, int lane) {
        const int64_t column = chunk * COLUMNS + (ROWS_ADJACENT ? 0 : lane % COLUMNS);
        left = job.columns - chunk * COLUMNS;
        r = column % job.right;
        at = column / job.right * job.dim * job.right + r;
    }
    __device__ void advance(const gram_job &job) {
        left -= COLUMNS;
        at += job.step_at;
        if (!ROWS_ADJACENT) {
            r += job.step_r;
            if (r >= job.right) {
                r -= job.right;
                at += (job.dim - 1) * job.right;
            }
        }
    }
    /* Index of an entry of x, -1 outside. */
    __device__ int64_t index(const gram_job &job, int row, int column) const {
        if (row >= job.dim || column >= left) {
            return -1;
        }
        return ROWS_ADJACENT ? at + column * job.dim + row : at + row * job.right;
    }
};

/* Starts the copy of one entry to shared memory. */
static __device__ inline void fetch_entry(const gram_job &job, int64_t at, char *slot) {
    const char *from = job.x + at * job.size;
    if (job.copy == 8) {
        __pipeline_memcpy_async(slot, from, 8);
        if (job.size == 16) {
            __pipeline_memcpy_async(slot + 8, from + 8, 8);
        }
    } else if (job.copy == 4) {
        for (int byte = 0; byte < job.size; byte += 4) {
            __pipeline_memcpy_async(slot + byte, from + byte, 4);
        }
    } else {
        for (int byte = 0; byte < job.size; byte += 2) {
            *reinterpret_cast<uint16_t *>(slot + byte) =
                *reinterpret_cast<const uint16_t *>(from + byte);
        }
    }
}

static __device__ inline double widen_part(tg_dtype real, const char *slot, int part) {
    switch (real) {
    case TG_F64:
        return reinterpret_cast<const double *>(slot)[part];
    case TG_BF16:
        return widen(reinterpret_cast<const __nv_bfloat16 *>(slot)[part]);
    case TG_F16:
        return widen(reinterpret_cast<const __half *>(slot)[part]);
    default:
        return reinterpret_cast<const float *>(slot)[part];
    }
}

/* Starts the copies of a chunk: entries to `raw`, the words of the mask they have a bit in to
 * `words`. Each thread later reads the numbers it copied. */
template <bool ROWS_ADJACENT, int ROWS>
static __device__ void fetch_panel(const gram_job &job, const row_groups &groups,
                                   const cursor<ROWS_ADJACENT> &place, char *raw, uint32_t *words) {
    const int lane = threadIdx.x % 32;
    using share = panel<ROWS_ADJACENT, ROWS>;
#pragma unroll 4
    for (int turn = threadIdx.x / 32; turn < share::turns; turn += share::loaders) {
        const int64_t at =
            place.index(job, row_of(groups, share::row(turn, lane)), share::column(turn, lane));
        const int slot = turn * 32 + lane;
        if (at >= 0) {
            fetch_entry(job, at, raw + slot * job.size);
            if (job.mask) {
                __pipeline_memcpy_async(words + slot, job.mask + at / 32, 4);
            }
        }
    }
    __pipeline_commit();
}

/* Waits for the oldest chunk in flight. */
static __device__ inline void await_panel(const gram_job &job) {
    if (job.ahead == 2) {
        __pipeline_wait_prior(1);
    } else {
        __pipeline_wait_prior(0);
    }
}

/* Widens a loaded chunk to planes; 0 outside x and where the mask has a bit. */
template <int PARTS, bool ROWS_ADJACENT, int ROWS>
static __device__ void widen_panel(const gram_job &job, const row_groups &groups,
                                   const cursor<ROWS_ADJACENT> &place, const char *raw,
                                   const uint32_t *words, double *planes) {
    const int lane = threadIdx.x % 32;
    using share = panel<ROWS_ADJACENT, ROWS>;
#pragma unroll 4
    for (int turn = threadIdx.x / 32; turn < share::turns; turn += share::loaders) {
        const int row = share::row(turn, lane), column = share::column(turn, lane);
        const int slot = turn * 32 + lane;
        const int64_t at = place.index(job, row_of(groups, row), column);
        const bool hidden = at < 0 || (job.mask && (words[slot] >> (at % 32) & 1));
        double *to = planes + row * share::row_step + column * share::column_step;
        for (int part = 0; part < PARTS; part++) {
            to[part * share::plane] =
                hidden ? 0.0 : widen_part(job.real, raw + slot * job.size, part);
        }
    }
}

/* ---- full panels of complex f32 without a mask ---- */

/* Most Gram matrices are of this kind, and loading warps should not delay multiplying ones. Handles
 * only existing rows and full chunks. */
template <bool ROWS_ADJACENT, int ROWS>
static __device__ inline bool is_full_chunk(const gram_job &job,
                                            const cursor<ROWS_ADJACENT> &place) {
    return job.real == TG_F32 && job.size == 8 && job.copy == 8 && !job.mask && job.dim <= ROWS &&
           place.left >= COLUMNS;
}

/* Calls f(turn, offset) for each turn of a warp whose row exists; `offset` is relative to the first
 * entry of the lane's column, or of the chunk. */
template <bool ROWS_ADJACENT, int ROWS, class F>
static __device__ inline void for_each_turn(const gram_job &job, F f) {
    using share = panel<ROWS_ADJACENT, ROWS>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t step = share::loaders * 2 * job.right;
    int64_t offset = (warp * 2 + lane / COLUMNS) * job.right;
#pragma unroll 8
    for (int turn = warp; turn < share::turns; turn += share::loaders, offset += step) {
        const int row = share::row(turn, lane);
        if (row < job.dim) {
            f(turn, ROWS_ADJACENT ? (int64_t)(share::column(turn, lane) * job.dim + row) : offset);
        }
    }
}

template <bool ROWS_ADJACENT, int ROWS>
static __device__ void fetch_full_chunk(const gram_job &job, const cursor<ROWS_ADJACENT> &place,
                                        char *raw) {
    const float2 *from = reinterpret_cast<const float2 *>(job.x) + place.at;
    float2 *to = reinterpret_cast<float2 *>(raw) + threadIdx.x % 32;
    for_each_turn<ROWS_ADJACENT, ROWS>(job, [&](int turn, int64_t offset) {
        __pipeline_memcpy_async(to + turn * 32, from + offset, sizeof(float2));
    });
    __pipeline_commit();
}

/* Rows that do not exist are already 0. */
template <bool ROWS_ADJACENT, int ROWS>
static __device__ void widen_plain(const gram_job &job, const char *raw, double *planes) {
    using share = panel<ROWS_ADJACENT, ROWS>;
    const int lane = threadIdx.x % 32;
    const float2 *from = reinterpret_cast<const float2 *>(raw) + lane;
    for_each_turn<ROWS_ADJACENT, ROWS>(job, [&](int turn, int64_t) {
        double *to = planes + share::row(turn, lane) * share::row_step +
                     share::column(turn, lane) * share::column_step;
        const float2 x = from[turn * 32];
        to[0] = x.x;
        to[share::plane] = x.y;
    });
}

#endif

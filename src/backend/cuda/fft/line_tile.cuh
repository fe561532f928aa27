/* Tiles of lines: where they are in shared and in global memory. */
#ifndef TG_BACKEND_CUDA_FFT_LINE_TILE_CUH
#define TG_BACKEND_CUDA_FFT_LINE_TILE_CUH

#include "backend/cuda/fft/butterfly.cuh"
#include "backend/cuda/fft/fft.cuh"

/* ---- addresses ---- */

__device__ inline int over(int x, fft_divisor by) {
    return (int)((uint64_t)(uint32_t)x * by.magic >> 31);
}

/* A position in a tile. */
struct place {
    int line, index;
};

/* Item number x of `count` (= by.value) per line. */
__device__ inline place place_of(const fft_lines &s, int x, fft_divisor by) {
    if (s.by_columns) {
        const int index = over(x, s.by_tile);
        return {x - index * s.tile, index};
    }
    const int line = over(x, by);
    return {line, x - line * (int)by.value};
}

/* Slot of point `index` of a part. */
__device__ inline int slot_of(const fft_lines &s, int line, int part, int index) {
    return line * s.line_pitch + part * s.part_pitch + index + (int)((unsigned)index / FFT_PAD);
}

/* Lines of a tile: the first one and how many. Real data: a line is rows 2 * outer and 2 * outer +
 * 1, of which the last one may be missing. */
struct tile {
    int64_t outer, column;
    int lines, rows;
};

__device__ inline tile tile_at(const fft_lines &s, const fft_pass &p, int64_t number) {
    if (s.by_columns) {
        const int64_t across = (p.inner + s.tile - 1) / s.tile, outer = number / across;
        const int64_t column = (number - outer * across) * s.tile;
        return {outer, column, (int)min((int64_t)s.tile, p.inner - column), 0};
    }
    const int64_t outer = number * s.tile;
    if (!s.real) {
        return {outer, 0, (int)min((int64_t)s.tile, p.outer - outer), 0};
    }
    const int rows = (int)min((int64_t)2 * s.tile, p.outer - 2 * outer);
    return {outer, 0, (rows + 1) / 2, rows};
}

/* Address of complex element `index` of a line of the tile. */
__device__ inline int64_t element_at(const fft_lines &s, const fft_side &side, const tile &t,
                                     int line, int index) {
    const int64_t first = t.outer * side.outer + t.column;
    return first + line * (s.by_columns ? 1 : side.outer) + index * side.step;
}

/* ---- global memory, by storage format ---- */

/* Whether a side holds numbers as its slots do. */
template <class R> inline bool is_aligned(const fft_side &side) {
    return side.store == TG_STORE_FULL && (uintptr_t)side.data % sizeof(slot<R>) == 0;
}

/* Aligned pairs take one access; the branch is uniform. */
template <class R> __device__ inline pair<R> load_full(const void *x, int64_t i) {
    return (uintptr_t)x % sizeof(slot<R>) == 0 ? take(static_cast<const slot<R> *>(x)[i])
                                               : static_cast<const pair<R> *>(x)[i];
}

template <class R> __device__ inline void store_full(void *x, int64_t i, pair<R> value) {
    if ((uintptr_t)x % sizeof(slot<R>) == 0) {
        static_cast<slot<R> *>(x)[i] = {value.re, value.im};
    } else {
        static_cast<pair<R> *>(x)[i] = value;
    }
}

__device__ inline pair<double> load(const fft_side &side, int64_t i, double) {
    return load_full<double>(side.data, i);
}

__device__ inline pair<float> load(const fft_side &side, int64_t i, float) {
    switch (side.store) {
    case TG_STORE_BF16:
        return widen(static_cast<const pair<__nv_bfloat16> *>(side.data)[i]);
    case TG_STORE_F16:
        return widen(static_cast<const pair<__half> *>(side.data)[i]);
    default:
        return load_full<float>(side.data, i);
    }
}

__device__ inline void store(const fft_side &side, int64_t i, pair<double> value) {
    store_full(side.data, i, value);
}

__device__ inline void store(const fft_side &side, int64_t i, pair<float> value) {
    switch (side.store) {
    case TG_STORE_BF16:
        static_cast<pair<__nv_bfloat16> *>(side.data)[i] = narrow_pair<__nv_bfloat16>(value);
        break;
    case TG_STORE_F16:
        static_cast<pair<__half> *>(side.data)[i] = narrow_pair<__half>(value);
        break;
    default:
        store_full(side.data, i, value);
    }
}

/* ---- the grid, a tile at a time ---- */

/* Points of the grid, for the first stage forward: complex ones that are aligned (the plan's own
 * are), */
template <class R> struct read_slots {
    const slot<R> *at; /* point 0 of the tile's first line */
    int64_t line, step;
    __device__ read_slots(const fft_lines &s, const fft_side &side, const tile &t)
        : at(static_cast<const slot<R> *>(side.data) + element_at(s, side, t, 0, 0)),
          line(s.by_columns ? 1 : side.outer), step(side.step) {
    }
    __device__ pair<R> operator()(int l, int n) const {
        return take(at[l * line + n * step]);
    }
};

/* .. any others, */
template <class R> struct read_loose {
    const fft_side &side;
    int64_t first, line;
    __device__ read_loose(const fft_lines &s, const fft_side &from, const tile &t)
        : side(from), first(element_at(s, from, t, 0, 0)), line(s.by_columns ? 1 : from.outer) {
    }
    __device__ pair<R> operator()(int l, int n) const {
        return load(side, first + l * line + n * side.step, R());
    }
};

/* .. and pairs of real rows. */
template <class R, class S> struct read_rows {
    const S *at;
    int64_t row;
    int rows;
    __device__ read_rows(const fft_lines &, const fft_side &side, const tile &t)
        : at(static_cast<const S *>(side.data) + 2 * t.outer * side.outer), row(side.outer),
          rows(t.rows) {
    }
    __device__ pair<R> operator()(int l, int n) const {
        const S *x = at + 2 * l * row + n;
        return {widen(x[0]), 2 * l + 1 < rows ? widen(x[row]) : (R)0};
    }
};

/* The same for the last stage of an inverse. */
template <class R> struct write_slots {
    slot<R> *at;
    int64_t line, step;
    __device__ write_slots(const fft_lines &s, const fft_side &side, const tile &t)
        : at(static_cast<slot<R> *>(side.data) + element_at(s, side, t, 0, 0)),
          line(s.by_columns ? 1 : side.outer), step(side.step) {
    }
    __device__ void operator()(int l, int n, pair<R> value) const {
        at[l * line + n * step] = {value.re, value.im};
    }
};

template <class R> struct write_loose {
    const fft_side &side;
    int64_t first, line;
    __device__ write_loose(const fft_lines &s, const fft_side &to, const tile &t)
        : side(to), first(element_at(s, to, t, 0, 0)), line(s.by_columns ? 1 : to.outer) {
    }
    __device__ void operator()(int l, int n, pair<R> value) const {
        store(side, first + l * line + n * side.step, value);
    }
};

template <class R, class S> struct write_rows {
    S *at;
    int64_t row;
    int rows;
    __device__ write_rows(const fft_lines &, const fft_side &side, const tile &t)
        : at(static_cast<S *>(side.data) + 2 * t.outer * side.outer), row(side.outer),
          rows(t.rows) {
    }
    __device__ void operator()(int l, int n, pair<R> value) const {
        S *x = at + 2 * l * row + n;
        x[0] = narrow<S>(value.re);
        if (2 * l + 1 < rows) {
            x[row] = narrow<S>(value.im);
        }
    }
};

#endif

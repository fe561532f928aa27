/* Fast transforms of many lines, pruned to the kept frequencies, one kernel per dimension.
 * two_step.cu handles the lengths and windows it supports.
 *
 * A block holds a tile of lines in shared memory. With n = parts * m and W = e^{-2 pi i / n},
 *
 *     X[k] = sum_p W^{p k} Y_p[k mod m],   Y_p[j] = sum_q x[p + parts q] W^{parts j q},
 *
 * so a line is `parts` transforms of m points, by Stockham's algorithm with butterflies of up to 16
 * points in registers, and a final sum at the kept frequencies only. The inverse reverses the
 * steps: first Y_p[j] = sum of W^{-p k} X[k] over the kept k = j mod m, then transforms of m
 * points. It runs with real and imaginary parts exchanged, which turns a forward transform into an
 * inverse one. Two real rows form one complex line.
 *
 * Data are read from and written to global memory once. Wrapping frequency windows, 16-bit formats,
 * weights and the split into two real rows are handled in these loads and stores. */
#include "backend/cuda/fft/line_tile.cuh"

/* ---- stages ---- */

/* The first stage forward, from the grid. */
template <int radix, class R, class Read>
static __device__ inline void first_stage(const fft_lines &s, int lines, const Read &read,
                                          slot<R> *out) {
    const int count = s.n / radix; /* butterflies per line */
    for (int b = threadIdx.x; b < s.tile * count; b += blockDim.x) {
        const place at = place_of(s, b, s.by_first);
        if (at.line >= lines) {
            continue;
        }
        pair<R> v[radix];
#pragma unroll
        for (int i = 0; i < radix; i++) {
            v[i] = read(at.line, at.index + i * count);
        }
        transform_short<radix>(v, static_cast<const slot<R> *>(s.roots), count);
        const int index = over(at.index, s.by_parts), part = at.index - index * s.parts;
#pragma unroll
        for (int i = 0; i < radix; i++) {
            out[slot_of(s, at.line, part, index * radix + i)] = {v[i].re, v[i].im};
        }
    }
}

template <int radix, class R>
static __device__ inline void stage(const fft_lines &s, const fft_stage &g, int lines,
                                    const slot<R> *in, slot<R> *out) {
    const slot<R> *roots = static_cast<const slot<R> *>(s.roots);
    const int count = s.m / radix, unit = s.n / radix;
    for (int b = threadIdx.x; b < lines * s.parts * count; b += blockDim.x) {
        const int whole = over(b, g.butterflies), index = b - whole * count;
        const int line = over(whole, s.by_parts), part = whole - line * s.parts;
        pair<R> v[radix];
#pragma unroll
        for (int i = 0; i < radix; i++) {
            v[i] = take(in[slot_of(s, line, part, index + i * count)]);
        }
        const int block = over(index, g.spans), low = index - block * g.span;
        if (g.span > 1) {
            apply_twiddles<radix>(v, roots, low * over(unit, g.spans));
        }
        transform_short<radix>(v, roots, unit);
        const int first = block * g.span * radix + low;
#pragma unroll
        for (int i = 0; i < radix; i++) {
            out[slot_of(s, line, part, first + i * g.span)] = {v[i].re, v[i].im};
        }
    }
}

/* The last stage of an inverse, to the grid, swapping the parts back: its one block of butterflies
 * has span m / radix. */
template <int radix, class R, class Write>
static __device__ inline void last_stage(const fft_lines &s, const fft_stage &g, int lines,
                                         const slot<R> *in, const Write &write) {
    const slot<R> *roots = static_cast<const slot<R> *>(s.roots);
    const int count = s.n / radix; /* butterflies per line */
    for (int b = threadIdx.x; b < s.tile * count; b += blockDim.x) {
        const place at = place_of(s, b, s.by_last);
        if (at.line >= lines) {
            continue;
        }
        const int index = over(at.index, s.by_parts), part = at.index - index * s.parts;
        pair<R> v[radix];
#pragma unroll
        for (int i = 0; i < radix; i++) {
            v[i] = take(in[slot_of(s, at.line, part, index + i * g.span)]);
        }
        if (g.span > 1) {
            apply_twiddles<radix>(v, roots, index * s.parts);
        }
        transform_short<radix>(v, roots, count);
#pragma unroll
        for (int i = 0; i < radix; i++) {
            write(at.line, at.index + i * count, pair<R>{v[i].im, v[i].re});
        }
    }
}

/* Calls f with the radix as a type. */
template <int radix> struct radix_tag { static constexpr int value = radix; };
template <class F> static __device__ inline void with_radix(int radix, F f) {
    switch (radix) {
    case 16:
        return f(radix_tag<16>());
    case 8:
        return f(radix_tag<8>());
    case 7:
        return f(radix_tag<7>());
    case 5:
        return f(radix_tag<5>());
    case 4:
        return f(radix_tag<4>());
    case 3:
        return f(radix_tag<3>());
    case 2:
        return f(radix_tag<2>());
    default:
        return f(radix_tag<1>());
    }
}

/* The stages from `first` to before `end`; the result is in *in. */
template <class R>
static __device__ inline void other_stages(const fft_lines &s, int first, int end, int lines,
                                           slot<R> **in, slot<R> **out) {
    for (int g = first; g < end; g++) {
        with_radix(s.stage[g].radix,
                   [&](auto tag) { stage<decltype(tag)::value>(s, s.stage[g], lines, *in, *out); });
        slot<R> *const done = *out;
        *out = *in;
        *in = done;
        __syncthreads();
    }
}

/* ---- forward ---- */

/* X at frequency index f: the sum over the parts, by Horner's rule. */
template <class R>
static __device__ inline pair<R> combine(const fft_lines &s, const slot<R> *lines, int line,
                                         int f) {
    const slot<R> *y = lines + slot_of(s, line, 0, f - over(f, s.by_m) * s.m);
    pair<R> sum = take(y[(s.parts - 1) * s.part_pitch]);
    if (s.parts > 1) {
        const pair<R> w = root_at(static_cast<const slot<R> *>(s.roots), f);
        for (int part = s.parts - 2; part >= 0; part--) {
            sum = sum * w + take(y[part * s.part_pitch]);
        }
    }
    return sum;
}

template <class R>
static __device__ inline void write_kept(const fft_lines &s, const fft_pass &p, const tile &t,
                                         const slot<R> *from) {
    const R scale = (R)p.interior;
    for (int b = threadIdx.x; b < s.tile * s.kept; b += blockDim.x) {
        const place at = place_of(s, b, s.by_kept);
        if (at.line < t.lines) {
            const int f = s.first + at.index;
            const pair<R> value = scale * combine(s, from, at.line, f < s.n ? f : f - s.n);
            store(p.kept, element_at(s, p.kept, t, at.line, at.index), value);
        }
    }
}

/* Whether an index of a half spectrum is its own mirror image. */
static __device__ inline bool is_edge(const fft_lines &s, int k) {
    return k == 0 || 2 * k == s.n;
}

/* Row a + i b has the transform A + i B, with A and B those of real rows. */
template <class R>
static __device__ inline void write_half(const fft_lines &s, const fft_pass &p, const tile &t,
                                         const slot<R> *from) {
    const R edge = (R)(0.5 * p.edge), interior = (R)(0.5 * p.interior);
    for (int b = threadIdx.x; b < s.tile * s.kept; b += blockDim.x) {
        const place at = place_of(s, b, s.by_kept);
        if (at.line >= t.lines) {
            continue;
        }
        const int k = at.index;
        const R factor = is_edge(s, k) ? edge : interior;
        const pair<R> x = combine(s, from, at.line, k);
        const pair<R> y = k == 0 ? x : combine(s, from, at.line, s.n - k);
        const int64_t row = (2 * (t.outer + at.line)) * p.kept.outer + k;
        store(p.kept, row, factor * pair<R>{x.re + y.re, x.im - y.im});
        if (2 * at.line + 1 < t.rows) {
            store(p.kept, row + p.kept.outer, factor * pair<R>{x.im + y.im, y.re - x.re});
        }
    }
}

extern __shared__ double2 shared_memory[];

template <class R, class Read, bool real>
static __global__ void __launch_bounds__(FFT_MAX_THREADS)
    forward(const fft_lines s, const fft_pass p, int64_t tiles) {
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const tile t = tile_at(s, p, number);
        slot<R> *in = reinterpret_cast<slot<R> *>(shared_memory);
        slot<R> *out = in + s.tile * s.line_pitch;
        const Read read(s, p.grid, t);
        with_radix(s.stage[0].radix,
                   [&](auto tag) { first_stage<decltype(tag)::value>(s, t.lines, read, in); });
        __syncthreads();
        other_stages(s, 1, s.stages, t.lines, &in, &out);
        if constexpr (real) {
            write_half(s, p, t, in);
        } else {
            write_kept(s, p, t, in);
        }
        __syncthreads();
    }
}

/* ---- inverse ---- */

/* X at frequency index f with its parts swapped; false where nothing is kept. */
template <class R>
static __device__ inline bool read_kept(const fft_lines &s, const fft_pass &p, const tile &t,
                                        int line, int f, pair<R> *out) {
    const int k = f - s.first + (f < s.first ? s.n : 0);
    if (k >= s.kept) {
        return false;
    }
    const pair<R> x = load(p.kept, element_at(s, p.kept, t, line, k), R());
    *out = {(R)p.interior * x.im, (R)p.interior * x.re};
    return true;
}

/* The same of a + i b for real rows a and b: a half spectrum's other half is its mirror image. */
template <class R>
static __device__ inline bool read_half(const fft_lines &s, const fft_pass &p, const tile &t,
                                        int line, int f, pair<R> *out) {
    const bool mirrored = f >= s.kept;
    const int k = mirrored ? s.n - f : f;
    if (k >= s.kept) {
        return false;
    }
    const int64_t row = (2 * (t.outer + line)) * p.kept.outer + k;
    pair<R> a = load(p.kept, row, R()), b = {0, 0};
    if (2 * line + 1 < t.rows) {
        b = load(p.kept, row + p.kept.outer, R());
    }
    if (is_edge(s, k)) {
        *out = {(R)p.edge * b.re, (R)p.edge * a.re};
    } else {
        const R factor = (R)p.interior;
        a = factor * (mirrored ? conj(a) : a);
        b = factor * (mirrored ? conj(b) : b);
        *out = {a.im + b.re, a.re - b.im};
    }
    return true;
}

/* Y_p[j] of all parts: the kept frequencies among j, j + m, .., each times its root. */
template <class R, bool real>
static __device__ inline void expand(const fft_lines &s, const fft_pass &p, const tile &t,
                                     slot<R> *out) {
    for (int b = threadIdx.x; b < s.tile * s.m; b += blockDim.x) {
        const place at = place_of(s, b, s.by_m);
        if (at.line >= t.lines) {
            continue;
        }
        slot<R> *y = out + slot_of(s, at.line, 0, at.index);
        bool none = true;
        for (int f = at.index; f < s.n; f += s.m) {
            pair<R> x;
            if (real ? read_half(s, p, t, at.line, f, &x) : read_kept(s, p, t, at.line, f, &x)) {
                pair<R> w = {1, 0};
                if (s.parts > 1) {
                    w = root_at(static_cast<const slot<R> *>(s.roots), f);
                }
                for (int part = 0; part < s.parts; part++) {
                    slot<R> &cell = y[part * s.part_pitch];
                    const pair<R> sum = none ? x : take(cell) + x;
                    cell = {sum.re, sum.im};
                    x = x * w;
                }
                none = false;
            }
        }
        for (int part = 0; none && part < s.parts; part++) {
            y[part * s.part_pitch] = {0, 0};
        }
    }
}

template <class R, class Write, bool real>
static __global__ void __launch_bounds__(FFT_MAX_THREADS)
    inverse(const fft_lines s, const fft_pass p, int64_t tiles) {
    const fft_stage &last = s.stage[s.stages - 1];
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const tile t = tile_at(s, p, number);
        slot<R> *in = reinterpret_cast<slot<R> *>(shared_memory);
        slot<R> *out = in + s.tile * s.line_pitch;
        const Write write(s, p.grid, t);
        expand<R, real>(s, p, t, in);
        __syncthreads();
        other_stages(s, 0, s.stages - 1, t.lines, &in, &out);
        with_radix(last.radix, [&](auto tag) {
            last_stage<decltype(tag)::value>(s, last, t.lines, in, write);
        });
        __syncthreads();
    }
}

/* ---- launches ---- */

typedef void (*fft_kernel)(const fft_lines, const fft_pass, int64_t);

/* Real rows of storage S. */
template <class R, class S> static fft_kernel rows_kernel(bool back) {
    return back ? inverse<R, write_rows<R, S>, true> : forward<R, read_rows<R, S>, true>;
}

template <class R> static fft_kernel lines_kernel(bool back, bool aligned) {
    if (back) {
        return aligned ? inverse<R, write_slots<R>, false> : inverse<R, write_loose<R>, false>;
    }
    return aligned ? forward<R, read_slots<R>, false> : forward<R, read_loose<R>, false>;
}

static fft_kernel kernel_for(const fft_lines *lines, const fft_pass *pass) {
    const bool back = pass->inverse;
    if (!lines->real) {
        return lines->wide ? lines_kernel<double>(back, is_aligned<double>(pass->grid))
                           : lines_kernel<float>(back, is_aligned<float>(pass->grid));
    }
    if (lines->wide) {
        return rows_kernel<double, double>(back);
    }
    switch (pass->grid.store) {
    case TG_STORE_BF16:
        return rows_kernel<float, __nv_bfloat16>(back);
    case TG_STORE_F16:
        return rows_kernel<float, __half>(back);
    default:
        return rows_kernel<float, float>(back);
    }
}

tg_status cuda_fft_lines_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass) {
    tg_status status = TG_OK;
    if (cuda_fft_two_step_run(be, lines, pass, &status)) {
        return status;
    }
    const int64_t rows = lines->real ? (pass->outer + 1) / 2 : pass->outer;
    const int64_t tiles = lines->by_columns
                              ? pass->outer * ((pass->inner + lines->tile - 1) / lines->tile)
                              : (rows + lines->tile - 1) / lines->tile;
    if (tiles == 0) {
        return TG_OK;
    }
    return launch_alone(be, "transforming lines", kernel_for(lines, pass),
                        (unsigned)tg_min(tiles, INT32_MAX), lines->threads, lines->shared_bytes,
                        *lines, *pass, tiles);
}

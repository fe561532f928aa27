/* Sizes of the pass over planes, and its factors as fragments of tensor cores; see
 * last_two_modes.cuh. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/compress/factor_fragments.cuh"

enum { THREADS = 256 };

/* ---- sizes ---- */

static int round_up(int n, int unit) {
    return (n + unit - 1) / unit * unit;
}

plane_pass cuda_planes_of(int64_t d2, int64_t r2, int64_t d3, int64_t r3, int64_t right) {
    plane_pass s = plane_pass();
    if (d2 > PLANES_ROWS || d3 < 8 || d3 > PLANES_D3) {
        return s;
    }
    s.d2 = (int)d2;
    s.d3 = (int)d3;
    s.r2 = (int)r2;
    s.r3 = (int)r3;
    s.right = (int)right;
    s.rows = round_up(s.d2, 16);
    s.wide = round_up(2 * s.d3 + 8, 16) - 8;
    s.planes_at_once = s.rows == s.d2 ? PLANES_ROWS / s.rows : 1;
    s.tiles = r3 <= 24 && s.wide <= 16 * half_tiles(3) ? 3 : r3 <= 48 ? 6 : 0;
    return s;
}

/* Tiles of 16 rows that cover j2. */
static int core_tiles(const plane_pass *s) {
    return (s->r2 + 15) / 16;
}

/* Both directions use the same memory: the last mode's fragments, then the other's. It is reserved
 * even if only the rank is too large, since lower ranks must not need more. */
static int64_t last_size(const plane_pass *s) {
    return (int64_t)s->wide * 16 * (s->tiles > 0 ? s->tiles : 6);
}

int64_t cuda_planes_size(const plane_pass *s) {
    const int64_t forward = (int64_t)core_tiles(s) * 16 * 2 * s->rows;
    const int64_t back = (int64_t)s->rows * round_up(2 * s->r2, 8);
    return last_size(s) + tg_max(forward, back);
}

/* ---- fragments ---- */

/* The last mode, right factor of its products: per 8 k's and tile of 8 columns, {k0, k1} of a
 * lane. */
template <bool FORWARD>
static __device__ inline float2 last_fragment(const plane_pass &s, const factor_reader &f, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int tiles = FORWARD ? 2 * s.tiles : s.wide / 8;
    const int n = e / 32 % tiles * 8 + g, step = e / 32 / tiles;
    if (FORWARD) {
        return towards(factor_at(f, step * 4 + t, n / 2), n % 2);
    }
    const int k = step * 8 + 2 * t, j = k % (8 * s.tiles), part = k / (8 * s.tiles);
    const float2 u0 = back_to(factor_at(f, n / 2, j), n % 2);
    const float2 u1 = back_to(factor_at(f, n / 2, j + 1), n % 2);
    return part == 0 ? make_float2(u0.x, u1.x) : make_float2(u0.y, u1.y);
}

template <bool FORWARD>
static __global__ void __launch_bounds__(THREADS)
    write_fragments(plane_pass s, factor_reader last, factor_reader before, int last_count,
                    int before_count, float2 *to_last, float4 *to_before) {
    const int steps = FORWARD ? s.rows / 4 : (s.r2 + 3) / 4;
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (e < last_count) {
        to_last[e] = last_fragment<FORWARD>(s, last, e);
    }
    if (e < before_count) {
        to_before[e] = left_fragment<FORWARD>(before, steps, e);
    }
}

const float2 *cuda_planes_last(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<const float2 *>(cuda_plan_at(plan, workspace, plan->planes.at));
}

const float4 *cuda_planes_before(const cuda_plan *plan, void *workspace) {
    const int64_t at = plan->planes.at + last_size(&plan->planes);
    return reinterpret_cast<const float4 *>(cuda_plan_at(plan, workspace, at));
}

tg_status cuda_planes_factors(tg_backend *be, const cuda_plan *plan, bool forward,
                              void *workspace) {
    const plane_pass &s = plan->planes;
    if (s.tiles == 0 || (forward && plan->contracts == PLANES_HOPPER)) {
        return TG_OK;
    }
    if (forward && plan->contracts == PLANES_SHARED) {
        return cuda_planes_contract_factors(be, plan, workspace);
    }
    if (!forward && plan->resident > 0) {
        return cuda_planes_expand_factors(be, plan, workspace);
    }
    const int last_count = (int)(last_size(&s) / 2);
    const int before_count =
        forward ? core_tiles(&s) * (s.rows / 4) * 32 : s.rows / 16 * ((s.r2 + 3) / 4) * 32;
    const unsigned blocks =
        (unsigned)(round_up(last_count > before_count ? last_count : before_count, THREADS) /
                   THREADS);
    const auto kernel = forward ? write_fragments<true> : write_fragments<false>;
    return launch_alone(be, "laying out factors", kernel, blocks, THREADS, 0, s,
                        reader_of(&plan->step[0].factor), reader_of(&plan->step[1].factor),
                        last_count, before_count,
                        const_cast<float2 *>(cuda_planes_last(plan, workspace)),
                        const_cast<float4 *>(cuda_planes_before(plan, workspace)));
}

/* Gram matrices of one mode of x (left, dim, right) in f64, on the FP64 tensor cores:
 * out[i][j] = sum over columns c = (l, r) of x[l,i,r] conj(x[l,j,r]).
 *
 * A block processes 16 columns at a time. It copies their entries to shared memory unchanged, masks
 * and widens them to planes of f64 there, and each warp adds their product to its 32 x 32 tile of
 * the result, which stays in registers. Meanwhile it prefetches the next 16 columns. Blocks split
 * the columns and write partial sums, which a second kernel adds in the order of the blocks. Only
 * the lower triangle is computed and then mirrored.
 *
 * A block handles up to 128 rows of x, in two groups of 64. For dim <= 128 these are all rows, and
 * its warps cover the tiles of the lower triangle. Larger matrices consist of such triangles and,
 * below them, squares of 64 x 64 (four warps), one for each pair of groups. */
#include "backend/cuda/core/cuda.cuh"
#include "backend/cuda/linalg/gram_panel.cuh"

/* ---- products ---- */

/* c (16 x 8) += a (16 x 8) b (8 x 8) by a warp. Lane 4 g + t has a[2 h + r] = a(g + 8 r, t + 4 h),
 * b[h] = b(t + 4 h, g) and c[2 r + s] = c(g + 8 r, 2 t + s). */
static __device__ inline void multiply_add(double *c, const double *a, const double *b) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(c[2 * r]), "+d"(c[2 * r + 1])
                : "d"(a[2 * h + r]), "d"(b[h]));
        }
    }
#endif
}

/* Entries (rows from `row`, 8 columns from `column`) of a plane as a warp holds them: COUNT rows of
 * 8, each in two halves of 4 columns. */
template <class SHARE, int COUNT>
static __device__ inline void load_rows(const double *plane, int row, int column, double *out) {
    const int lane = threadIdx.x % 32;
    const double *from =
        plane + (row + lane / 4) * SHARE::row_step + (column + lane % 4) * SHARE::column_step;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < COUNT; r++) {
            out[COUNT * h + r] = from[8 * r * SHARE::row_step + 4 * h * SHARE::column_step];
        }
    }
}

/* sum (16 x 8) += a conj(b)^T, with b from 8 rows of the planes. */
template <int PARTS, class SHARE>
static __device__ inline void add_subtile(const double *planes, int row, int column,
                                          const double (&a)[PARTS][4], double (&sum)[PARTS][4]) {
    double b[PARTS][2];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        load_rows<SHARE, 1>(planes + part * SHARE::plane, row, column, b[part]);
    }
    multiply_add(sum[0], a[0], b[0]);
    if constexpr (PARTS == 2) {
        const double minus[2] = {-b[1][0], -b[1][1]};
        multiply_add(sum[1], a[1], b[0]);
        multiply_add(sum[0], a[1], b[1]);
        multiply_add(sum[1], a[0], minus);
    }
}

/* sum += a conj(b)^T on the active subtiles, for the 16 columns in the planes. */
template <int PARTS, class SHARE>
static __device__ inline void add_product(const double *planes, tile_place tile, unsigned active,
                                          double (&sum)[SUBTILES][PARTS][4]) {
    constexpr int steps =
        SHARE::row_step == 1 ? 1 : 2; /* without spills: the sums fill registers */
#pragma unroll steps
    for (int column = 0; column < COLUMNS; column += 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            double a[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                load_rows<SHARE, 2>(planes + part * SHARE::plane, tile.row + 16 * i, column,
                                    a[part]);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (active >> (4 * i + j) & 1) {
                    add_subtile<PARTS, SHARE>(planes, tile.column + 8 * j, column, a,
                                              sum[4 * i + j]);
                }
            }
        }
    }
}

/* Synchronizes all warps of a block. Each kind of warp calls it from its own loop, so that the
 * compiler allocates their registers separately. */
static __device__ inline void sync_warps() {
    asm volatile("barrier.sync 0;" ::: "memory");
}

/* Code of the loading warps: fills planes for `chunks` chunks starting at `place`, one chunk ahead
 * of the other warps, with further chunks in flight. */
template <int PARTS, bool ROWS_ADJACENT, int ROWS>
static __device__ void load_panels(const gram_job &job, const row_groups &groups, int chunks,
                                   cursor<ROWS_ADJACENT> place, double *planes) {
    using share = panel<ROWS_ADJACENT, ROWS>;
    const int raw_bytes = share::turns * 32 * (job.size + (job.mask ? (int)sizeof(uint32_t) : 0));
    char *all = reinterpret_cast<char *>(planes + 2 * PARTS * share::plane);
    cursor<ROWS_ADJACENT> next = place; /* to be fetched */
    int fetched = 0;
    const auto raw_of = [&](int chunk) { return all + (chunk & (job.ahead - 1)) * raw_bytes; };
    const auto words_of = [&](int chunk) {
        return reinterpret_cast<uint32_t *>(raw_of(chunk) + share::turns * 32 * job.size);
    };
    const auto fetch = [&] {
        if (fetched >= chunks) {
            __pipeline_commit(); /* an empty group, so that the count stays right */
        } else if (PARTS == 2 && is_full_chunk<ROWS_ADJACENT, ROWS>(job, next)) {
            fetch_full_chunk<ROWS_ADJACENT, ROWS>(job, next, raw_of(fetched));
        } else {
            fetch_panel<ROWS_ADJACENT, ROWS>(job, groups, next, raw_of(fetched), words_of(fetched));
        }
        fetched++;
        next.advance(job);
    };
    for (int i = 0; i < job.ahead; i++) {
        fetch();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        double *to = planes + chunk % 2 * PARTS * share::plane;
        await_panel(job);
        /* the first two multiplying warps have cleared the rows that do not exist */
        if (PARTS == 2 && chunk > 1 && is_full_chunk<ROWS_ADJACENT, ROWS>(job, place)) {
            widen_plain<ROWS_ADJACENT, ROWS>(job, raw_of(chunk), to);
        } else {
            widen_panel<PARTS, ROWS_ADJACENT, ROWS>(job, groups, place, raw_of(chunk),
                                                    words_of(chunk), to);
        }
        place.advance(job);
        fetch();
        sync_warps();
    }
    sync_warps(); /* while the last one is multiplied */
}

/* Code of the multiplying warps: sums for one tile, written in lane order. */
template <int PARTS, class SHARE>
static __device__ void add_panels(const gram_job &job, const row_groups &groups, int chunks,
                                  tile_place tile, const double *planes) {
    const unsigned active = active_subtiles(job, groups, tile);
    double sum[SUBTILES][PARTS][4] = {};
    sync_warps();
    for (int chunk = 0; chunk < chunks; chunk++) {
        add_product<PARTS, SHARE>(planes + chunk % 2 * PARTS * SHARE::plane, tile, active, sum);
        sync_warps();
    }
    const int64_t block = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int tiles = blockDim.x / 32 - SHARE::loaders;
    const int number = threadIdx.x / 32 - SHARE::loaders;
    double *out =
        job.partials + (block * tiles + number) * (SUBTILES * PARTS * 4 * 32) + threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < SUBTILES; b++) {
#pragma unroll
        for (int v = 0; v < PARTS * 4; v++) {
            out[(b * PARTS * 4 + v) * 32] = sum[b][v / 4][v % 4];
        }
    }
}

/* Grid: x splits the columns, y counts the triangles or squares. Block: the loaders, then a warp
 * for each tile. */
template <int PARTS, bool ROWS_ADJACENT, int ROWS>
static __global__ void __launch_bounds__(ROWS == GROUP ? 128 : 384, ROWS == GROUP ? 3 : 1)
    gram_sums(gram_job job) {
    using share = panel<ROWS_ADJACENT, ROWS>;
    extern __shared__ double planes[]; /* 2 x PARTS x plane, then chunks: entries, mask words */
    const int warp = threadIdx.x / 32;
    const row_groups groups = groups_of(job.triangle, job.first + blockIdx.y);
    const int64_t all = (job.columns + COLUMNS - 1) / COLUMNS;
    const int64_t begin = all * blockIdx.x / gridDim.x;
    const int chunks = (int)(all * (blockIdx.x + 1) / gridDim.x - begin);
    if (warp < share::loaders) {
        const cursor<ROWS_ADJACENT> place(job, begin, threadIdx.x % 32);
        load_panels<PARTS, ROWS_ADJACENT, ROWS>(job, groups, chunks, place, planes);
    } else {
        const tile_place tile = tile_of(job.triangle, warp - share::loaders);
        add_panels<PARTS, share>(job, groups, chunks, tile, planes);
    }
}

enum { SLICES = 8 }; /* in which partial sums are added */

/* Adds the partial sums of `blocks` blocks, 32 at a time in SLICES slices. Grid: x runs over the
 * values of all tiles, y over the triangles or squares. */
template <int PARTS>
static __global__ void __launch_bounds__(32 * SLICES)
    gram_total(gram_job job, int blocks, int tiles, double *out) {
    __shared__ double slices[SLICES][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int64_t per_tile = SUBTILES * PARTS * 4;
    const int64_t per_block = tiles * per_tile * 32;
    const double *from =
        job.partials + blockIdx.y * blocks * per_block + (int64_t)blockIdx.x * 32 + lane;
    double total = 0.0;
    for (int block = slice; block < blocks; block += SLICES) {
        total += from[block * per_block];
    }
    slices[slice][lane] = total;
    __syncthreads();
    if (slice > 0) {
        return;
    }
    for (int s = 1; s < SLICES; s++) {
        total += slices[s][lane];
    }
    const int v = blockIdx.x % per_tile, quad = v % 4, part = v / 4 % PARTS, b = v / 4 / PARTS;
    const row_groups groups = groups_of(job.triangle, job.first + blockIdx.y);
    const tile_place tile = tile_of(job.triangle, (int)(blockIdx.x / per_tile));
    const int i = row_of(groups, tile.row + b / 4 * 16 + lane / 4 + quad / 2 * 8);
    const int j = row_of(groups, tile.column + b % 4 * 8 + lane % 4 * 2 + quad % 2);
    if (i < job.dim && j <= i) {
        out[((int64_t)i * job.dim + j) * PARTS + part] = i == j && part ? 0.0 : total;
        if (j < i) {
            out[((int64_t)j * job.dim + i) * PARTS + part] = part ? -total : total;
        }
    }
}

/* ---- launches ---- */

typedef void (*sums_kernel)(gram_job);

template <int PARTS> static sums_kernel kernel_of(bool lying, int rows) {
    if (rows == GROUP) {
        return lying ? gram_sums<PARTS, true, GROUP> : gram_sums<PARTS, false, GROUP>;
    }
    return lying ? gram_sums<PARTS, true, 2 * GROUP> : gram_sums<PARTS, false, 2 * GROUP>;
}

/* Bytes of shared memory; as `panel` counts them. */
static size_t shared_bytes(const gram_job *job, int parts, int rows) {
    const size_t plane = job->right == 1 ? COLUMNS * (rows + 4) : rows * (COLUMNS + 4);
    const size_t slot = (size_t)job->size + (job->mask ? sizeof(uint32_t) : 0);
    return 2 * parts * plane * sizeof(double) + (size_t)(job->ahead * COLUMNS * rows) * slot;
}

/* A kernel and its launch parameters. */
struct sums_launch {
    sums_kernel kernel;
    int threads;
    size_t shared;
    int64_t blocks; /* that run concurrently and whose sums fit */
};

static tg_status prepare_sums(tg_backend *be, gram_job *job, int parts, int tiles,
                              sums_launch *out) {
    const cuda_state *cuda = cuda_state_of(be);
    const int rows = job->dim <= GROUP ? GROUP : 2 * GROUP;
    const int64_t bytes = (int64_t)tiles * TILE * TILE * parts * (int64_t)sizeof(double);
    int resident = 0;
    out->kernel =
        parts == 2 ? kernel_of<2>(job->right == 1, rows) : kernel_of<1>(job->right == 1, rows);
    out->threads = 32 * (tiles + rows / GROUP);
    job->ahead = 2;
    if (shared_bytes(job, parts, rows) > (size_t)cuda->max_shared) {
        job->ahead = 1;
    }
    out->shared = shared_bytes(job, parts, rows);
    TG_CALL(cuda_allow_shared(be, (const void *)out->kernel, out->shared));
    TG_CALL(CUDA_CHECK(be,
                       cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                           &resident, (const void *)out->kernel, out->threads, out->shared),
                       "preparing a Gram matrix"));
    const int64_t room = CUDA_BLAS_BYTES / bytes;
    const int64_t running = (int64_t)(resident > 1 ? resident : 1) * cuda->processors;
    out->blocks = tg_min(running, room);
    return TG_OK;
}

/* Runs all triangles (or squares) of the result, as many at a time as have partial sums that fit
 * cuBLAS's workspace, which is idle here. */
static tg_status add_up(tg_backend *be, gram_job job, int parts, int64_t count, int tiles,
                        double *out) {
    sums_launch launch;
    TG_CALL(prepare_sums(be, &job, parts, tiles, &launch));
    const int64_t chunks = (job.columns + COLUMNS - 1) / COLUMNS;
    job.partials = static_cast<double *>(cuda_state_of(be)->blas_workspace);
    for (int64_t done = 0; done < count; done += launch.blocks) {
        const int64_t now = tg_min(count - done, launch.blocks);
        const dim3 grid((unsigned)tg_min(launch.blocks / now, chunks), (unsigned)now);
        job.first = (int)done;
        TG_CALL(launch_alone(be, "computing a Gram matrix", launch.kernel, grid, launch.threads,
                             launch.shared, job));
        const dim3 values((unsigned)(tiles * SUBTILES * parts * 4), (unsigned)now);
        const auto total = parts == 2 ? gram_total<2> : gram_total<1>;
        TG_CALL(launch_alone(be, "computing a Gram matrix", total, values, 32 * SLICES, 0, job,
                             (int)grid.x, tiles, out));
    }
    return TG_OK;
}

/* Bytes per copy, from the alignment of x. */
static int copy_bytes(const void *x, int size) {
    const uintptr_t low = (uintptr_t)x;
    return size % 8 == 0 && low % 8 == 0 ? 8 : size % 4 == 0 && low % 4 == 0 ? 4 : 2;
}

tg_status cuda_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                    const void *x, const tg_bitmap *mask, void *out) {
    TG_CALL(tg_check_float(be->ctx, "gram", dtype));
    if (dim <= 0) {
        return TG_OK;
    }
    const int parts = tg_dtype_is_complex(dtype) ? 2 : 1;
    if (left <= 0 || right <= 0) {
        return cuda_clear(be, out, (size_t)(dim * dim * parts) * sizeof(double),
                          "computing a Gram matrix");
    }
    gram_job job = {};
    job.x = static_cast<const char *>(x);
    job.mask = mask ? reinterpret_cast<const uint32_t *>(mask->words) : NULL;
    job.dim = (int)dim;
    job.right = right;
    job.columns = left * right;
    job.step_at = COLUMNS / right * dim * right + COLUMNS % right;
    job.step_r = COLUMNS % right;
    job.real = tg_dtype_real(dtype);
    job.size = (int)tg_dtype_size(dtype);
    job.copy = copy_bytes(x, job.size);
    job.triangle = true;
    const int64_t triangles = (dim + 2 * GROUP - 1) / (2 * GROUP);
    const int side = dim < 2 * GROUP ? (int)((dim + TILE - 1) / TILE) : 2 * GROUP / TILE;
    double *sums = static_cast<double *>(out);
    TG_CALL(add_up(be, job, parts, triangles, side * (side + 1) / 2, sums));
    job.triangle = false;
    return triangles > 1 ? add_up(be, job, parts, 2 * triangles * (triangles - 1), 4, sums) : TG_OK;
}

/* Forms a factored gradient, G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k], as an array of complex f32
 * without gaps; form_gradient.cu does every other layout.
 *
 * A block takes items of 8 x 16 channels (4 x 4 per warp) and 32 frequencies: as many consecutive
 * items as give all blocks equal shares. Asynchronous copies bring the inputs to shared memory, two
 * stages of four samples ahead, so a block loads nothing twice, no thread waits, and addresses
 * within a stage are constants. Sums are bit-identical to those of form_gradient.cu. The warps of
 * the first channels on the other side count the non-finite inputs. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"
#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TILE = 4,
    X_ROWS = 8,   /* channels of x.. */
    DY_ROWS = 16, /* ..and of dy */
    ROWS = X_ROWS + DY_ROWS,
    WIDTH = 32,  /* frequencies */
    SAMPLES = 4, /* of a stage */
    STAGE = SAMPLES * ROWS * WIDTH,
    RING = 3, /* stages */
    ARRAY_THREADS = 256,
    PIECES = STAGE / 2 / ARRAY_THREADS /* of a stage, of 16 bytes, that a thread copies */
};

struct array_task {
    const float2 *x, *dy;
    float2 *out; /* (count, dim1, frequencies) */
    int batch, dim0, dim1, frequencies;
    int begin; /* of the indices of mode 0 */
    int items;
    float gain;
    uint32_t *guard; /* NULL: do not count */
    bool apart;
};

/* Channels and frequencies of an item, and four samples of them. */
struct array_place {
    int i, o, k, sample;

    __device__ array_place(const array_task &task, int item) {
        const int steps = (task.frequencies + WIDTH - 1) / WIDTH, rest = item / steps;
        k = (item - rest * steps) * WIDTH;
        i = rest / (task.dim1 / DY_ROWS) * X_ROWS;
        o = rest % (task.dim1 / DY_ROWS) * DY_ROWS;
        sample = 0;
    }
    __device__ void next(const array_task &task) {
        sample += SAMPLES;
        if (sample == task.batch) {
            sample = 0;
            k += WIDTH;
        }
        if (k >= task.frequencies) {
            k = 0;
            o += DY_ROWS;
        }
        if (o == task.dim1) {
            o = 0;
            i += X_ROWS;
        }
    }
};

/* Copies a stage: piece u of a thread is 2 frequencies of row `thread / 16 + 16 u` of all
 * samples. */
struct stage_reader {
    const float2 *from[PIECES]; /* of sample 0, channels and frequencies from 0 on */
    int across;                 /* the first of the two frequencies */

    __device__ stage_reader(const array_task &task) {
        across = (int)threadIdx.x % 16 * 2;
#pragma unroll
        for (int u = 0; u < PIECES; u++) {
            const int row = (int)threadIdx.x / 16 + 16 * u, sample = row / ROWS, r = row % ROWS;
            const int64_t channel = r < X_ROWS ? (int64_t)sample * task.dim0 + task.begin + r
                                               : (int64_t)sample * task.dim1 + r - X_ROWS;
            from[u] = (r < X_ROWS ? task.x : task.dy) + channel * task.frequencies + across;
        }
    }
    __device__ void fetch(const array_task &task, const array_place &at, float2 *stage) const {
        const int x = (at.sample * task.dim0 + at.i) * task.frequencies + at.k;
        const int dy = (at.sample * task.dim1 + at.o) * task.frequencies + at.k;
        const bool exists = at.k + across < task.frequencies;
#pragma unroll
        for (int u = 0; u < PIECES; u++) {
            const int row = (int)threadIdx.x / 16 + 16 * u;
            const bool is_x = row % ROWS < X_ROWS;
            copy_async<16>(stage + row * WIDTH + across,
                           exists ? from[u] + (is_x ? x : dy) : task.x, exists);
        }
    }
};

/* conj(x) y, as sums that fuse with each product. */
static __device__ inline void add_product(float2 *sum, const float2 &x, const float2 &y) {
    sum->x += x.x * y.x;
    sum->x += x.y * y.y;
    sum->y += x.x * y.y;
    sum->y -= x.y * y.x;
}

static __global__ void __launch_bounds__(ARRAY_THREADS, 2) form_array(array_task task) {
    extern __shared__ float4 shared[];
    float2 *ring = reinterpret_cast<float2 *>(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int down = warp / (DY_ROWS / TILE) * TILE, side = warp % (DY_ROWS / TILE) * TILE;
    const int first = (int)((int64_t)task.items * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)task.items * (blockIdx.x + 1) / gridDim.x);
    const int stages = (end - first) * (task.batch / SAMPLES);
    const stage_reader reader(task);
    array_place at(task, first), ahead = at;
    int fetched = 0;
    const auto fetch = [&](int slot) {
        if (fetched < stages) {
            reader.fetch(task, ahead, ring + slot * STAGE);
            ahead.next(task);
        }
        fetched++;
        copies_commit();
    };
    if (!task.apart) {
        pdl_wait();
    }
    pdl_launch_dependents();
    for (int slot = 0; slot < RING - 1; slot++) {
        fetch(slot);
    }
    float2 sum[TILE][TILE] = {};
    uint32_t bad = 0;
    int slot = 0;
    for (int stage = 0; stage < stages; stage++) {
        copies_wait_all_but<RING - 2>();
        __syncthreads();
        fetch(slot == 0 ? RING - 1 : slot - 1); /* the buffer of the previous stage */
        const float2 *rows = ring + slot * STAGE + lane;
        slot = slot + 1 == RING ? 0 : slot + 1;
        const bool counts_x = task.guard && at.o + side == 0;
        const bool counts_dy = task.guard && task.begin + at.i + down == 0;
#pragma unroll
        for (int b = 0; b < SAMPLES; b++, rows += ROWS * WIDTH) {
            float2 x[TILE], y[TILE];
#pragma unroll
            for (int t = 0; t < TILE; t++) {
                x[t] = rows[(down + t) * WIDTH];
                y[t] = rows[(X_ROWS + side + t) * WIDTH];
            }
            if (counts_x || counts_dy) {
#pragma unroll
                for (int t = 0; t < TILE; t++) {
                    bad += counts_x && (is_bad(x[t].x) || is_bad(x[t].y));
                    bad += counts_dy && (is_bad(y[t].x) || is_bad(y[t].y));
                }
            }
#pragma unroll
            for (int u = 0; u < TILE * TILE; u++) {
                add_product(&sum[u / TILE][u % TILE], x[u / TILE], y[u % TILE]);
            }
        }
        const array_place here = at;
        at.next(task);
        if (at.sample != 0) {
            continue;
        }
        float2 *out = task.out + here.k + lane +
                      ((int64_t)(here.i + down) * task.dim1 + here.o + side) * task.frequencies;
#pragma unroll
        for (int u = 0; u < TILE; u++, out += (int64_t)task.dim1 * task.frequencies) {
#pragma unroll
            for (int v = 0; v < TILE; v++) {
                float2 &g = sum[u][v];
                if (here.k + lane < task.frequencies) {
                    out[v * (int64_t)task.frequencies] =
                        make_float2(task.gain * g.x, task.gain * g.y);
                }
                g = make_float2(0.0f, 0.0f);
            }
        }
    }
    if (task.guard) {
        bad = __reduce_add_sync(~0u, bad);
        if (lane == 0 && bad > 0) {
            add_saturating(task.guard, bad);
        }
    }
    if (task.apart) {
        pdl_wait();
    }
}

/* Frequencies of a channel. */
static int64_t frequencies_of(const tg_multimode *modes) {
    return tg_product(modes->ndim, modes->dim) / modes->dim[0] / modes->dim[1];
}

bool cuda_form_array_fits(const tg_grad_source *source, const tg_multimode *modes, int64_t count) {
    const int64_t dim0 = modes->dim[0], dim1 = modes->dim[1], k = frequencies_of(modes);
    return source->store == TG_STORE_FULL && source->batch > 0 && source->batch % SAMPLES == 0 &&
           count % X_ROWS == 0 && dim1 % DY_ROWS == 0 && k % 2 == 0 &&
           source->batch * tg_max(dim0, dim1) * k < INT32_MAX && count * dim1 * k < INT32_MAX &&
           ((uintptr_t)source->x | (uintptr_t)source->dy) % 16 == 0;
}

tg_status cuda_form_array(tg_backend *be, const cuda_array_call *call) {
    const tg_grad_source *source = call->source;
    array_task task = array_task();
    task.x = static_cast<const float2 *>(source->x);
    task.dy = static_cast<const float2 *>(source->dy);
    task.out = static_cast<float2 *>(call->out);
    task.batch = (int)source->batch;
    task.dim0 = (int)call->modes->dim[0];
    task.dim1 = (int)call->modes->dim[1];
    task.frequencies = (int)frequencies_of(call->modes);
    task.begin = (int)call->begin;
    task.items = (int)(call->count / X_ROWS) * (task.dim1 / DY_ROWS) *
                 ((task.frequencies + WIDTH - 1) / WIDTH);
    task.gain = call->gain;
    task.guard = call->guard;
    task.apart = call->apart;
    return launch_if_early(be, "forming a gradient", call->chained, form_array,
                           (unsigned)tg_min(task.items, 2 * cuda_state_of(be)->processors),
                           ARRAY_THREADS, RING * STAGE * sizeof(float2), task);
}

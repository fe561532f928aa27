/* Projects the last mode but one; see compress.cuh.
 *
 *     out_re = Re V^T in_re + Im V^T in_im,   out_im = Re V^T in_im - Im V^T in_re,
 *
 * plane by plane: (128 rows, part, right) becomes (part, rank, right). Both are contiguous and
 * moved by bulk copies, two planes ahead. A warpgroup has 32 numbers of V in registers, as left
 * factor: rows g and g + 8 are the real and imaginary part of a number, so a thread has both parts
 * of its numbers. Products need the input transposed: all warps transpose the next plane while they
 * multiply this one. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/sm90/transpose_rows.cuh"

enum {
    GROUPS = 3,
    NUMBERS = 32, /* of a warpgroup.. */
    ROWS = 128,   /* ..each a sum over this many rows */
    STEPS = ROWS / 8,
    TRANSPOSED_BYTES = transposed_bytes(STEPS),
    BUFFERS = 2 /* of inputs, and of transposed inputs */
};

struct rows_task {
    const float *in; /* (planes, ROWS, part, right) */
    float *out;      /* (planes, part, rank, right) */
    int planes, rank, right;
    factor_reader v;
};

/* Bytes of shared memory: an input plane, and a warpgroup's output. */
struct rows_layout {
    int in, out, all;
};

static __host__ __device__ inline rows_layout layout_of(int right) {
    rows_layout at;
    at.in = ROWS * 2 * right * (int)sizeof(float);
    at.out = 2 * NUMBERS * right * (int)sizeof(float);
    at.all = 1024 + BUFFERS * (TRANSPOSED_BYTES + at.in) + GROUPS * at.out +
             (BUFFERS + 1) * (int)sizeof(uint64_t);
    return at;
}

static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1) contract_rows(rows_task task) {
    extern __shared__ char shared[];
    const rows_layout at = layout_of(task.right);
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int lane = thread % 32, t = lane % 4, number = thread / 32 * 8 + lane / 4;
    char *transposed = shared + (1024 - shared_at(shared) % 1024) % 1024;
    char *in = transposed + BUFFERS * TRANSPOSED_BYTES,
         *own = in + BUFFERS * at.in + group * at.out;
    uint64_t *full = reinterpret_cast<uint64_t *>(in + BUFFERS * at.in + GROUPS * at.out);
    uint64_t *transposed_full = full + BUFFERS;
    const int stride = (int)gridDim.x, plane_size = 2 * task.rank * task.right;
    const int count = max(min(NUMBERS, task.rank - group * NUMBERS), 0); /* numbers that exist */

    const auto fetch = [&](int plane, int buffer) {
        barrier_expect(full + buffer, at.in);
        copy_bulk(in + buffer * at.in, task.in + (int64_t)plane * (ROWS * 2) * task.right, at.in,
                  full + buffer);
    };
    const auto turn = [&](int round) {
        barrier_wait(full + round % 2, round / 2 % 2);
        transpose_pairs<STEPS>(reinterpret_cast<const float *>(in + round % 2 * at.in), task.right,
                               transposed + round % 2 * TRANSPOSED_BYTES);
    };
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init(full + 1, 1);
        barrier_init(transposed_full, GROUPS * WG_THREADS / 32);
        barriers_made();
    }
    float4 v[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const float2 a = factor_at(task.v, 8 * s + t, group * NUMBERS + number);
        const float2 b = factor_at(task.v, 8 * s + t + 4, group * NUMBERS + number);
        v[s] = make_float4(a.x, a.y, b.x, b.y);
    }
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    if (threadIdx.x == 0) { /* every block has a plane */
        fetch((int)blockIdx.x, 0);
        if ((int)blockIdx.x + stride < task.planes) {
            fetch((int)blockIdx.x + stride, 1);
        }
    }
    turn(0);
    wg_publish();
    warp_arrives(transposed_full);
    for (int plane = (int)blockIdx.x, round = 0; plane < task.planes; plane += stride, round++) {
        const uint64_t matrix = wg_matrix(transposed + round % 2 * TRANSPOSED_BYTES);
        barrier_wait(transposed_full, round % 2);
        if (threadIdx.x == 0 && plane + 2 * stride < task.planes) {
            fetch(plane + 2 * stride, round % 2);
        }
        float sum[TRANSPOSED_N / 2];
        wg_begin();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            wg_product(sum, v[s], wg_rows<TRANSPOSED_N>(matrix, s), s > 0);
        }
        wg_end();
        if (plane + stride < task.planes) {
            turn(round + 1);
        }
        if (thread == 0) {
            sent_bulk();
        }
        wg_wait<0>();
        wg_fence(sum);
        wg_sync(); /* the previous copy out has been read */
        float *re = reinterpret_cast<float *>(own) + number * task.right + t;
        float *im = re + count * task.right;
        if (number < count) {
#pragma unroll
            for (int j = 0; j < TRANSPOSED_STEPS; j++) {
                if (4 * j < task.right) {
                    re[4 * j] = sum[4 * j] + sum[4 * j + 3];
                    im[4 * j] = sum[4 * j + 1] - sum[4 * j + 2];
                }
            }
        }
        wg_publish();
        warp_arrives(transposed_full);
        wg_sync();
        if (thread == 0 && count > 0) {
            const int bytes = count * task.right * (int)sizeof(float);
            float *to = task.out + (int64_t)plane * plane_size + group * NUMBERS * task.right;
            send_bulk(to, own, bytes);
            send_bulk(to + task.rank * task.right, own + bytes, bytes);
        }
    }
    if (thread == 0) { /* keep shared memory until the copy has read it */
        sent_bulk();
    }
}

/* ---- launches ---- */

bool cuda_sm90_contract_rows_fits(const tg_backend *be, const cuda_plan *plan) {
    const cuda_step *step = &plan->step[1];
    return !plan->split && cuda_state_of(be)->is_hopper && step->dim == ROWS &&
           step->factor.rank <= GROUPS * NUMBERS && step->right % 4 == 0 &&
           step->right <= 4 * TRANSPOSED_STEPS &&
           layout_of((int)step->right).all <= cuda_state_of(be)->max_shared;
}

tg_status cuda_sm90_contract_rows(tg_backend *be, const cuda_plan *plan, int64_t count,
                                  const void *in, void *out) {
    const cuda_step *step = &plan->step[1];
    rows_task task = rows_task();
    task.in = static_cast<const float *>(in);
    task.out = static_cast<float *>(out);
    task.planes = (int)(count * step->left);
    task.rank = (int)step->factor.rank;
    task.right = (int)step->right;
    task.v = reader_of(&step->factor);
    return launch_chained(be, "contracting rows of planes", plan->chained, contract_rows,
                          task.planes, GROUPS * WG_THREADS, layout_of(task.right).all, task);
}

/* Launch helpers of the tensor-core kernels, and the sums over their blocks' partial results. */
#include "backend/cuda/tile/stage.cuh"

enum {
    ENTRIES = 32,
    SLICES = 8
}; /* per block: entries, and threads that share the parts of one entry */

/* Sum over every SLICES-th part. */
template <class T>
static __device__ inline double sum_of_slice(const fold_job &job, int parts, int64_t at) {
    const T *from = static_cast<const T *>(job.partial) + at;
    double sum = 0.0;
#pragma unroll 8
    for (int part = threadIdx.y; part < parts; part += SLICES) {
        sum += (double)from[part * job.stride];
    }
    return sum;
}

static __global__ void __launch_bounds__(ENTRIES *SLICES) fold(fold_jobs jobs, bool sets) {
    __shared__ double of_slice[SLICES][ENTRIES];
    int64_t entry = (int64_t)blockIdx.x * ENTRIES + threadIdx.x;
    double sum = 0.0, scale = 0.0;
    float *out = NULL;
    pdl_wait_and_launch_dependents();
    for (int i = 0; i < jobs.jobs; i++) {
        const fold_job &job = jobs.job[i];
        const int64_t size = (int64_t)job.rows * job.columns;
        if (entry >= 0 && entry < size) {
            const int64_t at = entry / job.columns * job.ld + entry % job.columns;
            sum = job.wide ? sum_of_slice<double>(job, jobs.parts, at)
                           : sum_of_slice<float>(job, jobs.parts, at);
            out = job.out + entry;
            scale = jobs.scale[i];
        }
        entry -= size; /* negative once the array is found */
    }
    of_slice[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && out) {
        sum = 0.0;
        for (int s = 0; s < SLICES; s++) {
            sum += of_slice[s][threadIdx.x];
        }
        *out = (float)((sets ? 0.0 : (double)*out) + scale * sum);
    }
}

static tg_status fold_all(tg_backend *be, const fold_jobs &wanted, bool sets) {
    fold_jobs jobs = {};
    int64_t entries = 0;
    jobs.parts = wanted.parts;
    for (int i = 0; i < wanted.jobs; i++) {
        if (wanted.job[i].out) {
            jobs.job[jobs.jobs] = wanted.job[i];
            jobs.scale[jobs.jobs++] = wanted.scale[i];
            entries += (int64_t)wanted.job[i].rows * wanted.job[i].columns;
        }
    }
    if (entries == 0) {
        return TG_OK;
    }
    return launch_pdl(be, "summing gradients", fold, (unsigned)((entries + ENTRIES - 1) / ENTRIES),
                      dim3(ENTRIES, SLICES), 0, jobs, sets);
}

tg_status fold_partials(tg_backend *be, const fold_jobs &jobs) {
    return fold_all(be, jobs, false);
}

tg_status set_partials(tg_backend *be, const fold_jobs &jobs) {
    return fold_all(be, jobs, true);
}

tg_status tensor_blocks(const tg_backend *be, const void *kernel, size_t shared, int threads,
                        int *blocks) {
    int resident = 0;
    TG_CALL(cuda_allow_shared(be, kernel, shared));
    TG_CALL(CUDA_CHECK(
        be, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared),
        "asking for shared memory"));
    resident = resident < 1 ? 1 : resident < TENSOR_BLOCKS ? resident : (int)TENSOR_BLOCKS;
    *blocks = resident * cuda_state_of(be)->processors;
    return TG_OK;
}

bool tensor_fits(const tg_backend *be, size_t shared) {
    return shared <= (size_t)cuda_state_of(be)->max_shared;
}

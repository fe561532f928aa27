/* The device: probing, memory, and transfers to and from the host.
 *
 * Everything runs on one stream of one device, the context's or the backend's own. Transfers to and
 * from the host are complete when the call returns. Copies within the device are only queued, in
 * call order. */
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/core/cuda.cuh"

/* ---- probe ---- */

/* Appends to a comma-separated list; truncates. */
TG_PRINTF(3, 4)
static void append(char *text, size_t capacity, const char *format, ...) {
    size_t used = strlen(text);
    if (used > 0 && capacity - used > 2) {
        memcpy(text + used, ", ", 3);
        used += 2;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, capacity - used, format, args);
    va_end(args);
}

static void describe_runtime(char *text, size_t capacity) {
    int driver = 0, runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        append(text, capacity, "CUDA %d.%d", runtime / 1000, runtime % 1000 / 10);
    }
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
        append(text, capacity, "driver for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    }
}

static void describe_libraries(char *text, size_t capacity) {
    const libraryPropertyType parts[3] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
    int blas[3] = {0}, solver[3] = {0};
    bool known = true;
    for (int i = 0; i < 3; i++) {
        known = known &&
                cuda_libraries.cublasGetProperty(parts[i], &blas[i]) == CUBLAS_STATUS_SUCCESS &&
                cuda_libraries.cusolverGetProperty(parts[i], &solver[i]) == CUSOLVER_STATUS_SUCCESS;
    }
    if (known) {
        append(text, capacity, "cuBLAS %d.%d.%d", blas[0], blas[1], blas[2]);
        append(text, capacity, "cuSOLVER %d.%d.%d", solver[0], solver[1], solver[2]);
    }
}

/* Every visible GPU: "0: NVIDIA H200 (140 GiB, compute capability 9.0), 1: .." */
static cudaError_t describe_devices(char *text, size_t capacity) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    for (int i = 0; i < count && error == cudaSuccess; i++) {
        cudaDeviceProp properties;
        error = cudaGetDeviceProperties(&properties, i);
        if (error == cudaSuccess) {
            append(text, capacity, "%d: %s (%.0f GiB, compute capability %d.%d)", i,
                   properties.name, (double)properties.totalGlobalMem / 0x1p30, properties.major,
                   properties.minor);
        }
    }
    return error;
}

void cuda_probe(tg_backend_info *info) {
    describe_runtime(info->libraries, sizeof info->libraries);
    cudaError_t error = describe_devices(info->device, sizeof info->device);
    info->available = error == cudaSuccess;
    int driver = 0; /* stays 0 without a driver, which describe_devices reports as too old */
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
        snprintf(info->reason, sizeof info->reason, "no GPU: no NVIDIA driver is installed");
        info->available = false;
    } else if (error != cudaSuccess) {
        snprintf(info->reason, sizeof info->reason, "no usable GPU: %s", cudaGetErrorString(error));
    } else if (cuda_libraries_open(info->reason, sizeof info->reason)) {
        describe_libraries(info->libraries, sizeof info->libraries);
    } else {
        info->available = false;
    }
    cudaGetLastError(); /* clear the error: a failed probe is not a failure of the next call */
}

/* ---- memory: called by the ledger ---- */

static void *device_alloc(void *state, size_t bytes) {
    const cuda_state *cuda = static_cast<const cuda_state *>(state);
    void *block = NULL;
    if (cudaSetDevice(cuda->device) != cudaSuccess ||
        cudaMalloc(&block, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return block;
}

static void device_release(void *state, void *block) {
    const cuda_state *cuda = static_cast<const cuda_state *>(state);
    if (cudaSetDevice(cuda->device) != cudaSuccess || cudaFree(block) != cudaSuccess) {
        cudaGetLastError(); /* the device is lost, and so is its memory */
    }
}

void *cuda_alloc(tg_backend *be, tg_mem_category category, size_t bytes) {
    return tg_mem_device_alloc(be->ctx, &cuda_state_of(be)->memory, category, bytes);
}

/* cudaFree synchronizes with the device; a caller's allocator does not. */
void cuda_release(tg_backend *be, void *block) {
    const cuda_state *cuda = cuda_state_of(be);
    if (block && be->ctx->config.allocator.alloc) {
        cudaStreamSynchronize(cuda->copy_stream);
        cudaStreamSynchronize(cuda->stream);
        cudaGetLastError(); /* the next call reports the error again */
    }
    tg_mem_device_free(be->ctx, &cuda->memory, block);
}

/* ---- setup and teardown ---- */

tg_status cuda_devices(tg_backend *be, void *stream, int *count, int *of_stream) {
    TG_CALL(CUDA_CHECK(be, cudaGetDeviceCount(count), "counting the GPUs"));
    return stream
               ? CUDA_CHECK(be, cudaStreamGetDevice(static_cast<cudaStream_t>(stream), of_stream),
                            "asking the context's stream for its GPU")
               : TG_OK;
}

void cuda_close(tg_backend *be) {
    cuda_state *cuda = cuda_state_of(be);
    if (!cuda) {
        return;
    }
    cudaSetDevice(cuda->device);
    if (cuda->solver) {
        cuda_libraries.cusolverDnDestroy(cuda->solver);
    }
    if (cuda->blas) {
        cuda_libraries.cublasDestroy(cuda->blas);
    }
    cuda_release(be, cuda->blas_workspace);
    cuda_release(be, cuda->scratch);
    cudaFreeHost(cuda->pinned);
    if (cuda->copy_event) {
        cudaEventDestroy(cuda->copy_event);
    }
    cudaStream_t own = be->stream ? NULL : cuda->stream;
    for (cudaStream_t stream : {cuda->copy_stream, cuda->side_stream, cuda->capture_stream, own}) {
        if (stream) {
            cudaStreamDestroy(stream);
        }
    }
    cudaGetLastError(); /* a lost device has nothing to shut down */
    tg_mem_free(be->ctx, cuda->plans);
    tg_mem_free(be->ctx, cuda);
    be->state = NULL;
}

tg_status cuda_set_stream(tg_backend *be, cudaStream_t stream) {
    cuda_state *cuda = cuda_state_of(be);
    cuda->stream = stream;
    TG_CALL(BLAS_CHECK(be, cuda_libraries.cublasSetStream(cuda->blas, stream), "setting a stream"));
    return BLAS_CHECK(
        be, cuda_libraries.cublasSetWorkspace(cuda->blas, cuda->blas_workspace, CUDA_BLAS_BYTES),
        "setting a stream"); /* a new stream resets it */
}

/* cuBLAS on the backend's stream, with memory that the ledger counts: as much as NVIDIA recommends
 * for compute capability 9. */
static tg_status open_blas(tg_backend *be) {
    cuda_state *cuda = cuda_state_of(be);
    TG_CALL(BLAS_CHECK(be, cuda_libraries.cublasCreate(&cuda->blas), "opening cuBLAS"));
    cuda->blas_workspace = cuda_alloc(be, TG_MEM_WORKSPACE, CUDA_BLAS_BYTES);
    TG_CALL(cuda->blas_workspace ? TG_OK : TG_E_MEMORY);
    return cuda_set_stream(be, cuda->stream);
}

static tg_status get_attribute(const tg_backend *be, cudaDeviceAttr attribute, int *out) {
    return CUDA_CHECK(be, cudaDeviceGetAttribute(out, attribute, cuda_state_of(be)->device),
                      "asking the GPU");
}

static tg_status find_hopper(tg_backend *be) {
#ifdef TG_CUDA_SM90A
    int major = 0, minor = 0;
    TG_CALL(get_attribute(be, cudaDevAttrComputeCapabilityMajor, &major));
    TG_CALL(get_attribute(be, cudaDevAttrComputeCapabilityMinor, &minor));
    cuda_state_of(be)->is_hopper = major == 9 && minor == 0;
#else
    (void)be;
#endif
    return TG_OK;
}

tg_status cuda_make_stream(const tg_backend *be, cudaStream_t *out) {
    return CUDA_CHECK(be, cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "making a stream");
}

tg_status cuda_open(tg_backend *be) {
    tg_status status = TG_OK;
    char reason[sizeof(tg_backend_info::reason)];
    if (!cuda_libraries_open(reason, sizeof reason)) {
        return tg_fail(be->ctx, TG_E_BACKEND, "backend cuda: %s", reason);
    }
    cuda_state *cuda =
        static_cast<cuda_state *>(tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, sizeof *cuda));
    if (!cuda) {
        return TG_E_MEMORY;
    }
    be->state = cuda;
    cuda->device = be->device;
    cuda->stream = static_cast<cudaStream_t>(be->stream);
    cuda->memory.alloc = device_alloc;
    cuda->memory.release = device_release;
    cuda->memory.state = cuda;
    cuda->memory.place = TG_DEVICE;
    TG_TRY(CUDA_CHECK(be, cudaSetDevice(cuda->device), "choosing the GPU"));
    if (!be->stream) {
        TG_TRY(cuda_make_stream(be, &cuda->stream));
    }
    cuda->memory.stream = cuda->stream;
    cuda->plans = static_cast<struct cuda_plans *>(
        tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, cuda_plans_bytes()));
    TG_TRY(cuda->plans ? TG_OK : TG_E_MEMORY);
    TG_TRY(cuda_make_stream(be, &cuda->copy_stream));
    TG_TRY(cuda_make_stream(be, &cuda->side_stream));
    TG_TRY(CUDA_CHECK(be, cudaEventCreateWithFlags(&cuda->copy_event, cudaEventDisableTiming),
                      "making an event"));
    TG_TRY(get_attribute(be, cudaDevAttrMultiProcessorCount, &cuda->processors));
    TG_TRY(get_attribute(be, cudaDevAttrMaxSharedMemoryPerBlockOptin, &cuda->max_shared));
    TG_TRY(find_hopper(be));
    cuda->scratch = cuda_alloc(be, TG_MEM_WORKSPACE, CUDA_SCRATCH_BYTES);
    TG_TRY(cuda->scratch ? TG_OK : TG_E_MEMORY);
    TG_TRY(
        CUDA_CHECK(be, cudaMallocHost(&cuda->pinned, CUDA_PINNED_BYTES), "taking pinned memory"));
    TG_TRY(open_blas(be));
    return TG_OK;
fail:
    cuda_close(be);
    return status;
}

/* ---- kernels ---- */

tg_status cuda_allow_shared(const tg_backend *be, const void *kernel, size_t bytes) {
    static std::mutex one_at_a_time;
    const char *what = "asking for shared memory";
    auto &known = cuda_state_of(be)->limit[(uintptr_t)kernel / 16 % CUDA_LIMITS];
    if (known.kernel == kernel && bytes <= known.bytes) {
        return TG_OK;
    }
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    cudaFuncAttributes now;
    TG_CALL(CUDA_CHECK(be, cudaFuncGetAttributes(&now, kernel), what));
    if (bytes > (size_t)now.maxDynamicSharedSizeBytes) {
        TG_CALL(CUDA_CHECK(
            be,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            what));
    }
    known = {kernel, bytes};
    return TG_OK;
}

/* ---- transfers ---- */

tg_status cuda_synchronize(tg_backend *be) {
    return CUDA_CHECK(be, cudaStreamSynchronize(cuda_state_of(be)->stream), "waiting for the GPU");
}

static tg_status transfer(tg_backend *be, void *dst, const void *src, size_t bytes,
                          cudaMemcpyKind kind, const char *what) {
    const cuda_state *cuda = cuda_state_of(be);
    TG_CALL(CUDA_CHECK(be, cudaSetDevice(cuda->device), "choosing the GPU"));
    return CUDA_CHECK(be, cudaMemcpyAsync(dst, src, bytes, kind, cuda->stream), what);
}

tg_status cuda_upload(tg_backend *be, void *dst, const void *host, size_t bytes) {
    TG_CALL(transfer(be, dst, host, bytes, cudaMemcpyHostToDevice, "copying to the GPU"));
    return cuda_synchronize(be);
}

tg_status cuda_download(tg_backend *be, void *host, const void *src, size_t bytes) {
    TG_CALL(transfer(be, host, src, bytes, cudaMemcpyDeviceToHost, "copying from the GPU"));
    return cuda_synchronize(be);
}

tg_status cuda_copy(tg_backend *be, void *dst, const void *src, size_t bytes) {
    return transfer(be, dst, src, bytes, cudaMemcpyDefault, "copying memory of the GPU");
}

tg_status cuda_clear(const tg_backend *be, void *x, size_t bytes, const char *what) {
    return CUDA_CHECK(be, cudaMemsetAsync(x, 0, bytes, cuda_stream(be)), what);
}

tg_status cuda_read(tg_backend *be, void *host, const void *from, size_t bytes) {
    void *pinned = cuda_state_of(be)->pinned;
    TG_CALL(transfer(be, pinned, from, bytes, cudaMemcpyDeviceToHost, "copying from the GPU"));
    TG_CALL(cuda_synchronize(be));
    memcpy(host, pinned, bytes);
    return TG_OK;
}

tg_status cuda_device_facts(tg_backend *be, tg_device_facts *out) {
    static const cudaDeviceAttr parts[] = {cudaDevAttrPciDomainId, cudaDevAttrPciBusId,
                                           cudaDevAttrPciDeviceId};
    *out = tg_device_facts();
    for (const cudaDeviceAttr part : parts) {
        int value = 0;
        TG_CALL(get_attribute(be, part, &value));
        out->address = out->address << 16 | static_cast<uint64_t>(value);
    }
    return CUDA_CHECK(be, cudaMemGetInfo(&out->memory_left, &out->memory_total),
                      "asking the GPU for its memory");
}

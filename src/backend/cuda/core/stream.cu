/* Asynchronous work: events, a copy stream, and captured graphs. Pinned memory counts as host
 * memory. */
#include "backend/cuda/core/cuda.cuh"

/* ---- pinned memory ---- */

static void *pinned_alloc(void *, size_t bytes) {
    void *block = NULL;
    if (cudaMallocHost(&block, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return block;
}

static void pinned_free(void *, void *block) {
    cudaFreeHost(block);
    cudaGetLastError();
}

static const tg_mem_device pinned_memory = {pinned_alloc, pinned_free, NULL, TG_HOST, NULL};

static void *cuda_pinned_alloc(tg_backend *be, tg_mem_category category, size_t bytes) {
    return tg_mem_device_alloc(be->ctx, &pinned_memory, category, bytes);
}

static void cuda_pinned_release(tg_backend *be, void *block) {
    tg_mem_device_free(be->ctx, &pinned_memory, block);
}

/* ---- streams ---- */

/* Makes `second` wait for the work queued on `first` so far. */
static tg_status order_streams(tg_backend *be, cudaStream_t first, cudaStream_t second) {
    const cuda_state *cuda = cuda_state_of(be);
    TG_CALL(CUDA_CHECK(be, cudaEventRecord(cuda->copy_event, first), "recording an event"));
    return CUDA_CHECK(be, cudaStreamWaitEvent(second, cuda->copy_event, 0), "ordering two streams");
}

static tg_status cuda_copy_stream_upload(tg_backend *be, bool after_stream, void *dst,
                                         const void *pinned, size_t bytes) {
    cuda_state *cuda = cuda_state_of(be);
    TG_CALL(after_stream ? order_streams(be, cuda->stream, cuda->copy_stream) : TG_OK);
    return CUDA_CHECK(
        be, cudaMemcpyAsync(dst, pinned, bytes, cudaMemcpyHostToDevice, cuda->copy_stream),
        "copying to the GPU");
}

static cudaStream_t stream_of(const tg_backend *be, tg_stream_id stream) {
    const cuda_state *cuda = cuda_state_of(be);
    return stream == TG_STREAM_COPY   ? cuda->copy_stream
           : stream == TG_STREAM_SIDE ? cuda->side_stream
                                      : cuda->stream;
}

static tg_status cuda_follow(tg_backend *be, tg_stream_id follower, tg_stream_id leader) {
    return order_streams(be, stream_of(be, leader), stream_of(be, follower));
}

static void *cuda_handle(tg_backend *be, tg_stream_id stream) {
    return stream_of(be, stream);
}

/* ---- events ---- */

struct tg_stream_event {
    cudaEvent_t event;
};

static void cuda_event_destroy(tg_backend *be, tg_stream_event **event) {
    if (event && *event) {
        if ((*event)->event) {
            cudaEventDestroy((*event)->event);
            cudaGetLastError();
        }
        tg_mem_free(be->ctx, *event);
        *event = NULL;
    }
}

static tg_status cuda_event_create(tg_backend *be, tg_stream_event **out) {
    tg_status status = TG_OK;
    *out = static_cast<tg_stream_event *>(tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, sizeof **out));
    TG_TRY(*out ? TG_OK : TG_E_MEMORY);
    TG_TRY(CUDA_CHECK(be, cudaEventCreate(&(*out)->event), "making an event"));
    return TG_OK;
fail:
    cuda_event_destroy(be, out);
    return status;
}

static tg_status cuda_event_record(tg_backend *be, tg_stream_event *event) {
    return CUDA_CHECK(be, cudaEventRecord(event->event, cuda_stream(be)), "recording an event");
}

static tg_status cuda_event_wait(tg_backend *be, tg_stream_event *event) {
    return CUDA_CHECK(be, cudaEventSynchronize(event->event), "waiting for the GPU");
}

/* Not done, or failed; the call that waits for the event reports the failure. */
static bool cuda_event_is_reached(tg_backend *be, tg_stream_event *event) {
    return cudaSetDevice(cuda_state_of(be)->device) == cudaSuccess &&
           cudaEventQuery(event->event) == cudaSuccess;
}

/* ---- graphs ---- */

struct tg_graph {
    cudaGraphExec_t work;
};

/* Graphs of a caller's stream are captured on one of our own: the default stream cannot be
 * captured, and other threads may queue on any of the caller's. */
static tg_status leave_capture(tg_backend *be, tg_status status) {
    const tg_status left =
        be->stream ? cuda_set_stream(be, static_cast<cudaStream_t>(be->stream)) : TG_OK;
    return status == TG_OK ? left : status;
}

static tg_status cuda_graph_begin(tg_backend *be) {
    tg_status status = TG_OK;
    cuda_state *cuda = cuda_state_of(be);
    if (be->stream && !cuda->capture_stream) {
        TG_TRY(cuda_make_stream(be, &cuda->capture_stream));
    }
    TG_TRY(be->stream ? cuda_set_stream(be, cuda->capture_stream) : TG_OK);
    TG_TRY(CUDA_CHECK(be, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                      "recording a graph"));
    return TG_OK;
fail:
    return leave_capture(be, status);
}

static void cuda_graph_destroy(tg_backend *be, tg_graph **graph) {
    if (graph && *graph) {
        if ((*graph)->work) {
            cudaGraphExecDestroy((*graph)->work);
            cudaGetLastError();
        }
        tg_mem_free(be->ctx, *graph);
        *graph = NULL;
    }
}

static tg_status cuda_graph_end(tg_backend *be, tg_graph **out) {
    tg_status status = TG_OK;
    cudaGraph_t recorded = NULL;
    *out = NULL;
    status = CUDA_CHECK(be, cudaStreamEndCapture(cuda_stream(be), &recorded), "recording a graph");
    TG_TRY(leave_capture(be, status));
    *out = static_cast<tg_graph *>(tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, sizeof **out));
    TG_TRY(*out ? TG_OK : TG_E_MEMORY);
    TG_TRY(CUDA_CHECK(be, cudaGraphInstantiate(&(*out)->work, recorded, 0), "recording a graph"));
fail:
    if (recorded) {
        cudaGraphDestroy(recorded);
    }
    if (status != TG_OK) {
        cuda_graph_destroy(be, out);
    }
    return status;
}

/* A capture of the process that forbids work on the default stream is one, too. */
static bool cuda_is_capturing(tg_backend *be) {
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(cuda_stream(be), &found) != cudaSuccess) {
        cudaGetLastError();
        return true;
    }
    return found != cudaStreamCaptureStatusNone;
}

static tg_status cuda_graph_launch(tg_backend *be, tg_graph *graph) {
    return CUDA_CHECK(be, cudaGraphLaunch(graph->work, cuda_stream(be)), "launching a graph");
}

const tg_stream_ops cuda_stream_ops = {
    cuda_pinned_alloc, cuda_pinned_release, cuda_event_create,     cuda_event_destroy,
    cuda_event_record, cuda_event_wait,     cuda_event_is_reached, cuda_copy_stream_upload,
    cuda_follow,       cuda_graph_begin,    cuda_graph_end,        cuda_graph_destroy,
    cuda_graph_launch, cuda_is_capturing,   cuda_handle,
};

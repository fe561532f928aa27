/* Asynchronous copies on Hopper GPUs; barriers in shared memory, whose phase ends when all threads
 * have arrived and all bytes have landed; and clusters, thread blocks that access each other's
 * shared memory. Empty when compiled for other GPUs, like the products of warpgroup.cuh. */
#ifndef TG_BACKEND_CUDA_TILE_PIPELINE_CUH
#define TG_BACKEND_CUDA_TILE_PIPELINE_CUH

#include "backend/cuda/tile/warpgroup.cuh"

__device__ inline uint32_t shared_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory ---- */

__device__ inline void barrier_init(uint64_t *barrier, int arrivals) {
    WG_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(barrier)), "r"(arrivals)
           : "memory");
}
/* The thread that initialized barriers calls this before the synchronization that publishes
 * them. */
__device__ inline void barriers_made() {
    WG_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and adds a number of bytes the phase waits for. */
__device__ inline void barrier_expect(uint64_t *barrier, int bytes) {
    WG_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(barrier)),
           "r"(bytes)
           : "memory");
}
/* Arrives. */
__device__ inline void barrier_arrive(uint64_t *barrier) {
    WG_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(barrier)) : "memory");
}
/* Arrives at the same barrier of another block of the cluster. */
__device__ inline void barrier_arrive(uint64_t *barrier, int block) {
    WG_ASM("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
           "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(shared_at(barrier)),
           "r"(block)
           : "memory");
}
/* Waits until the phase of this parity has ended; phases count from 0. The loop is in assembly, so
 * that the compiler keeps products running across it. */
__device__ inline void barrier_wait(uint64_t *barrier, int parity) {
    WG_ASM("{ .reg .pred done;"
           "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
           "@!done bra again; }" ::"r"(shared_at(barrier)),
           "r"(parity)
           : "memory");
}

/* ---- clusters ---- */

/* Launch attribute: clusters of N blocks. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define IN_CLUSTERS_OF(N) __cluster_dims__(N, 1, 1)
#else
#define IN_CLUSTERS_OF(N)
#endif

__device__ inline int cluster_rank() {
    uint32_t rank = 0;
    WG_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
/* Synchronizes all threads of all blocks of the cluster. */
__device__ inline void cluster_sync() {
    WG_ASM("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

/* Copies from global memory to the same address in all CLUSTER blocks and counts the bytes at each
 * block's barrier. A multiple of 16 bytes, aligned. */
template <int CLUSTER>
__device__ inline void copy_to_cluster(void *to, const void *from, int bytes, uint64_t *barrier) {
    WG_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
           ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_at(to)),
           "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_at(barrier)),
           "h"((uint16_t)((1 << CLUSTER) - 1))
           : "memory");
}

/* The same within a block. */
__device__ inline void copy_bulk(void *to, const void *from, int bytes, uint64_t *barrier) {
    WG_ASM(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_at(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_at(barrier))
        : "memory");
}

/* Copies back to global memory; writes of threads need wg_publish and a barrier first. The second
 * waits until all such copies of this thread have been read, so that the source may be
 * overwritten. */
__device__ inline void send_bulk(void *to, const void *from, int bytes) {
    WG_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
           "cp.async.bulk.commit_group;" ::"l"(__cvta_generic_to_global(to)),
           "r"(shared_at(from)), "r"(bytes)
           : "memory");
}
__device__ inline void sent_bulk() {
    WG_ASM("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ---- programmatic dependent launch ---- */

/* Launches kernel(task), whose blocks take `pieces` of work in turn, at most one block per
 * multiprocessor; with PDL if `chained`. */
template <class T>
static inline tg_status launch_chained(const tg_backend *be, const char *what, bool chained,
                                       void (*kernel)(T), int64_t pieces, int threads, int shared,
                                       const T &task) {
    const unsigned blocks = (unsigned)tg_min(pieces, cuda_state_of(be)->processors);
    return launch_if_early(be, what, chained, kernel, blocks, (unsigned)threads, (size_t)shared,
                           task);
}

/* ---- registers per thread of a warpgroup: raised or lowered to N ---- */

template <int N> __device__ inline void registers_increase() {
    WG_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void registers_decrease() {
    WG_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif

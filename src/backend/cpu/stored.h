/* Arrays that may be stored in 16 bits: f32 kernels access them piece by piece, in place if f32,
 * else converted to a thread's buffer. No f32 copy of a whole array exists. */
#ifndef TG_BACKEND_CPU_STORED_H
#define TG_BACKEND_CPU_STORED_H

#include "backend/cpu/cpu.h"

/* The address of real number `at`. */
static inline void *cpu_stored_at(tg_storage store, const void *x, int64_t at) {
    const size_t size = store == TG_STORE_FULL ? sizeof(float) : sizeof(uint16_t);
    return (char *)(uintptr_t)x + (size_t)at * size;
}

/* Reals [at, at + n) of x as floats: x itself, or `room`. */
static inline const float *cpu_read(const cpu_kernels *k, tg_storage store, const void *x,
                                    int64_t at, int64_t n, float *room) {
    const void *from = cpu_stored_at(store, x, at);
    if (store == TG_STORE_FULL) {
        return from;
    }
    k->load_f32(tg_stored(TG_F32, store), n, from, room);
    return room;
}

/* Destination of a result for reals [at, ..) of x: x itself, or `room`, from which cpu_write then
 * rounds it. */
static inline float *cpu_result(tg_storage store, void *x, int64_t at, float *room) {
    return store == TG_STORE_FULL ? cpu_stored_at(store, x, at) : room;
}

static inline void cpu_write(const cpu_kernels *k, tg_storage store, int64_t n, const float *room,
                             void *x, int64_t at) {
    if (store != TG_STORE_FULL) {
        k->store_f32(tg_stored(TG_F32, store), n, room, cpu_stored_at(store, x, at));
    }
}

/* The same with stochastic rounding to 16-bit formats by the stream `rounding` (NULL: to nearest).
 */
static inline void cpu_write_rounded(const cpu_kernels *k, tg_storage store, int64_t n,
                                     const float *room, void *x, int64_t at,
                                     const tg_rng *rounding) {
    if (store != TG_STORE_FULL && rounding) {
        (store == TG_STORE_BF16 ? k->round_bf16 : k->round_f16)(rounding, (uint64_t)at, n, room,
                                                                cpu_stored_at(store, x, at));
    } else {
        cpu_write(k, store, n, room, x, at);
    }
}

#endif

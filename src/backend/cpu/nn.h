/* Internals of the cpu backend's neural operators. f64 goes to ref. */
#ifndef TG_BACKEND_CPU_NN_H
#define TG_BACKEND_CPU_NN_H

#include <limits.h>

#include "backend/cpu/cpu.h"
#include "base/memory.h"

/* The kernels chosen by the backend. */
static inline const cpu_nn_kernels *cpu_nn_of(tg_backend *be) {
    return cpu_state_of(be)->nn;
}

/* Bytes of the workspaces of calls that the cpu backend tunes. */
size_t cpu_skip_workspace(tg_backend *be, const tg_skip *op);
size_t cpu_mlp_workspace(tg_backend *be, const tg_mlp *op);
size_t cpu_gno_workspace(tg_backend *be, const tg_gno *op);

/* Tiles: a few pixels of all channels of one image, small enough that intermediate results stay in
 * cache. A thread processes a run of tiles with separate scratch; the threads' sums for the
 * gradients of weights are added at the end in thread order. */

typedef struct cpu_tiles {
    int64_t pixels; /* of an image */
    int64_t width;  /* pixels of a tile; the last one of an image may have fewer */
    int64_t per_image;
    int64_t count; /* tiles of the batch */
} cpu_tiles;

typedef struct cpu_pixel_tile {
    int64_t image, first, n; /* pixels [first, first + n) */
} cpu_pixel_tile;

/* Arrays in the scratch of a thread. */
static inline float *cpu_floats(tg_scratch *scratch, int64_t count) {
    return tg_scratch_take(scratch, (size_t)count * sizeof(float));
}

static inline double *cpu_doubles(tg_scratch *scratch, int64_t count) {
    return tg_scratch_take(scratch, (size_t)count * sizeof(double));
}

/* Tiles of a width such that `channels` channels take about 128 KiB. */
static inline cpu_tiles cpu_tiles_of(int64_t batch, int64_t pixels, int64_t channels) {
    int64_t width = 32768 / channels / 16 * 16;
    width = width < 32 ? 32 : width > 512 ? 512 : width;
    cpu_tiles tiles = {.pixels = pixels, .width = width};
    tiles.per_image = (pixels + width - 1) / width;
    tiles.count = batch * tiles.per_image;
    return tiles;
}

static inline cpu_pixel_tile cpu_tile_at(const cpu_tiles *tiles, int64_t index) {
    cpu_pixel_tile tile = {.image = index / tiles->per_image,
                           .first = index % tiles->per_image * tiles->width};
    const int64_t left = tiles->pixels - tile.first;
    tile.n = left < tiles->width ? left : tiles->width;
    return tile;
}

/* Start of a tile of x (batch, channels, pixels); its rows are `pixels` apart. */
static inline int64_t cpu_tile_offset(const cpu_tiles *tiles, cpu_pixel_tile tile,
                                      int64_t channels) {
    return tile.image * channels * tiles->pixels + tile.first;
}

/* Rows of a tile, `ld` floats apart. */
typedef struct cpu_tile_rows {
    float *data;
    int64_t ld;
} cpu_tile_rows;

/* The tile of x (batch, channels, pixels): x itself if f32, else `room` (channels, n), filled if
 * `reads`. */
static inline cpu_tile_rows cpu_tile_open(const cpu_kernels *k, tg_storage store, const void *x,
                                          const cpu_tiles *tiles, cpu_pixel_tile tile,
                                          int64_t channels, bool reads, float *room) {
    const int64_t at = cpu_tile_offset(tiles, tile, channels);
    if (store == TG_STORE_FULL) {
        return (cpu_tile_rows){cpu_stored_at(store, x, at), tiles->pixels};
    }
    for (int64_t c = 0; reads && c < channels; c++) {
        cpu_read(k, store, x, at + c * tiles->pixels, tile.n, room + c * tile.n);
    }
    return (cpu_tile_rows){room, tile.n};
}

/* act(x) of a tile: x itself if that is the same, else in `room`. */
static inline cpu_tile_rows cpu_tile_activated(tg_backend *be, tg_act act, tg_storage store,
                                               const void *x, const cpu_tiles *tiles,
                                               cpu_pixel_tile tile, int64_t channels, float *room) {
    const cpu_tile_rows in =
        cpu_tile_open(cpu_state_of(be)->kernels, store, x, tiles, tile, channels, true, room);
    for (int64_t c = 0; act != TG_ACT_NONE && c < channels; c++) {
        cpu_nn_of(be)->act(act, tile.n, in.data + c * in.ld, room + c * tile.n);
    }
    return act == TG_ACT_NONE ? in : (cpu_tile_rows){room, tile.n};
}

/* Rounds a tile that was computed in `room`. */
static inline void cpu_tile_close(const cpu_kernels *k, tg_storage store, const float *room,
                                  const cpu_tiles *tiles, cpu_pixel_tile tile, int64_t channels,
                                  void *x) {
    const int64_t at = cpu_tile_offset(tiles, tile, channels);
    for (int64_t c = 0; store != TG_STORE_FULL && c < channels; c++) {
        cpu_write(k, store, tile.n, room + c * tile.n, x, at + c * tiles->pixels);
    }
}

/* The dtypes and sizes accepted by the tiled layers; BLAS counts in ints. */
static inline bool cpu_tiles_take(tg_dtype dtype, int64_t pixels) {
    return dtype == TG_F32 && pixels <= INT_MAX;
}

static inline void cpu_add_doubles(int64_t n, const double *x, float *y) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)((double)y[i] + x[i]);
    }
}

/* y (n) += the sums of all parts, `distance` bytes apart, in their order. */
static inline void cpu_add_parts(tg_backend *be, int parts, int64_t n, const float *sums,
                                 size_t distance, float *y) {
    const int threads = cpu_parts(be, n * parts, 1 << 16);
#pragma omp parallel for num_threads(cpu_team(be, threads)) schedule(static)
    for (int t = 0; t < threads; t++) {
        const tg_range r = tg_partition(n, 16, threads, t);
        for (int p = 0; p < parts; p++) {
            const float *x = sums + (size_t)p * (distance / sizeof *x);
            for (int64_t i = r.begin; i < r.end; i++) {
                y[i] += x[i];
            }
        }
    }
}

/* Threads worth using: `work` multiplications in all. */
static inline int cpu_tile_parts(const tg_backend *be, const cpu_tiles *tiles, int64_t weights) {
    const int parts = cpu_parts(be, tiles->count * tiles->width * weights, 1 << 19);
    return tiles->count < parts ? (tiles->count > 0 ? (int)tiles->count : 1) : parts;
}

#endif

/* Where a tile of pixels lies among those of all samples, and the ones behind it, one after the
 * other without divisions: those take as long as a product. */
#ifndef TG_BACKEND_CUDA_SM90_TILE_WALK_CUH
#define TG_BACKEND_CUDA_SM90_TILE_WALK_CUH

#include "backend/cuda/tile/warpgroup.cuh"

struct tile_walk {
    int sample, tile; /* of the sample */

    __device__ tile_walk(int number, int64_t pixels) {
        const int per_sample = (int)(pixels / WG_PIXELS);
        sample = number / per_sample;
        tile = number % per_sample;
    }
    /* As many tiles on as tile_walk(that many, pixels) says. */
    __device__ void move(const tile_walk &by, int64_t pixels) {
        const int per_sample = (int)(pixels / WG_PIXELS);
        const bool over = tile + by.tile >= per_sample;
        sample += by.sample + over;
        tile += by.tile - (over ? per_sample : 0);
    }
    /* Its first pixel in an array (samples, channels, pixels), of channel 0. */
    __device__ int64_t at(int channels, int64_t pixels) const {
        return (int64_t)sample * channels * pixels + tile * WG_PIXELS;
    }
};

#endif

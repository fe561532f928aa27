/* 8-bit quantization (quantize.h): blocks in contiguous parts, one per thread. */
#include "backend/quantize.h"

#include <string.h>

#include "backend/cpu/cpu.h"

enum { GRAIN = 64 }; /* fewer blocks do not repay a thread */

/* Values of a block: fewer in the last one. */
static size_t values_in(int64_t n, int64_t block) {
    const int64_t left = n - block * TG_QUANTIZED_BLOCK;
    return (size_t)(left < TG_QUANTIZED_BLOCK ? left : TG_QUANTIZED_BLOCK);
}

static void quantize(tg_backend *be, int64_t n, const float *x, uint8_t *byte) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int64_t blocks = tg_quantized_blocks(n);
    float *scale = (float *)(void *)(byte + tg_quantized_scales(n));
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, blocks, GRAIN))) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * TG_QUANTIZED_BLOCK;
        const size_t count = values_in(n, b);
        float last[TG_QUANTIZED_BLOCK] = {0};
        const bool is_whole = count == TG_QUANTIZED_BLOCK;
        if (!is_whole) {
            memcpy(last, x + at, count * sizeof *x);
        }
        scale[b] = k->quantize_block(is_whole ? x + at : last, byte + at);
    }
}

static void dequantize(tg_backend *be, int64_t n, const uint8_t *byte, float *x) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int64_t blocks = tg_quantized_blocks(n);
    const float *scale = (const float *)(const void *)(byte + tg_quantized_scales(n));
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, blocks, GRAIN))) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * TG_QUANTIZED_BLOCK;
        const size_t count = values_in(n, b);
        if (count == TG_QUANTIZED_BLOCK) {
            k->dequantize_block(scale[b], byte + at, x + at);
            continue;
        }
        float last[TG_QUANTIZED_BLOCK];
        k->dequantize_block(scale[b], byte + at, last);
        memcpy(x + at, last, count * sizeof *x);
    }
}

tg_status cpu_quantize(tg_backend *be, const tg_quantization *op) {
    if (op->restores) {
        dequantize(be, op->n, op->from, op->to);
    } else {
        quantize(be, op->n, op->from, op->to);
    }
    return TG_OK;
}

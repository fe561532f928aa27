/* 8-bit quantization (quantize.h), block by block. */
#include "backend/quantize.h"

#include <string.h>

#include "backend/ref/ref.h"

static uint32_t modulus_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFFu;
}

static void quantize(int64_t n, const float *x, uint8_t *byte) {
    float *scale = (float *)(void *)(byte + tg_quantized_scales(n));
    for (int64_t block = 0; block < tg_quantized_blocks(n); block++) {
        const int64_t first = block * TG_QUANTIZED_BLOCK, end = first + TG_QUANTIZED_BLOCK;
        uint32_t most = 0;
        for (int64_t i = first; i < end && i < n; i++) {
            most = modulus_bits(x[i]) > most ? modulus_bits(x[i]) : most;
        }
        const tg_quantizer q = tg_quantizer_of(most);
        for (int64_t i = first; i < end; i++) {
            byte[i] = i < n ? tg_quantize(x[i], q.inverse) : 0;
        }
        scale[block] = q.scale;
    }
}

static void dequantize(int64_t n, const uint8_t *byte, float *x) {
    const float *scale = (const float *)(const void *)(byte + tg_quantized_scales(n));
    for (int64_t i = 0; i < n; i++) {
        x[i] = tg_dequantize(byte[i], scale[i / TG_QUANTIZED_BLOCK]);
    }
}

static tg_status ref_quantize(tg_backend *be, const tg_quantization *op) {
    (void)be;
    if (op->restores) {
        dequantize(op->n, op->from, op->to);
    } else {
        quantize(op->n, op->from, op->to);
    }
    return TG_OK;
}

void ref_fill_quantize(tg_backend_ops *ops) {
    ops->quantize = ref_quantize;
}

/* 8-bit quantization of activations kept for backward, shared verbatim by the C and CUDA backends.
 * A block of TG_QUANTIZED_BLOCK consecutive values has one scale s; a byte q in -127 .. 127
 * represents s q, and the value of largest modulus in a block 127 s:
 *
 *   s = max |x| / 127,   q = nearest integer to x (127 / max |x|), ties to even
 *
 * so that no value changes by more than max |x| / 254 (and a rounding of f32). A block of values
 * below TG_QUANTIZED_LEAST is all 0; one that holds a NaN or Inf is all NaN. In memory all bytes
 * come first, padded with 0 to whole blocks, then all scales.
 *
 * Only *, /, + and bit operations in a fixed order: the same bytes everywhere (files that include
 * this are compiled without contraction). */
#ifndef TG_BACKEND_QUANTIZE_H
#define TG_BACKEND_QUANTIZE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TG_QUANTIZE_FN static __host__ __device__ inline
#else
#define TG_QUANTIZE_FN static inline
#endif

enum { TG_QUANTIZED_BLOCK = 128 };

#define TG_QUANTIZED_LEAST 0x1p-100f

TG_QUANTIZE_FN int64_t tg_quantized_blocks(int64_t n) {
    return (n + TG_QUANTIZED_BLOCK - 1) / TG_QUANTIZED_BLOCK;
}

/* Bytes of n values, and the offset of their scales. */
TG_QUANTIZE_FN size_t tg_quantized_bytes(int64_t n) {
    return (size_t)tg_quantized_blocks(n) * (TG_QUANTIZED_BLOCK + sizeof(float));
}

TG_QUANTIZE_FN size_t tg_quantized_scales(int64_t n) {
    return (size_t)tg_quantized_blocks(n) * TG_QUANTIZED_BLOCK;
}

/* Scale and inverse of a block, from the bits of its largest |x|; NaN is above Inf. */
typedef struct tg_quantizer {
    float scale, inverse;
} tg_quantizer;

TG_QUANTIZE_FN tg_quantizer tg_quantizer_of(uint32_t most_bits) {
    union {
        uint32_t bits;
        float value;
    } most = {most_bits}, nan = {0x7FC00000u};
    tg_quantizer q = {0.0f, 0.0f};
    if (most_bits >= 0x7F800000u) {
        q.scale = nan.value;
    } else if (most.value >= TG_QUANTIZED_LEAST) {
        q.scale = most.value / 127.0f;
        q.inverse = 127.0f / most.value;
    }
    return q;
}

/* The byte of x. Adding 1.5 2^23 leaves the rounded number in the low bits, in two's complement.
 * Where 0 times Inf or NaN gives an arbitrary byte, the scale is NaN. */
TG_QUANTIZE_FN uint8_t tg_quantize(float x, float inverse) {
    union {
        float value;
        uint32_t bits;
    } moved;
#ifdef __CUDA_ARCH__ /* never contracted, whatever the compiler's options */
    moved.value = __fadd_rn(__fmul_rn(x, inverse), 0x1.8p23f);
#else
    moved.value = x * inverse + 0x1.8p23f;
#endif
    return (uint8_t)moved.bits;
}

TG_QUANTIZE_FN float tg_dequantize(uint8_t byte, float scale) {
    return (float)(int8_t)byte * scale;
}

#endif

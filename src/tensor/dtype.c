/* The table of dtypes. */
#include <stddef.h>

#include "tgrad/tensor.h"

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
    bool is_complex;
    tg_dtype real;         /* of the real or imaginary part */
    tg_dtype complex_pair; /* its complex type, or itself */
} dtype_row;

static const dtype_row rows[TG_DTYPES] = {
    [TG_F32] = {"f32", 4, true, false, TG_F32, TG_C64},
    [TG_F64] = {"f64", 8, true, false, TG_F64, TG_C128},
    [TG_BF16] = {"bf16", 2, true, false, TG_BF16, TG_CBF16},
    [TG_F16] = {"f16", 2, true, false, TG_F16, TG_CF16},
    [TG_C64] = {"c64", 8, true, true, TG_F32, TG_C64},
    [TG_C128] = {"c128", 16, true, true, TG_F64, TG_C128},
    [TG_CBF16] = {"cbf16", 4, true, true, TG_BF16, TG_CBF16},
    [TG_CF16] = {"cf16", 4, true, true, TG_F16, TG_CF16},
    [TG_BOOL] = {"bool", 1, false, false, TG_BOOL, TG_BOOL},
    [TG_U8] = {"u8", 1, false, false, TG_U8, TG_U8},
    [TG_I8] = {"i8", 1, false, false, TG_I8, TG_I8},
    [TG_U16] = {"u16", 2, false, false, TG_U16, TG_U16},
    [TG_I16] = {"i16", 2, false, false, TG_I16, TG_I16},
    [TG_U32] = {"u32", 4, false, false, TG_U32, TG_U32},
    [TG_I32] = {"i32", 4, false, false, TG_I32, TG_I32},
    [TG_U64] = {"u64", 8, false, false, TG_U64, TG_U64},
    [TG_I64] = {"i64", 8, false, false, TG_I64, TG_I64},
};

static bool is_known(tg_dtype dtype) {
    return (int)dtype >= 0 && dtype < TG_DTYPES;
}

size_t tg_dtype_size(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].size : 0;
}

const char *tg_dtype_name(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].name : "unknown";
}

bool tg_dtype_is_complex(tg_dtype dtype) {
    return is_known(dtype) && rows[dtype].is_complex;
}

bool tg_dtype_is_float(tg_dtype dtype) {
    return is_known(dtype) && rows[dtype].is_float;
}

tg_dtype tg_dtype_real(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].real : dtype;
}

tg_dtype tg_dtype_complex(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].complex_pair : dtype;
}

tg_dtype tg_dtype_wide(tg_dtype dtype) {
    switch (dtype) {
    case TG_BF16:
    case TG_F16:
        return TG_F32;
    case TG_CBF16:
    case TG_CF16:
        return TG_C64;
    default:
        return dtype;
    }
}

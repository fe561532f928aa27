/* Dtypes, 16-bit formats, shapes, tensors, views, statistics, conversion. */
#include <math.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/context.h"
#include "tensor/element.h"
#include "tensor/half.h"
#include "tgrad/tensor.h"

TEST(test_dtypes) {
    for (int d = 0; d < TG_DTYPES; d++) {
        tg_dtype dtype = (tg_dtype)d;
        assert_true(tg_dtype_size(dtype) > 0);
        if (tg_dtype_is_complex(dtype)) {
            assert_int_equal(tg_dtype_size(dtype), 2 * tg_dtype_size(tg_dtype_real(dtype)));
            assert_int_equal(tg_dtype_complex(tg_dtype_real(dtype)), dtype);
        }
    }
    assert_int_equal(tg_dtype_size((tg_dtype)99), 0);
    assert_string_equal(tg_dtype_name(TG_C64), "c64");
}

/* Every f16 and bf16 value survives the way to f32 and back; every midpoint rounds to even. */
TEST(test_halves) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t half = (uint16_t)h;
        float f = tg_f16_to_f32(half);
        if (isnan(f)) {
            assert_true(isnan(tg_f16_to_f32(tg_f32_to_f16(f))));
        } else {
            assert_int_equal(tg_f32_to_f16(f), half);
        }
        f = tg_bf16_to_f32(half);
        if (isnan(f)) {
            assert_true(isnan(tg_bf16_to_f32(tg_f32_to_bf16(f))));
        } else {
            assert_int_equal(tg_f32_to_bf16(f), half);
        }
    }
    for (uint32_t h = 0; h < 0x7BFF; h++) { /* finite neighbours h and h + 1 */
        float low = tg_f16_to_f32((uint16_t)h), high = tg_f16_to_f32((uint16_t)(h + 1));
        float middle = 0.5f * low + 0.5f * high; /* exact in f32 */
        uint16_t even = (uint16_t)(h % 2 == 0 ? h : h + 1);
        assert_int_equal(tg_f32_to_f16(middle), even);
        assert_int_equal(tg_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(tg_f32_to_f16(nextafterf(middle, 1e9f)), h + 1);
        assert_int_equal(tg_f32_to_f16(-middle), even | 0x8000u);
    }
    assert_int_equal(tg_f32_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(tg_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(tg_f32_to_f16(1e30f), 0x7C00);
    assert_int_equal(tg_f32_to_bf16(3.4e38f), 0x7F80);
    assert_int_equal(tg_f32_to_bf16(1.00390625f), 0x3F80); /* 1 + 2^-8: tie to even */
}

TEST(test_shapes) {
    const int64_t big[] = {INT64_MAX / 2, 3};
    tg_shape shape = tg_shape_of(2, big);
    assert_int_equal(tg_shape_numel(&shape), -1);
    shape = tg_shape_of(3, (int64_t[]){INT64_MAX, 0, INT64_MAX});
    assert_int_equal(tg_shape_numel(&shape), -1); /* overflows even though it is empty */
    shape = tg_shape_of(2, (int64_t[]){5, 0});
    assert_int_equal(tg_shape_numel(&shape), 0);
    shape = tg_shape_of(0, NULL);
    assert_int_equal(tg_shape_numel(&shape), 1);
    char text[16];
    assert_string_equal(tg_shape_text(&shape, text, sizeof text), "scalar");
    shape = tg_shape_of(4, (int64_t[]){64, 64, 64, 33});
    assert_string_equal(tg_shape_text(&shape, text, sizeof text), "64x64x64x33");
    assert_string_equal(tg_shape_text(&shape, text, 6), "64x64");
    shape = tg_shape_of(TG_MAX_NDIM + 1, NULL);
    assert_int_equal(tg_shape_numel(&shape), -1);
    shape.ndim = TG_MAX_NDIM + 1; /* of a caller who filled it himself */
    assert_string_equal(tg_shape_text(&shape, text, sizeof text), "of 9 dimensions");
    shape = tg_shape_of(1, (int64_t[]){-1});
    assert_int_equal(tg_shape_numel(&shape), -1);
}

TEST(test_views) {
    tg_shape shape = tg_shape_of(3, (int64_t[]){4, 3, 2});
    tg_tensor t, view, flat;
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_C64, &shape, &t), TG_OK);
    assert_int_equal((uintptr_t)t.data % 64, 0);
    assert_int_equal(tg_tensor_bytes(&t), 4 * 3 * 2 * 8);
    float *x = t.data;
    for (int i = 0; i < 48; i++) {
        x[i] = (float)i;
    }
    assert_int_equal(tg_tensor_slice(ctx, &t, 1, 2, &view), TG_OK);
    assert_null(view.owner);
    assert_ptr_equal(view.data, x + 12);
    assert_int_equal(tg_tensor_numel(&view), 12);
    assert_int_equal(tg_tensor_slice(ctx, &t, 3, 2, &flat), TG_E_SHAPE);
    assert_int_equal(tg_tensor_slice(ctx, &t, -1, 1, &flat), TG_E_SHAPE);
    assert_int_equal(tg_tensor_slice(ctx, &t, 4, 0, &flat), TG_OK);
    tg_tensor_destroy(&view); /* a view frees nothing */
    assert_true(x[47] == 47.0f);
    tg_tensor_destroy(&t);
    assert_null(t.data);
    tg_tensor_destroy(NULL);
    shape = tg_shape_of(1, (int64_t[]){INT64_MAX / 4});
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &shape, &t), TG_E_SHAPE);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, (tg_dtype)77, &shape, &t), TG_E_DTYPE);
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, NULL, &t), TG_E_ARGUMENT);
}

TEST(test_stats) {
    float x[] = {1.0f, -3.0f, NAN, INFINITY, 5.0f};
    tg_tensor t;
    tg_shape shape = tg_shape_of(1, (int64_t[]){5});
    tg_tensor_stats stats;
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, x, &t), TG_OK);
    assert_int_equal(tg_tensor_get_stats(ctx, &t, &stats), TG_OK);
    assert_true(stats.min == -3.0 && stats.max == 5.0 && stats.mean == 1.0);
    assert_true(stats.nan_count == 1 && stats.inf_count == 1);
    float z[] = {3.0f, 4.0f, 0.0f, NAN};
    shape.dim[0] = 2;
    assert_int_equal(tg_tensor_wrap(ctx, TG_C64, &shape, z, &t), TG_OK);
    assert_int_equal(tg_tensor_get_stats(ctx, &t, &stats), TG_OK);
    assert_true(stats.min == 5.0 && stats.max == 5.0 && stats.nan_count == 1);
    shape.dim[0] = 0;
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, NULL, &t), TG_OK);
    assert_int_equal(tg_tensor_get_stats(ctx, &t, &stats), TG_OK);
    assert_true(isnan(stats.mean) && stats.nan_count == 0);
}

/* Small integers survive the way through every pair of dtypes. */
TEST(test_convert) {
    tg_shape shape = tg_shape_of(1, (int64_t[]){3});
    for (int a = 0; a < TG_DTYPES; a++) {
        for (int b = 0; b < TG_DTYPES; b++) {
            tg_tensor x, y;
            assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, (tg_dtype)a, &shape, &x), TG_OK);
            assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, (tg_dtype)b, &shape, &y), TG_OK);
            for (int i = 0; i < 3; i++) {
                tg_store((tg_dtype)a, x.data, i, (tg_scalar){i % 2, 0.0});
                tg_store((tg_dtype)b, y.data, i, (tg_scalar){1, 1});
            }
            assert_int_equal(tg_tensor_convert(ctx, &x, &y), TG_OK);
            for (int i = 0; i < 3; i++) {
                tg_scalar v = tg_load((tg_dtype)b, y.data, i);
                assert_true(v.re == i % 2 && v.im == 0.0);
            }
            tg_tensor_destroy(&x);
            tg_tensor_destroy(&y);
        }
    }
    double wide[] = {1e300, -1e300, (double)NAN};
    int8_t narrow[3];
    int64_t longs[3];
    tg_tensor x, y;
    assert_int_equal(tg_tensor_wrap(ctx, TG_F64, &shape, wide, &x), TG_OK);
    assert_int_equal(tg_tensor_wrap(ctx, TG_I8, &shape, narrow, &y), TG_OK);
    assert_int_equal(tg_tensor_convert(ctx, &x, &y), TG_OK);
    assert_true(narrow[0] == 127 && narrow[1] == -128 && narrow[2] == 0);
    assert_int_equal(tg_tensor_wrap(ctx, TG_I64, &shape, longs, &y), TG_OK);
    assert_int_equal(tg_tensor_convert(ctx, &x, &y), TG_OK);
    assert_true(longs[0] == INT64_MAX && longs[1] == INT64_MIN && longs[2] == 0);
    double ties[] = {1.75, -1.75, 2.5}; /* to nearest, ties to even */
    assert_int_equal(tg_tensor_wrap(ctx, TG_F64, &shape, ties, &x), TG_OK);
    assert_int_equal(tg_tensor_wrap(ctx, TG_I8, &shape, narrow, &y), TG_OK);
    assert_int_equal(tg_tensor_convert(ctx, &x, &y), TG_OK);
    assert_true(narrow[0] == 2 && narrow[1] == -2 && narrow[2] == 2);
    float re[3];
    for (int sign = -1; sign <= 1; sign += 2) {
        float z[] = {1, 0, 2, 0, 3, (float)sign * 1e-3f};
        assert_int_equal(tg_tensor_wrap(ctx, TG_C64, &shape, z, &x), TG_OK);
        assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, re, &y), TG_OK);
        assert_int_equal(tg_tensor_convert(ctx, &x, &y), TG_E_DTYPE);
        assert_non_null(strstr(tg_context_error(ctx), "element 2"));
    }
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}

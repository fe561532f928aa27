/* Formats of an optimizer's state: bytes, what encoding and decoding lose, and stochastic rounding,
 * for every codec of the table. */
#include <math.h>
#include <string.h>

#include "backend/state_codec.h"
#include "support/cmocka.h"

enum { MOST = 3 * TG_STATE_BLOCK, GUARD = 0x5A };

typedef struct stored {
    uint8_t bytes[4 * MOST + 1];
    float scale[MOST];
} stored;

/* Mixed signs and magnitudes over two decades; squares for the second moment. */
static void make_values(bool second, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++) {
        const float size = powf(10.0f, -2.0f * (float)((i * 37) % 101) / 101.0f);
        values[i] = second ? size * size : i % 3 == 0 ? -size : size;
    }
}

static void encode(const tg_state_codec *codec, bool second, const tg_rng *rng, int64_t n,
                   const float *values, stored *out) {
    const size_t bytes = tg_state_bytes(codec, TG_F32, n);
    assert_true(bytes < sizeof out->bytes);
    memset(out, 0xFF, sizeof *out); /* scales that are not written are NaN */
    out->bytes[bytes] = GUARD;
    codec->encode(second, rng, 0, n, values, out->bytes, out->scale);
    assert_int_equal(out->bytes[bytes], GUARD);
    assert_true(isnan(out->scale[tg_state_scales(codec, n)]));
}

TEST(bytes_follow_from_bits_and_blocks) {
    for (int form = 0; form < TG_STATE_FORMS; form++) {
        const tg_state_codec *codec = tg_state_codecs[form];
        const int bits = codec->bits > 0 ? codec->bits : 32;
        assert_int_equal(tg_state_bytes(codec, TG_F32, 1000), 1000 * bits / 8);
        assert_int_equal(tg_state_bytes(codec, TG_F64, 3), codec->bits > 0 ? 3 * bits / 8 : 24);
        assert_int_equal(tg_state_scales(codec, 0), 0);
        if (codec->block > 0) {
            assert_int_equal(TG_STATE_BLOCK % codec->block, 0);
            assert_int_equal(tg_state_scales(codec, codec->block), 1);
            assert_int_equal(tg_state_scales(codec, codec->block + 1), 2);
        }
        assert_int_equal(tg_state_choices[form].value, form);
        assert_true(!codec->decode == !codec->encode);
    }
    assert_null(tg_state_choices[TG_STATE_FORMS].name);
}

/* To nearest: off by less than a step of the format, and what was decoded encodes to itself. */
TEST(decoding_gives_back_what_was_encoded) {
    static const int64_t sizes[] = {1, 3, 7, TG_STATE_BLOCK, TG_STATE_BLOCK + 1, MOST - 5};
    for (int form = 0; form < TG_STATE_FORMS; form++) {
        const tg_state_codec *codec = tg_state_codecs[form];
        for (size_t k = 0; codec->decode && k < sizeof sizes / sizeof sizes[0]; k++) {
            for (int second = 0; second < 2; second++) {
                const int64_t n = sizes[k];
                float values[MOST], back[MOST], again[MOST];
                stored once, twice;
                make_values(second, n, values);
                encode(codec, second, NULL, n, values, &once);
                codec->decode(second, n, once.bytes, once.scale, back);
                encode(codec, second, NULL, n, back, &twice);
                codec->decode(second, n, twice.bytes, twice.scale, again);
                for (int64_t i = 0; i < n; i++) {
                    const float bound = codec->bits >= 16 ? 0.004f : 0.15f;
                    assert_true(fabsf(back[i] - values[i]) <= bound * fabsf(values[i]));
                    assert_true(fabsf(again[i] - back[i]) <= 1e-6f * fabsf(back[i]));
                }
            }
        }
    }
}

/* Stochastic rounding: the mean over many steps is the number itself, far below a step. */
TEST(stochastic_rounding_has_no_bias) {
    enum { STEPS = 4000 };
    for (int form = 0; form < TG_STATE_FORMS; form++) {
        const tg_state_codec *codec = tg_state_codecs[form];
        const float values[2] = {1.0f, 0.3377f};
        double sum = 0.0;
        float lowest = 1.0f, highest = 0.0f;
        for (uint32_t step = 0; codec->decode && step < STEPS; step++) {
            const tg_rng rng = {.seed = 7, .purpose = TG_RNG_ROUNDING, .step = step};
            float back[2];
            stored out;
            encode(codec, false, &rng, 2, values, &out);
            codec->decode(false, 2, out.bytes, out.scale, back);
            lowest = back[1] < lowest ? back[1] : lowest;
            highest = back[1] > highest ? back[1] : highest;
            sum += (double)back[1];
        }
        if (codec->decode) {
            assert_true(lowest < values[1] && values[1] < highest);
            assert_true(fabs(sum / STEPS - (double)values[1]) <= 3e-4);
        }
    }
}

/* The table of state formats, and the one that stores reals unchanged. */
#include "backend/state_codec.h"

const tg_state_codec tg_codec_full = {.tag = ""};

const tg_state_codec *const tg_state_codecs[TG_STATE_FORMS] = {
#define TG_STATE_FORMAT(id, word, codec) [TG_STATE_##id] = &(codec),
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT
};

const tg_choice tg_state_choices[] = {
#define TG_STATE_FORMAT(id, word, codec) {word, TG_STATE_##id},
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT
    {NULL, 0}};

size_t tg_state_bytes(const tg_state_codec *codec, tg_dtype real, int64_t n) {
    const size_t bits = codec->bits > 0 ? (size_t)codec->bits : 8 * tg_dtype_size(real);
    return ((size_t)n * bits + 7) / 8;
}

int64_t tg_state_scales(const tg_state_codec *codec, int64_t n) {
    return codec->block > 0 ? (n + codec->block - 1) / codec->block : 0;
}

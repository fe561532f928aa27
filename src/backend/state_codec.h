/* Codecs: the storage formats of an optimizer's moments.
 *
 * A codec stores a real in `bits` bits; `block` consecutive reals may share a scale in f32. First
 * and second moment may differ. Encoding rounds stochastically by a stream (rng_math.h), real j by
 * number `first` + j, or to nearest without one. Backends may have kernels that give the same bits;
 * ref, and cpu for other formats, use decode and encode: a new format needs only its codec. */
#ifndef TG_BACKEND_STATE_CODEC_H
#define TG_BACKEND_STATE_CODEC_H

#include "backend/backend.h"
#include "base/setting.h"

typedef struct tg_state_codec {
    const char *tag; /* after the method in a saved state: " bf16"; full: "" */
    tg_dtype stored; /* of the array in a file, TG_U8 for packed bits; full: unused */
    int bits;        /* per real; 0: as in arithmetic (full) */
    int block;       /* reals that share a scale, a divisor of TG_STATE_BLOCK; 0: no scales */
    int64_t least;   /* smaller parameters stay full: they would save nothing */
    /* n reals from the start of a block on. Both NULL: stored unchanged. */
    void (*decode)(bool second, int64_t n, const void *stored, const float *scale, float *out);
    void (*encode)(bool second, const tg_rng *rng, uint64_t first, int64_t n, const float *values,
                   void *stored, float *scale);
} tg_state_codec;

#define TG_STATE_FORMAT(id, word, codec) extern const tg_state_codec codec;
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT

/* By tg_state_form, and their names in opt.state_precision. */
extern const tg_state_codec *const tg_state_codecs[TG_STATE_FORMS];
extern const tg_choice tg_state_choices[];

/* Bytes of n reals, `real` being the arithmetic's type, and their number of scales. */
size_t tg_state_bytes(const tg_state_codec *codec, tg_dtype real, int64_t n);
int64_t tg_state_scales(const tg_state_codec *codec, int64_t n);

#endif

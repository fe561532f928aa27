/* The loss scale: gradients that pass through f16 are made so many times as large, a power of two,
 * and divided by it again where they are used, so that small ones do not vanish in f16 and nothing
 * else changes by a bit.
 *
 * Dynamic: halved when a step overflowed, doubled after `interval` steps that did not. What became
 * of a step is known on a GPU only when the loss of the next one is queued already; so that
 * all backends do the same, and a resumed run too, the scale of a step follows from the steps
 * before the last one everywhere. The step in between may overflow at the same scale: that halves
 * nothing once more. */
#ifndef TG_OPTIM_LOSS_SCALE_H
#define TG_OPTIM_LOSS_SCALE_H

#include "tgrad/optim.h"

#define TG_LOSS_SCALE_START 0x1p16
#define TG_LOSS_SCALE_LEAST 0x1p-10
#define TG_LOSS_SCALE_MOST  0x1p24

typedef enum tg_outcome {
    TG_OUTCOME_GOOD,
    TG_OUTCOME_OVERFLOW, /* the gradient of a parameter was not finite, though the loss was */
    TG_OUTCOME_VOID      /* the loss was not finite, which says nothing about the scale */
} tg_outcome;

typedef struct tg_loss_scale {
    tg_loss_scale_config config;
    double used;       /* in the gradients that arrive now; 1 but for those of a tg_step */
    double next;       /* dynamic: of the next step */
    double after;      /* of the step behind it */
    int64_t good;      /* steps without overflow at the scale `after` */
    int64_t overflows; /* steps with one */
    int64_t refused;   /* parameters of the step under way with a gradient that is not finite */
    bool is_told;      /* that it cannot be halved any more */
} tg_loss_scale;

tg_loss_scale tg_loss_scale_begin(void);

/* A step made with `next` has ended. */
void tg_loss_scale_advance(tg_loss_scale *scale, tg_outcome outcome);

/* As whole numbers, to be saved: the exponents of next and after, good, overflows. */
enum { TG_LOSS_SCALE_NUMBERS = 4 };
void tg_loss_scale_save(const tg_loss_scale *scale, int64_t numbers[TG_LOSS_SCALE_NUMBERS]);
/* False, and nothing changed, if they are those of no scale. NULL: begins anew. */
bool tg_loss_scale_load(tg_loss_scale *scale, const int64_t numbers[TG_LOSS_SCALE_NUMBERS]);

/* Whether an overflow is the scale's matter, and no news: it can be halved. */
bool tg_loss_scale_yields(const tg_loss_scale *scale);

/* The scale for a loss that is made now; is_ahead: while the step before has not ended. */
double tg_loss_scale_of_step(const tg_loss_scale *scale, bool is_ahead);

/* The step under way has ended, all updates are accounted for. is_void: its loss was not finite. */
void tg_optim_step_ended(tg_optim *optim, bool is_void);

#endif

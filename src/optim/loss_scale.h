/* The loss scale: gradients that pass through f16 are multiplied by a power of two, and divided by
 * it where they are used, so that small ones do not vanish. No other bit changes.
 *
 * Dynamic: halved when a step overflowed, doubled after `interval` steps without. A GPU knows the
 * outcome of a step only when the loss of the next one is queued. So that all backends and resumed
 * runs agree, the scale of a step follows from the steps before the last one; the step in between
 * may overflow at the same scale, which does not halve it again. */
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
    double used;       /* in the gradients that arrive now; 1 outside a tg_step */
    double next;       /* dynamic: for the next step */
    double after;      /* for the step after it */
    int64_t good;      /* steps without overflow at the scale `after` */
    int64_t overflows; /* steps with overflow */
    int64_t refused;   /* parameters of the current step whose gradient is not finite */
    bool has_warned;   /* warned that it cannot be halved any more */
} tg_loss_scale;

/* From text: auto (dynamic if gradients pass through f16, otherwise none), off or a number. */
TG_NODISCARD tg_status tg_loss_scale_config_parse(tg_context *ctx, const char *key,
                                                  const char *text, bool passes_f16,
                                                  tg_loss_scale_config *config);

/* The scale of the next step. */
double tg_optim_loss_scale(const tg_optim *optim);

tg_loss_scale tg_loss_scale_begin(void);

/* A step with the scale `next` has ended. */
void tg_loss_scale_advance(tg_loss_scale *scale, tg_outcome outcome);

/* Saved as whole numbers: the exponents of next and after, good, overflows. */
enum { TG_LOSS_SCALE_NUMBERS = 4 };
void tg_loss_scale_save(const tg_loss_scale *scale, int64_t numbers[TG_LOSS_SCALE_NUMBERS]);
/* False, and nothing changed, if the numbers are of no valid scale. NULL: starts anew. */
bool tg_loss_scale_load(tg_loss_scale *scale, const int64_t numbers[TG_LOSS_SCALE_NUMBERS]);

/* Whether an overflow only halves the scale, and needs no warning. */
bool tg_loss_scale_yields(const tg_loss_scale *scale);

/* The scale of a loss computed now; is_ahead: before the previous step has ended. */
double tg_loss_scale_of_step(const tg_loss_scale *scale, bool is_ahead);

/* The current step has ended, all updates are counted. is_void: its loss was not finite. */
void tg_optim_step_ended(tg_optim *optim, bool is_void);

#endif

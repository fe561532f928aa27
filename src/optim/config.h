/* The tables of settings of optimizer and schedule. */
#ifndef TG_OPTIM_CONFIG_H
#define TG_OPTIM_CONFIG_H

#include "base/setting.h"
#include "tgrad/optim.h"

const tg_setting *tg_optim_config_rows(void); /* (tg_optim_config_count()) */
int tg_optim_config_count(void);
/* The value of a key as text that tg_optim_config_set reads back. */
const char *tg_optim_config_get(const tg_optim_config *config, int index, char *text,
                                size_t capacity);

/* Whether this setting changes the contents or format of an optimizer's state. */
bool tg_optim_config_shapes_state(const char *key);

/* The key `name`, which sets a whole method (methods.c). It has no field. */
extern const tg_setting tg_optim_method_row;
TG_NODISCARD tg_status tg_optim_method_set(tg_context *ctx, tg_optim_config *config,
                                           const char *name);

/* ---- learning-rate schedules, advanced once per epoch (schedule.c) ---- */

typedef enum tg_lr_schedule_type {
    TG_LR_CONSTANT,
    TG_LR_STEP,    /* StepLR: times gamma every step_size epochs */
    TG_LR_COSINE,  /* CosineAnnealingLR: to 0 over T_max epochs, then back up */
    TG_LR_PLATEAU, /* ReduceLROnPlateau: times gamma after `patience` epochs without gain */
} tg_lr_schedule_type;

typedef struct tg_lr_schedule_config {
    tg_lr_schedule_type scheduler; /* scheduler: StepLR | CosineAnnealingLR | .. */
    double learning_rate;          /* at the start */
    int64_t step_size;             /* step_size: 100 */
    double gamma;                  /* gamma: 0.5 */
    int64_t scheduler_T_max;       /* scheduler_T_max: 300 */
    int64_t scheduler_patience;    /* scheduler_patience: 50 */
    int64_t warmup_steps;          /* warmup_steps: 0; linear from 0 over the first steps */
} tg_lr_schedule_config;

/* State of a schedule: plain data, to be saved as it is. */
typedef struct tg_lr_schedule {
    tg_lr_schedule_config config;
    int64_t epoch;  /* epochs finished */
    double factor;  /* plateau: product of the reductions so far */
    double best;    /* plateau: lowest metric so far */
    int64_t waited; /* plateau: epochs since then */
} tg_lr_schedule;

tg_lr_schedule_config tg_lr_schedule_config_default(void);
/* As for tg_optim_config. */
TG_NODISCARD tg_status tg_lr_schedule_config_set(tg_context *ctx, tg_lr_schedule_config *config,
                                                 const char *key, const char *value);
int tg_lr_schedule_config_count(void);
const char *tg_lr_schedule_config_key(int index);
const char *tg_lr_schedule_config_get(const tg_lr_schedule_config *config, int index, char *text,
                                      size_t capacity);
/* Checks the settings and begins before the first epoch. */
TG_NODISCARD tg_status tg_lr_schedule_start(tg_context *ctx, const tg_lr_schedule_config *config,
                                            tg_lr_schedule *out);
/* The rate for training step `step` (0-based, over the whole run) of the current epoch. */
double tg_lr_schedule_rate(const tg_lr_schedule *schedule, int64_t step);
/* Ends an epoch; `metric` (lower is better) matters to the plateau schedule. */
void tg_lr_schedule_epoch(tg_lr_schedule *schedule, double metric);

const tg_setting *tg_lr_schedule_config_rows(void); /* (tg_lr_schedule_config_count()) */

#endif

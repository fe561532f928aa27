/* Updates in flight: queued, with an outcome that the host does not know yet.
 *
 * The backend counts NaN and Inf of a gradient in one counter per parameter, its guard, which stops
 * the rule and the expansion into the weight. Without a stream the guard is read before the update.
 * On a stream the update is queued after its guard and counted, as made or skipped, later: at the
 * latest before the next update of the same parameter, which then starts from the right counts.
 *
 * A round is the work between two synchronizations. Its guards are cleared together when it begins
 * and copied to the host together when it is sent. */
#ifndef TG_OPTIM_IN_FLIGHT_H
#define TG_OPTIM_IN_FLIGHT_H

#include "backend/backend.h"

struct tg_slot;
struct tg_optim;

/* Values that a stream computes and the host reads late: their copy is queued, and waited for where
 * the host needs it. Used for the loss of a step (train/step.c) and the guards of a round. */
typedef struct tg_late_result {
    const void *source; /* on the backend */
    void *values;       /* on the host, pinned */
    size_t bytes;
    tg_stream_event *event; /* after the copy */
    bool is_pending;
} tg_late_result;

TG_NODISCARD tg_status tg_late_create(tg_backend *be, const void *source, size_t bytes,
                                      tg_late_result *out);
void tg_late_destroy(tg_backend *be, tg_late_result *result); /* the stream must be idle */
TG_NODISCARD tg_status tg_late_send(tg_backend *be, tg_late_result *result);
TG_NODISCARD tg_status tg_late_wait(tg_backend *be, tg_late_result *result);

typedef struct tg_in_flight {
    uint32_t *guards;    /* (slots) on the backend */
    tg_late_result seen; /* the guards of the round that was sent; pending until it is counted */
    tg_rates *rates;     /* (slots) on the backend, read by the updates of a planned round */
    tg_rates *chosen;    /* (slots) on the host, pinned: the source of `rates` */
    bool is_open;        /* a round is under way: its guards were cleared */
    bool is_planned;     /* its updates read `rates` */
} tg_in_flight;

TG_NODISCARD tg_status tg_in_flight_create(struct tg_optim *optim);
void tg_in_flight_destroy(struct tg_optim *optim);

/* Whether an update of this parameter waits until its guard was read. */
bool tg_guard_is_read_first(const struct tg_optim *optim, const struct tg_slot *slot);

/* Begins an update, or a part of an accumulated one: the guard, with the counts of earlier parts;
 * and reads the addresses of a shared workspace again. */
TG_NODISCARD tg_status tg_update_begin(struct tg_optim *optim, struct tg_slot *slot,
                                       uint32_t **guard);

/* Reads the guard now; waits for the stream. */
TG_NODISCARD tg_status tg_guard_read(struct tg_optim *optim, const struct tg_slot *slot,
                                     int64_t *nonfinite);

/* The update is done or queued: its outcome is counted at once or with its round. */
void tg_update_end(struct tg_optim *optim, struct tg_slot *slot);

/* In place of a count of NaN and Inf: all are finite, but too large to be squared. */
#define TG_TOO_LARGE (INT64_C(1) << 31)

/* Counts a skipped update; an error if the group says so. */
TG_NODISCARD tg_status tg_slot_refused(struct tg_optim *optim, struct tg_slot *slot,
                                       int64_t nonfinite);

/* ---- planned rounds, which can be captured and replayed ---- */

/* Whether the next update of every parameter is an ordinary one: no refresh, no sum under way, no
 * wait for a guard. To be called when nothing is in flight. */
bool tg_optim_is_ordinary(const struct tg_optim *optim);

/* Begins a round that updates every parameter with the current rates, and may be captured. */
TG_NODISCARD tg_status tg_optim_plan_round(struct tg_optim *optim);

/* The updates of the last planned round were queued again by replaying the capture. */
void tg_optim_repeat_round(struct tg_optim *optim);

/* Begins the planned round anew: none of its queued work was run. */
void tg_optim_restart_round(struct tg_optim *optim);

/* Ends the round: queues the copy of its guards to the host. Does not wait. */
TG_NODISCARD tg_status tg_optim_send_round(struct tg_optim *optim);

/* As tg_optim_synchronize, without warnings: for a step whose loss was not finite. */
TG_NODISCARD tg_status tg_optim_forget_round(struct tg_optim *optim);

#endif

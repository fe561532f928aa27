/* Updates in flight: asked for, with an outcome that the host does not know yet.
 *
 * Whether a gradient is finite is counted where the backend computes, in a counter per parameter:
 * its guard, which stops the rule and the way back into the weight. On the host the guard is read
 * before the update is made. Where work is queued the update is queued behind its guard, and step
 * numbers and skipped updates are counted later: at the latest before the same parameter is updated
 * again, so that every update is made as if the one before had been waited for.
 *
 * A round is what lies between two synchronizations. Its guards are cleared together when it begins
 * and come to the host together when it is sent. */
#ifndef TG_OPTIM_IN_FLIGHT_H
#define TG_OPTIM_IN_FLIGHT_H

#include "backend/backend.h"

struct tg_slot;
struct tg_optim;

typedef struct tg_in_flight {
    uint32_t *guards; /* (slots) of the backend's memory */
    uint32_t *seen;   /* (slots) on the host, pinned: the guards of the round that was sent */
    tg_rates *rates;  /* (slots) of the backend's memory, read by the updates of a planned round */
    tg_rates *chosen; /* (slots) on the host, pinned: the same before they are copied */
    tg_stream_event *event; /* behind the round that was sent */
    int *order;             /* (slots) parameters with an update under way, first come first */
    int count;
    int *planned; /* (slots) the same of the last planned round */
    int planned_count;
    bool is_open;    /* a round is under way: its guards were cleared */
    bool is_planned; /* its updates read `rates` */
    bool is_sent;    /* guards and event are queued */
} tg_in_flight;

TG_NODISCARD tg_status tg_in_flight_create(struct tg_optim *optim);
void tg_in_flight_destroy(struct tg_optim *optim);

/* Whether an update of this parameter is made only after its guard was read. */
bool tg_guard_is_read_first(const struct tg_optim *optim, const struct tg_slot *slot);

/* The guard of a parameter whose update (or part of an accumulated one) begins: 0, except for what
 * the parts before it counted. */
TG_NODISCARD tg_status tg_update_begin(struct tg_optim *optim, struct tg_slot *slot,
                                       uint32_t **guard);

/* Reads the guard now, which waits for the stream. */
TG_NODISCARD tg_status tg_guard_read(struct tg_optim *optim, const struct tg_slot *slot,
                                     int64_t *nonfinite);

/* The update is made or queued: its outcome is counted, at once or with its round. */
void tg_update_end(struct tg_optim *optim, struct tg_slot *slot);

/* In place of a number of NaN and Inf: all are finite, but too large to be squared. */
#define TG_TOO_LARGE (INT64_C(1) << 31)

/* Counts an update that is not made: an error if the group says so. */
TG_NODISCARD tg_status tg_slot_refused(struct tg_optim *optim, struct tg_slot *slot,
                                       int64_t nonfinite);

/* ---- planned rounds, which can be captured and run again ---- */

/* Whether the next update of every parameter is an ordinary one: no refresh, no sum under way,
 * nothing that is waited for. To be asked when nothing is in flight. */
bool tg_optim_is_ordinary(const struct tg_optim *optim);

/* Begins a round that updates every parameter with the rates of now; what follows until the round
 * is sent may be captured. */
TG_NODISCARD tg_status tg_optim_plan_round(struct tg_optim *optim);

/* The updates of the last planned round were queued again, by running what was captured. */
void tg_optim_repeat_round(struct tg_optim *optim);

/* Begins the planned round anew: of what was asked for in it, nothing was run. */
void tg_optim_restart_round(struct tg_optim *optim);

/* Ends the round: its guards are on their way to the host. Nothing waits. */
TG_NODISCARD tg_status tg_optim_send_round(struct tg_optim *optim);

/* As tg_optim_synchronize, for a step whose loss was not finite: its gradients were not either,
 * which is not told once more. */
TG_NODISCARD tg_status tg_optim_forget_round(struct tg_optim *optim);

#endif

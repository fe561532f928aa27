/* The walk down the hulls of all tensors. All in f64 on the host and in a fixed order: the same
 * spectra give the same ranks. */
#include "optim/auto_rank/rank_candidates.h"

enum {
    EXCHANGES = 64, /* between two tensors, at most */
    PARTS = 1024    /* of every mode, that equal ranks may take */
};

size_t tg_ranks_scratch(int tensors, int64_t candidates) {
    return (size_t)tensors * sizeof(tg_candidate_list) + (size_t)candidates * sizeof(tg_candidate);
}

static int64_t bytes_at(const tg_candidate_list *l, int64_t index) {
    return (int64_t)l->candidates[index].bytes;
}

/* One step down the hull that costs least per byte; false if there is none left. */
static bool step_down(tg_candidate_list *lists, int tensors, int64_t *total) {
    tg_candidate_list *best = NULL;
    double least = 0.0;
    for (int i = 0; i < tensors; i++) {
        tg_candidate_list *l = &lists[i];
        const int64_t lower = l->size > 0 ? l->candidates[l->at].lower : -1;
        if (lower < 0) {
            continue;
        }
        const tg_candidate *from = &l->candidates[l->at], *to = &l->candidates[lower];
        const double cost = (to->error - from->error) / (double)(from->bytes - to->bytes);
        if (!best || cost < least) {
            best = l;
            least = cost;
        }
    }
    if (!best) {
        return false;
    }
    const int64_t lower = best->candidates[best->at].lower;
    *total -= bytes_at(best, best->at) - bytes_at(best, lower);
    best->at = lower;
    return true;
}

/* One move to more bytes within `slack` that gains most; false if there is none. */
static bool fill_up(tg_candidate_list *lists, int tensors, int64_t *slack) {
    tg_candidate_list *best = NULL;
    int64_t best_to = 0;
    double most = 0.0;
    for (int i = 0; i < tensors; i++) {
        tg_candidate_list *l = &lists[i];
        int64_t to = l->at;
        while (l->size > 0 && to < l->most && bytes_at(l, to + 1) - bytes_at(l, l->at) <= *slack) {
            to++;
        }
        const double gain =
            l->size > 0 ? l->candidates[l->at].error - l->candidates[to].error : 0.0;
        if (gain > most) {
            best = l;
            best_to = to;
            most = gain;
        }
    }
    if (!best) {
        return false;
    }
    *slack -= bytes_at(best, best_to) - bytes_at(best, best->at);
    best->at = best_to;
    return true;
}

/* The last candidate of at most so many bytes, or -1. */
static int64_t last_within(const tg_candidate_list *l, int64_t bytes) {
    int64_t low = -1, high = l->size;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (bytes_at(l, middle) <= bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Takes bytes from one tensor for another where that lowers the sum of the errors most; false if
 * no such pair is left. */
static bool exchange(tg_candidate_list *lists, int tensors, int64_t *slack) {
    double most = 1e-12;
    tg_candidate_list *from = NULL, *to = NULL;
    int64_t from_candidate = 0, to_candidate = 0;
    for (int a = 0; a < tensors; a++) {
        for (int b = 0; b < tensors; b++) {
            tg_candidate_list *x = &lists[a], *y = &lists[b];
            for (int64_t i = x->at - 1; a != b && y->size > 0 && i >= 0; i--) {
                const int64_t room =
                    bytes_at(x, x->at) - bytes_at(x, i) + *slack + bytes_at(y, y->at);
                const int64_t j = last_within(y, room);
                const double gain = y->candidates[y->at].error - y->candidates[j].error -
                                    (x->candidates[i].error - x->candidates[x->at].error);
                if (gain > most) {
                    most = gain;
                    from = x;
                    to = y;
                    from_candidate = i;
                    to_candidate = j;
                }
            }
        }
    }
    if (!from) {
        return false;
    }
    *slack += bytes_at(from, from->at) - bytes_at(from, from_candidate) + bytes_at(to, to->at) -
              bytes_at(to, to_candidate);
    from->at = from_candidate;
    to->at = to_candidate;
    return true;
}

static tg_rank_allocation allocation_of(const tg_spectrum *s, const tg_candidate *p) {
    tg_rank_allocation allocation = {.count = 1, .bytes = p->bytes, .error = p->error};
    for (int d = 0; d < s->ndim; d++) {
        allocation.rank[d] = p->rank[d];
        allocation.count *= p->rank[d];
    }
    allocation.count += s->kept;
    return allocation;
}

/* ---- one part of every mode of every tensor ---- */

/* Everything that a allocation is made of. */
typedef struct call {
    const tg_state_kind *kind;
    const tg_spectrum *const *spectra;
    int tensors;
    double allowed; /* error that is as good as none */
    int64_t capacity;
} call;

/* What an error counts. */
static double loss(const call *c, double error) {
    return error > c->allowed ? error : c->allowed;
}

static tg_candidate equal_candidate(const call *c, int tensor, int part) {
    return tg_candidate_equal(c->kind, c->spectra[tensor], (double)part / PARTS);
}

/* Bytes of all tensors; those without energy keep what they have. */
static int64_t equal_bytes(const call *c, int part, const tg_rank_allocation *kept) {
    int64_t total = 0;
    for (int i = 0; i < c->tensors; i++) {
        const bool moves = c->spectra[i]->energy > 0.0;
        total += (int64_t)(moves ? equal_candidate(c, i, part).bytes : kept[i].bytes);
    }
    return total;
}

/* The largest part that fits; -1: none. */
static int equal_part(const call *c, const tg_rank_allocation *kept) {
    int low = -1, high = PARTS + 1;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (equal_bytes(c, middle, kept) <= c->capacity) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* No allocation is worse than ranks in equal parts would be: if they leave less, they are taken. */
static void prefer_equal(const call *c, tg_rank_allocation *out) {
    const int part = equal_part(c, out);
    double chosen = 0.0, equal = 0.0;
    for (int i = 0; part >= 0 && i < c->tensors; i++) {
        const bool moves = c->spectra[i]->energy > 0.0;
        chosen += moves ? loss(c, out[i].error) : 0.0;
        equal += moves ? loss(c, equal_candidate(c, i, part).error) : 0.0;
    }
    for (int i = 0; part >= 0 && equal < chosen && i < c->tensors; i++) {
        if (c->spectra[i]->energy > 0.0) {
            const tg_candidate p = equal_candidate(c, i, part);
            out[i] = allocation_of(c->spectra[i], &p);
        }
    }
}

bool tg_ranks_allocate(const tg_state_kind *kind, const tg_spectrum *const *spectra, int tensors,
                       double tolerance, size_t capacity, void *scratch, tg_rank_allocation *out) {
    tg_candidate_list *lists = scratch;
    tg_candidate *free_candidates = (tg_candidate *)(lists + tensors);
    int64_t total = 0;
    for (int i = 0; i < tensors; i++) {
        lists[i] = (tg_candidate_list){.kind = kind, .candidates = free_candidates};
        if (spectra[i]->energy > 0.0) {
            tg_candidates_list(spectra[i], tolerance, &lists[i]);
            free_candidates += tg_rank_candidates(spectra[i]);
            total += bytes_at(&lists[i], lists[i].at);
        } else {
            total += (int64_t)out[i].bytes;
        }
    }
    while (total > (int64_t)capacity) {
        if (!step_down(lists, tensors, &total)) {
            return false;
        }
    }
    int64_t slack = (int64_t)capacity - total;
    while (fill_up(lists, tensors, &slack)) {
    }
    for (int i = 0; i < EXCHANGES && exchange(lists, tensors, &slack); i++) {
    }
    for (int i = 0; i < tensors; i++) {
        if (lists[i].size > 0) {
            out[i] = allocation_of(spectra[i], &lists[i].candidates[lists[i].at]);
        }
    }
    const call all = {.kind = kind,
                      .spectra = spectra,
                      .tensors = tensors,
                      .allowed = tolerance * tolerance,
                      .capacity = (int64_t)capacity};
    prefer_equal(&all, out);
    return true;
}

/* Points of every tensor, their lower hulls, and the walk down the hulls. All in f64 on the host
 * and in a fixed order: the same spectra give the same ranks. */
#include "optim/choose.h"

#include "optim/optim.h"

#include <stdlib.h>
#include <string.h>

enum {
    LADDER = 64,   /* equal parts of all modes that are tried beside the greedy path */
    EXCHANGES = 64 /* between two tensors, at most */
};

typedef struct point {
    double error; /* relative bound */
    size_t bytes;
    int64_t lower; /* the next vertex of the hull with fewer bytes; -1: none */
    int32_t rank[TG_MAX_NDIM];
    int share;
} point;

/* The points of one tensor, by ascending bytes and falling error. */
typedef struct list {
    const tg_state_kind *kind;
    point *points;
    int64_t size;
    int64_t most; /* the last point: nothing beyond is wanted, it meets the tolerance */
    int64_t at;   /* chosen */
} list;

int64_t tg_rank_points(const tg_spectrum *s) {
    int64_t path = 1 + LADDER;
    for (int d = 0; d < s->ndim; d++) {
        path += s->max_rank[d];
    }
    return s->shares * path;
}

size_t tg_ranks_scratch(int tensors, int64_t points) {
    return (size_t)tensors * sizeof(list) + (size_t)points * sizeof(point);
}

/* ---- points ---- */

static int64_t product_without(const int64_t *rank, int ndim, int mode) {
    int64_t product = 1;
    for (int d = 0; d < ndim; d++) {
        product *= d == mode ? 1 : rank[d];
    }
    return product;
}

/* A mode has no more directions than the others together have entries. */
static void clip(int64_t *rank, int ndim) {
    for (bool changed = true; changed;) {
        changed = false;
        for (int d = 0; d < ndim; d++) {
            const int64_t most = product_without(rank, ndim, d);
            changed = changed || rank[d] > most;
            rank[d] = rank[d] > most ? most : rank[d];
        }
    }
}

static size_t bytes_of(const tg_state_kind *kind, const tg_spectrum *s, const int64_t *rank,
                       int64_t kept) {
    return tg_region_of(kind, s->ndim, s->dim, rank, product_without(rank, s->ndim, -1) + kept)
        .bytes;
}

/* Adds a point; the error of a core is never more than all that there is. */
static void add_point(const tg_spectrum *s, int share, const int64_t *rank, list *l) {
    double lost = 0.0, whole = 0.0;
    point p = {.share = share};
    for (int d = 0; d < s->ndim; d++) {
        const double *value = tg_spectrum_mode(s, share, d);
        double tail = 0.0, all = 0.0;
        for (int64_t i = s->dim[d] - 1; i >= 0; i--) { /* smallest first */
            all += value[i] > 0.0 ? value[i] : 0.0;
            tail = i == rank[d] ? all : tail;
        }
        lost += tail;
        whole = all > whole ? all : whole;
        p.rank[d] = (int32_t)rank[d];
    }
    p.bytes = bytes_of(l->kind, s, rank, s->kept[share]);
    p.error = (lost < whole ? lost : whole) / s->energy;
    l->points[l->size++] = p;
}

/* From full ranks down: the direction that costs least per byte saved goes first. */
static void add_path(const tg_spectrum *s, int share, list *l) {
    int64_t rank[TG_MAX_NDIM];
    const size_t size = tg_dtype_size(l->kind->dtype);
    const size_t value = size + tg_moment_bytes(l->kind->config, l->kind->dtype, 1);
    memcpy(rank, s->max_rank, sizeof rank);
    clip(rank, s->ndim);
    for (;;) {
        int cheapest = -1;
        double least = 0.0;
        add_point(s, share, rank, l);
        for (int d = 0; d < s->ndim; d++) {
            const double saved = (double)product_without(rank, s->ndim, d) * (double)value +
                                 (double)s->dim[d] * (double)size;
            const double cost = tg_spectrum_mode(s, share, d)[rank[d] - 1] / saved;
            if (rank[d] > 1 && (cheapest < 0 || cost < least)) {
                cheapest = d;
                least = cost;
            }
        }
        if (cheapest < 0) {
            return;
        }
        rank[cheapest]--;
        clip(rank, s->ndim);
    }
}

/* Ranks that are the same part of every mode. */
static void equal_ranks(const tg_spectrum *s, double part, int64_t *rank) {
    for (int d = 0; d < s->ndim; d++) {
        const int64_t r = s->dim[d] == 1 ? 1 : (int64_t)(part * (double)s->dim[d]) + 1;
        rank[d] = r < s->max_rank[d] ? r : s->max_rank[d];
    }
    clip(rank, s->ndim);
}

static int by_bytes(const void *a, const void *b) {
    const point *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? -1 : 1;
    }
    if (x->error != y->error) {
        return x->error < y->error ? -1 : 1;
    }
    if (x->share != y->share) {
        return x->share - y->share;
    }
    for (int d = 0; d < TG_MAX_NDIM; d++) {
        if (x->rank[d] != y->rank[d]) {
            return x->rank[d] < y->rank[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Keeps the points that no other one with as few bytes beats. */
static void keep_best(list *l) {
    int64_t kept = 0;
    qsort(l->points, (size_t)l->size, sizeof *l->points, by_bytes);
    for (int64_t i = 0; i < l->size; i++) {
        if (kept == 0 || l->points[i].error < l->points[kept - 1].error) {
            l->points[kept++] = l->points[i];
        }
    }
    l->size = kept;
}

/* Links the vertices of the lower hull of the points 0 .. most. */
static void link_hull(list *l) {
    for (int64_t i = 0; i <= l->most; i++) {
        point *p = &l->points[i];
        int64_t top = i - 1;
        while (top >= 0 && l->points[top].lower >= 0) {
            const point *b = &l->points[top], *a = &l->points[b->lower];
            if ((b->error - a->error) * (double)(p->bytes - a->bytes) <
                (p->error - a->error) * (double)(b->bytes - a->bytes)) {
                break;
            }
            top = b->lower;
        }
        p->lower = top;
    }
}

/* Leaves out further directions of the chosen point as long as the tolerance allows, always the one
 * that saves most; then drops the points before it that are now larger and worse. */
static void tighten(const tg_spectrum *s, double most_error, list *l) {
    list one = {.kind = l->kind, .points = &l->points[l->most]};
    const int share = one.points->share;
    int64_t rank[TG_MAX_NDIM];
    for (bool found = one.points->error <= most_error; found;) {
        point best = *one.points;
        found = false;
        for (int d = 0; d < s->ndim; d++) {
            for (int k = 0; k < s->ndim; k++) {
                rank[k] = one.points->rank[k] - (k == d);
            }
            point before = *one.points;
            one.size = 0;
            if (rank[d] >= 1) {
                clip(rank, s->ndim);
                add_point(s, share, rank, &one);
                if (one.points->error <= most_error && one.points->bytes < best.bytes) {
                    best = *one.points;
                    found = true;
                }
            }
            *one.points = before;
        }
        *one.points = best;
    }
    const point chosen = *one.points;
    while (l->most > 0 && l->points[l->most - 1].bytes >= chosen.bytes) {
        l->most--;
    }
    l->points[l->most] = chosen;
}

static void list_points(const tg_spectrum *s, double tolerance, list *l) {
    for (int share = 0; share < s->shares; share++) {
        add_path(s, share, l);
        for (int i = 0; i < LADDER; i++) {
            int64_t rank[TG_MAX_NDIM];
            equal_ranks(s, (double)i / LADDER, rank);
            add_point(s, share, rank, l);
        }
    }
    keep_best(l);
    l->most = 0;
    while (l->most + 1 < l->size && !(l->points[l->most].error <= tolerance * tolerance)) {
        l->most++;
    }
    if (tolerance > 0.0) {
        tighten(s, tolerance * tolerance, l);
    }
    l->size = l->most + 1;
    l->at = l->most;
    link_hull(l);
}

/* ---- the budget ---- */

static int64_t bytes_at(const list *l, int64_t index) {
    return (int64_t)l->points[index].bytes;
}

/* One step down the hull that costs least per byte; false if there is none left. */
static bool step_down(list *lists, int tensors, int64_t *total) {
    list *best = NULL;
    double least = 0.0;
    for (int i = 0; i < tensors; i++) {
        list *l = &lists[i];
        const int64_t lower = l->size > 0 ? l->points[l->at].lower : -1;
        if (lower < 0) {
            continue;
        }
        const point *from = &l->points[l->at], *to = &l->points[lower];
        const double cost = (to->error - from->error) / (double)(from->bytes - to->bytes);
        if (!best || cost < least) {
            best = l;
            least = cost;
        }
    }
    if (!best) {
        return false;
    }
    const int64_t lower = best->points[best->at].lower;
    *total -= bytes_at(best, best->at) - bytes_at(best, lower);
    best->at = lower;
    return true;
}

/* One move to more bytes within `slack` that gains most; false if there is none. */
static bool fill_up(list *lists, int tensors, int64_t *slack) {
    list *best = NULL;
    int64_t best_to = 0;
    double most = 0.0;
    for (int i = 0; i < tensors; i++) {
        list *l = &lists[i];
        int64_t to = l->at;
        while (l->size > 0 && to < l->most && bytes_at(l, to + 1) - bytes_at(l, l->at) <= *slack) {
            to++;
        }
        const double gain = l->size > 0 ? l->points[l->at].error - l->points[to].error : 0.0;
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

/* The last point of at most so many bytes, or -1. */
static int64_t last_within(const list *l, int64_t bytes) {
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
static bool exchange(list *lists, int tensors, int64_t *slack) {
    double most = 1e-12;
    list *from = NULL, *to = NULL;
    int64_t from_point = 0, to_point = 0;
    for (int a = 0; a < tensors; a++) {
        for (int b = 0; b < tensors; b++) {
            list *x = &lists[a], *y = &lists[b];
            for (int64_t i = x->at - 1; a != b && y->size > 0 && i >= 0; i--) {
                const int64_t room =
                    bytes_at(x, x->at) - bytes_at(x, i) + *slack + bytes_at(y, y->at);
                const int64_t j = last_within(y, room);
                const double gain = y->points[y->at].error - y->points[j].error -
                                    (x->points[i].error - x->points[x->at].error);
                if (gain > most) {
                    most = gain;
                    from = x;
                    to = y;
                    from_point = i;
                    to_point = j;
                }
            }
        }
    }
    if (!from) {
        return false;
    }
    *slack += bytes_at(from, from->at) - bytes_at(from, from_point) + bytes_at(to, to->at) -
              bytes_at(to, to_point);
    from->at = from_point;
    to->at = to_point;
    return true;
}

static tg_rank_choice choice_of(const tg_spectrum *s, const point *p) {
    tg_rank_choice choice = {
        .kept = s->kept[p->share], .count = 1, .bytes = p->bytes, .error = p->error};
    for (int d = 0; d < s->ndim; d++) {
        choice.rank[d] = p->rank[d];
        choice.count *= p->rank[d];
    }
    choice.count += choice.kept;
    return choice;
}

bool tg_ranks_choose(const tg_state_kind *kind, const tg_spectrum *const *spectra, int tensors,
                     double tolerance, size_t capacity, void *scratch, tg_rank_choice *out) {
    list *lists = scratch;
    point *free_points = (point *)(lists + tensors);
    int64_t total = 0;
    for (int i = 0; i < tensors; i++) {
        lists[i] = (list){.kind = kind, .points = free_points};
        if (spectra[i]->energy > 0.0) {
            list_points(spectra[i], tolerance, &lists[i]);
            free_points += tg_rank_points(spectra[i]);
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
            out[i] = choice_of(spectra[i], &lists[i].points[lists[i].at]);
        }
    }
    return true;
}

tg_rank_choice tg_ranks_equal(const tg_state_kind *kind, const tg_spectrum *sizes, int64_t kept,
                              size_t capacity) {
    enum { PARTS = 1024 };
    tg_rank_choice choice = {.kept = kept, .error = 1.0};
    for (int i = PARTS; i >= 0; i--) {
        equal_ranks(sizes, (double)i / PARTS, choice.rank);
        choice.count = product_without(choice.rank, sizes->ndim, -1) + kept;
        choice.bytes = bytes_of(kind, sizes, choice.rank, kept);
        if (choice.bytes <= capacity) {
            break;
        }
    }
    return choice;
}

static size_t take(size_t *bytes, size_t needed) {
    const size_t at = *bytes;
    *bytes += (needed + TG_REGION_ALIGNMENT - 1) / TG_REGION_ALIGNMENT * TG_REGION_ALIGNMENT;
    return at;
}

tg_region tg_region_of(const tg_state_kind *kind, int ndim, const int64_t *dim, const int64_t *rank,
                       int64_t count) {
    const size_t size = tg_dtype_size(kind->dtype);
    tg_region r = {0};
    r.m = take(&r.bytes, (size_t)count * size);
    r.v = take(&r.bytes, tg_moment_bytes(kind->config, kind->dtype, count));
    for (int d = 0; d < ndim; d++) {
        r.factor[d] = take(&r.bytes, (size_t)(dim[d] * rank[d]) * size);
    }
    return r;
}

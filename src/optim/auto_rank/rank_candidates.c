/* The candidates of one tensor: what ranks and a sparse set cost in bytes and leave in error. */
#include "optim/auto_rank/rank_candidates.h"

#include <stdlib.h>
#include <string.h>

#include "optim/optim.h"

enum { LADDER = 64 /* equal parts of all modes that are tried beside the greedy path */ };

int64_t tg_rank_candidates(const tg_spectrum *s) {
    int64_t path = 1 + LADDER;
    for (int d = 0; d < s->ndim; d++) {
        path += s->max_rank[d];
    }
    return path;
}

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

static size_t bytes_of(const tg_state_kind *kind, const tg_spectrum *s, const int64_t *rank) {
    return tg_region_of(kind, s->ndim, s->dim, rank, product_without(rank, s->ndim, -1) + s->kept)
        .bytes;
}

/* The part of what the core leaves that a set behind it leaves. It is known for the ranks of the
 * last refresh; the less other ones have in common with those, the more it is what any set of the
 * largest entries leaves at most. */
static double left_by_set(const tg_spectrum *s, const int64_t *rank) {
    if (!s->is_behind) {
        return 1.0;
    }
    const double most = 1.0 - (double)s->kept / (double)product_without(s->dim, s->ndim, -1);
    double common = 1.0;
    for (int d = 0; d < s->ndim; d++) {
        const double now = (double)rank[d], then = s->left.rank[d];
        common *= now < then ? now / then : then / now;
    }
    return common * s->left.part + (1.0 - common) * most;
}

/* A candidate; the error of a core is never more than all that there is. */
static tg_candidate make_candidate(const tg_state_kind *kind, const tg_spectrum *s,
                                   const int64_t *rank) {
    double lost = 0.0, whole = 0.0;
    tg_candidate p = {0};
    for (int d = 0; d < s->ndim; d++) {
        const double *value = tg_spectrum_mode(s, d);
        double tail = 0.0, all = 0.0;
        for (int64_t i = s->dim[d] - 1; i >= 0; i--) { /* smallest first */
            all += value[i] > 0.0 ? value[i] : 0.0;
            tail = i == rank[d] ? all : tail;
        }
        lost += tail;
        whole = all > whole ? all : whole;
        p.rank[d] = (int32_t)rank[d];
    }
    p.bytes = bytes_of(kind, s, rank);
    p.error = (lost < whole ? lost : whole) / s->energy * left_by_set(s, rank);
    return p;
}

/* From full ranks down: the direction that costs least per byte saved goes first. */
static void add_path(const tg_spectrum *s, tg_candidate_list *l) {
    int64_t rank[TG_MAX_NDIM];
    const size_t size = tg_dtype_size(l->kind->dtype);
    const double value =
        tg_moments_per_value(l->kind->config, l->kind->dtype, product_without(s->dim, s->ndim, -1));
    memcpy(rank, s->max_rank, sizeof rank);
    clip(rank, s->ndim);
    for (;;) {
        int cheapest = -1;
        double least = 0.0;
        l->candidates[l->size++] = make_candidate(l->kind, s, rank);
        for (int d = 0; d < s->ndim; d++) {
            const double saved = (double)product_without(rank, s->ndim, d) * value +
                                 (double)s->dim[d] * (double)size;
            const double cost = tg_spectrum_mode(s, d)[rank[d] - 1] / saved;
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

tg_candidate tg_candidate_equal(const tg_state_kind *kind, const tg_spectrum *s, double part) {
    int64_t rank[TG_MAX_NDIM];
    equal_ranks(s, part, rank);
    return make_candidate(kind, s, rank);
}

static int by_bytes(const void *a, const void *b) {
    const tg_candidate *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? -1 : 1;
    }
    if (x->error != y->error) {
        return x->error < y->error ? -1 : 1;
    }
    for (int d = 0; d < TG_MAX_NDIM; d++) {
        if (x->rank[d] != y->rank[d]) {
            return x->rank[d] < y->rank[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Keeps the candidates that no other one with as few bytes beats. */
static void keep_best(tg_candidate_list *l) {
    int64_t kept = 0;
    qsort(l->candidates, (size_t)l->size, sizeof *l->candidates, by_bytes);
    for (int64_t i = 0; i < l->size; i++) {
        if (kept == 0 || l->candidates[i].error < l->candidates[kept - 1].error) {
            l->candidates[kept++] = l->candidates[i];
        }
    }
    l->size = kept;
}

/* Links the vertices of the lower hull of the candidates 0 .. most. */
static void link_hull(tg_candidate_list *l) {
    for (int64_t i = 0; i <= l->most; i++) {
        tg_candidate *p = &l->candidates[i];
        int64_t top = i - 1;
        while (top >= 0 && l->candidates[top].lower >= 0) {
            const tg_candidate *b = &l->candidates[top], *a = &l->candidates[b->lower];
            if ((b->error - a->error) * (double)(p->bytes - a->bytes) <
                (p->error - a->error) * (double)(b->bytes - a->bytes)) {
                break;
            }
            top = b->lower;
        }
        p->lower = top;
    }
}

/* Leaves out further directions of the chosen candidate as long as the tolerance allows, always the
 * one that saves most; then drops the candidates before it that are now larger and worse. */
static void tighten(const tg_spectrum *s, double most_error, tg_candidate_list *l) {
    tg_candidate chosen = l->candidates[l->most];
    for (bool found = chosen.error <= most_error; found;) {
        tg_candidate best = chosen;
        found = false;
        for (int d = 0; d < s->ndim; d++) {
            int64_t rank[TG_MAX_NDIM] = {0};
            for (int k = 0; k < s->ndim; k++) {
                rank[k] = chosen.rank[k] - (k == d);
            }
            if (rank[d] >= 1) {
                clip(rank, s->ndim);
                const tg_candidate p = make_candidate(l->kind, s, rank);
                if (p.error <= most_error && p.bytes < best.bytes) {
                    best = p;
                    found = true;
                }
            }
        }
        chosen = best;
    }
    while (l->most > 0 && l->candidates[l->most - 1].bytes >= chosen.bytes) {
        l->most--;
    }
    l->candidates[l->most] = chosen;
}

void tg_candidates_list(const tg_spectrum *s, double tolerance, tg_candidate_list *l) {
    add_path(s, l);
    for (int i = 0; i < LADDER; i++) {
        l->candidates[l->size++] = tg_candidate_equal(l->kind, s, (double)i / LADDER);
    }
    keep_best(l);
    l->most = 0;
    while (l->most + 1 < l->size && !(l->candidates[l->most].error <= tolerance * tolerance)) {
        l->most++;
    }
    if (tolerance > 0.0) {
        tighten(s, tolerance * tolerance, l);
    }
    l->size = l->most + 1;
    l->at = l->most;
    link_hull(l);
}

tg_rank_allocation tg_ranks_equal(const tg_state_kind *kind, const tg_spectrum *sizes,
                                  size_t capacity) {
    enum { PARTS = 1024 };
    tg_rank_allocation allocation = {.error = 1.0};
    for (int i = PARTS; i >= 0; i--) {
        equal_ranks(sizes, (double)i / PARTS, allocation.rank);
        allocation.count = product_without(allocation.rank, sizes->ndim, -1) + sizes->kept;
        allocation.bytes = bytes_of(kind, sizes, allocation.rank);
        if (allocation.bytes <= capacity) {
            break;
        }
    }
    return allocation;
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
    const int64_t entries = product_without(dim, ndim, -1);
    const tg_moments moments = tg_moments_plan_part(kind->config, kind->dtype, entries, count);
    for (int i = 0; i < moments.rule->states; i++) {
        r.moment[i] = take(&r.bytes, tg_moment_bytes(&moments, i));
        r.scale[i] = take(&r.bytes, tg_moment_scale_bytes(&moments, i));
    }
    for (int d = 0; d < ndim; d++) {
        r.factor[d] = take(&r.bytes, (size_t)(dim[d] * rank[d]) * size);
    }
    return r;
}

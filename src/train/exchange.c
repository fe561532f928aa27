/* Exchanges gradient sums between ranks. */
#include "train/step.h"

#include <string.h>

#include "base/minmax.h"
#include "optim/ranks.h"
#include "optim/step.h"

struct tg_exchange {
    tg_context *ctx;
    tg_comm *comm;     /* all ranks */
    tg_comm *domain;   /* those with the other blocks of the same tensors; NULL: none */
    tg_comm *replicas; /* those with the same blocks; NULL: none */
    tg_optim *optim;
    tg_refresh_news *news; /* (parameters) */
    int *due;              /* (parameters) due for a refresh in this update */
    tg_sum_facts *facts;   /* (parameters) of sums that only one rank has, in order */
    bool overlaps;         /* sums are started early and completed together */
    bool is_streamed;      /* in this pass, a sum is used as soon as it is ready */
    tg_comm_stats before;  /* when the streamed pass began */
    tg_comm_stats passed;  /* the amount such a pass adds to them */
    int next;              /* the parameter whose sum is sent next; -1: none is left */
};

/* The ranks over which the sum of a parameter goes; NULL: this one has all of it. */
static tg_comm *comm_of(const tg_exchange *x, const tg_slot *slot) {
    tg_comm *comm = tg_slot_is_dense_block(slot) ? x->replicas : x->comm;
    return tg_comm_is_alone(comm) ? NULL : comm;
}

/* ---- the bucket ---- */

static tg_status exchange_bucket(const tg_exchange *x) {
    tg_optim *optim = x->optim;
    for (int i = 0; i < optim->slot_count; i++) {
        optim->slots[i].is_handed_out |= optim->slots[i].is_bucketed;
    }
    return tg_shape_numel(&optim->bucket.shape) > 0
               ? tg_comm_all_reduce(x->comm, TG_COMM_SUM, &optim->bucket)
               : TG_OK;
}

/* ---- life ---- */

static tg_status add_over(void *user, const tg_tensor *values) {
    return tg_comm_all_reduce(user, TG_COMM_SUM, values);
}

void tg_exchange_destroy(tg_exchange **exchange) {
    if (exchange && *exchange) {
        (*exchange)->optim->parts_adder = (tg_adder){0};
        tg_mem_free((*exchange)->ctx, (*exchange)->news);
        tg_mem_free((*exchange)->ctx, (*exchange)->due);
        tg_mem_free((*exchange)->ctx, (*exchange)->facts);
        TG_FREE((*exchange)->ctx, *exchange);
    }
}

/* The communicators are those of the optimizer's parts, and of its rank if state is spread. */
static tg_status check_ranks(tg_context *ctx, const tg_step_config *config) {
    const tg_optim *optim = config->optim;
    const int rank = tg_comm_rank(config->comm), ranks = tg_comm_ranks(config->comm);
    const int parts = config->domain ? tg_comm_ranks(config->domain) : 1;
    const int part = config->domain ? tg_comm_rank(config->domain) : 0;
    const int groups = config->replicas ? tg_comm_ranks(config->replicas) : ranks / parts;
    const int group = config->replicas ? tg_comm_rank(config->replicas) : rank / parts;
    if (!optim || !optim->accumulates) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "step: of several ranks it needs an optimizer that accumulates");
    }
    if (optim->shard_ranks > 1 && (optim->shard_ranks != ranks || optim->shard_rank != rank)) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "step: the optimizer's state is that of rank %d of %d, the communicator is "
                       "rank %d of %d",
                       optim->shard_rank, optim->shard_ranks, rank, ranks);
    }
    if (optim->parts != parts || groups * parts != ranks || group * parts + part != rank ||
        (groups > 1 && parts > 1 && !config->replicas)) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "step: rank %d of %d, which is part %d of %d of group %d of %d, with an "
                       "optimizer of %d parts",
                       rank, ranks, part, parts, group, groups, optim->parts);
    }
    return TG_OK;
}

/* The blocks of a tensor follow each other in the order of the parts, and are all of it. */
static tg_status check_blocks(const tg_exchange *x) {
    const int parts = x->optim->parts, part = tg_comm_rank(x->domain);
    double *rows = NULL;
    tg_status status = TG_NEW(x->ctx, TG_MEM_OTHER, rows, parts);
    TG_TRY(tg_comm_agree(x->domain, status));
    for (int i = 0; i < x->optim->slot_count; i++) {
        const tg_slot *slot = &x->optim->slots[i];
        double before = 0.0, all = 0.0;
        if (slot->block.whole == 0) {
            continue;
        }
        memset(rows, 0, (size_t)parts * sizeof *rows);
        rows[part] = (double)slot->shape.dim[slot->block.dim];
        TG_TRY(tg_comm_all_reduce_f64(x->domain, TG_COMM_SUM, parts, rows));
        for (int p = 0; p < parts; p++) {
            before += p < part ? rows[p] : 0.0;
            all += rows[p];
        }
        if (before != (double)slot->block.first || all != (double)slot->block.whole) {
            status = tg_fail(x->ctx, TG_E_ARGUMENT,
                             "step: the blocks of %s have %.0f rows of %lld; that of part %d "
                             "begins at row %lld, those before it have %.0f",
                             slot->name, all, (long long)slot->block.whole, part,
                             (long long)slot->block.first, before);
        }
    }
    status = tg_comm_agree(x->domain, status);
fail:
    tg_mem_free(x->ctx, rows);
    return status;
}

tg_status tg_exchange_create(tg_context *ctx, const tg_step_config *config, bool overlaps,
                             tg_exchange **out) {
    tg_status status = TG_OK;
    tg_exchange *x = NULL;
    tg_optim *optim = config->optim;
    *out = NULL;
    TG_TRY(check_ranks(ctx, config));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, x, 1));
    *x = (tg_exchange){.ctx = ctx,
                       .comm = config->comm,
                       .domain = config->domain,
                       .replicas = config->replicas,
                       .optim = optim,
                       .overlaps = overlaps,
                       .next = optim->slot_count - 1};
    if (!tg_comm_is_alone(x->domain)) {
        optim->parts_adder = (tg_adder){add_over, x->domain};
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, x->news, optim->slot_count));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, x->due, optim->slot_count));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, x->facts, optim->slot_count));
    TG_TRY(optim->parts > 1 ? check_blocks(x) : TG_OK);
    *out = x;
    return TG_OK;
fail:
    tg_exchange_destroy(&x);
    return status;
}

/* ---- refreshes ---- */

/* The owner of the `number`-th projection refreshed in this update. */
static int owner_of(const tg_exchange *x, int number) {
    const tg_slot *slot = &x->optim->slots[x->due[number]];
    return tg_slot_is_sharded(slot) ? slot->owner : number % tg_comm_ranks(x->comm);
}

/* Sends a dense sum to its owner, of a block as pieces of the whole. */
static tg_status send_dense(const tg_exchange *x, int param, int owner) {
    const int64_t pieces = tg_sum_pieces(x->optim, param);
    if (pieces == 0) {
        const tg_tensor sum = tg_sum_get(x->optim, param);
        return tg_comm_reduce(x->comm, TG_COMM_SUM, owner, &sum);
    }
    for (int64_t i = 0; i < pieces; i++) {
        tg_tensor piece;
        TG_CALL(tg_sum_get_piece(x->optim, param, i, owner == tg_comm_rank(x->comm), &piece));
        TG_CALL(tg_comm_reduce(x->comm, TG_COMM_SUM, owner, &piece));
    }
    return TG_OK;
}

/* Projections that are due, first .. end - 1: sends dense sums to the owners, who refresh them. */
static tg_status refresh_own(const tg_exchange *x, int first, int end) {
    tg_status status = TG_OK;
    for (int i = first; i < end; i++) {
        TG_CALL(send_dense(x, x->due[i], owner_of(x, i)));
    }
    for (int i = first; i < end && status == TG_OK; i++) {
        if (owner_of(x, i) == tg_comm_rank(x->comm)) {
            status = tg_sum_refresh(x->optim, x->due[i], &x->news[x->due[i]]);
        }
    }
    return tg_comm_agree(x->comm, status);
}

static tg_status share_refresh(const tg_exchange *x, int param, int owner) {
    tg_refresh_news *news = &x->news[param];
    const bool is_owner = owner == tg_comm_rank(x->comm);
    tg_tensor parts[TG_REFRESHED_PARTS];
    TG_CALL(tg_comm_broadcast_bytes(x->comm, owner, sizeof *news, news));
    if (!is_owner || news->nonfinite > 0) {
        TG_CALL(tg_sum_begin_refreshed(x->optim, param, news));
    }
    if (news->nonfinite > 0) {
        return TG_OK;
    }
    const int count = tg_sum_list_refreshed(x->optim, param, parts);
    const int kept =
        tg_slot_is_sharded(&x->optim->slots[param]) ? 1 : 0; /* excludes the sum, which is last */
    for (int i = 0; i < count - kept; i++) {
        TG_CALL(tg_comm_broadcast(x->comm, owner, &parts[i]));
    }
    return is_owner ? TG_OK : tg_sum_end_refreshed(x->optim, param);
}

/* The end of a round from `first` on: all, or of blocks as many as have different owners, each of
 * which has one whole tensor at a time. */
static int round_end(const tg_exchange *x, int first, int count) {
    for (int end = first + 1; end < count && x->optim->parts > 1; end++) {
        for (int i = first; i < end; i++) {
            if (owner_of(x, i) == owner_of(x, end)) {
                return end;
            }
        }
    }
    return count;
}

static tg_status exchange_refreshes(const tg_exchange *x, int count) {
    for (int first = 0, end = 0; first < count; first = end) {
        end = round_end(x, first, count);
        TG_CALL(refresh_own(x, first, end));
        for (int i = first; i < end; i++) {
            TG_CALL(share_refresh(x, x->due[i], owner_of(x, i)));
        }
    }
    return TG_OK;
}

/* ---- the sums ---- */

/* Core and kept values are adjacent: one message. */
static tg_status send_sum(const tg_exchange *x, int param) {
    const int owner = x->optim->slots[param].owner;
    tg_comm *comm = comm_of(x, &x->optim->slots[param]);
    const tg_tensor sum = tg_sum_get(x->optim, param);
    return !comm                ? TG_OK
           : x->overlaps        ? tg_comm_begin_sum(comm, owner, &sum)
           : owner == TG_ON_ALL ? tg_comm_all_reduce(comm, TG_COMM_SUM, &sum)
                                : tg_comm_reduce(comm, TG_COMM_SUM, owner, &sum);
}

/* Completes the sums that were begun. */
static tg_status end_sums(tg_exchange *x) {
    x->next = x->optim->slot_count - 1;
    if (!x->overlaps) {
        return TG_OK;
    }
    TG_CALL(tg_comm_complete(x->comm));
    return tg_comm_is_alone(x->replicas) ? TG_OK : tg_comm_complete(x->replicas);
}

/* Sends complete sums, from the last parameter to the first as backward computes them. The order is
 * the same on every rank, even on one that computes them in another order, or has no sample and
 * completes all at once. */
static tg_status send_ready(tg_exchange *x) {
    for (; x->next >= 0; x->next--) {
        const tg_slot *slot = &x->optim->slots[x->next];
        if (slot->is_bucketed) {
            continue;
        }
        if (!slot->is_summing) {
            break;
        }
        TG_CALL(tg_sum_is_to_refresh(x->optim, x->next) ? TG_OK : send_sum(x, x->next));
    }
    return TG_OK;
}

static tg_status receive_all(void *user, int count, const tg_gradient *gradients) {
    tg_exchange *x = user;
    TG_CALL(tg_sum_add_all(x->optim, count, gradients));
    return x->overlaps ? send_ready(x) : TG_OK;
}

static tg_status receive(void *user, const tg_gradient *gradient) {
    tg_exchange *x = user;
    const bool is_known = gradient->param >= 0 && gradient->param < x->optim->slot_count;
    if (x->is_streamed && !x->overlaps && is_known &&
        !x->optim->slots[gradient->param].is_bucketed) {
        return tg_sum_update(x->optim, gradient, &(tg_adder){add_over, x->comm});
    }
    return receive_all(user, 1, gradient);
}

/* Runs a pass again that could not be captured. */
static void restart(tg_exchange *x) {
    x->comm->stats = x->before;
    x->next = x->optim->slot_count - 1;
}

tg_grad_sink tg_exchange_sink(tg_exchange *x) {
    if (x->is_streamed) {
        restart(x);
    }
    return (tg_grad_sink){.receive = receive, .user = x, .receive_all = receive_all};
}

/* Whether this rank adds the facts of a sum: its owner, or the first one with this block. */
static bool adds_facts(const tg_exchange *x, const tg_slot *slot) {
    return tg_slot_is_sharded(slot) ? !slot->is_elsewhere
                                    : !x->replicas || tg_comm_rank(x->replicas) == 0;
}

/* Facts about sums that not every rank has, for their updates. Every entry counts once. */
static tg_status exchange_facts(const tg_exchange *x, bool clips) {
    tg_optim *optim = x->optim;
    int count = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        if (tg_slot_has_facts(&optim->slots[i])) {
            tg_sum_facts *facts = &x->facts[count++];
            *facts = (tg_sum_facts){0};
            TG_CALL(adds_facts(x, &optim->slots[i]) ? tg_sum_measure(optim, i, clips, facts)
                                                    : TG_OK);
        }
    }
    TG_CALL(count > 0 ? tg_comm_all_reduce_f64(x->comm, TG_COMM_SUM, 2 * count, x->facts) : TG_OK);
    for (int i = 0, at = 0; i < optim->slot_count; i++) {
        if (tg_slot_has_facts(&optim->slots[i])) {
            TG_CALL(tg_sum_learn(optim, i, &x->facts[at++]));
        }
    }
    return TG_OK;
}

tg_status tg_exchange_sums(tg_exchange *x, bool clips) {
    tg_optim *optim = x->optim;
    int count = 0;
    TG_CALL(send_ready(x));
    for (int i = 0; i < optim->slot_count; i++) {
        if (tg_sum_is_to_refresh(optim, i)) {
            x->due[count++] = i;
        }
    }
    TG_CALL(end_sums(x));
    TG_CALL(exchange_bucket(x));
    TG_CALL(exchange_refreshes(x, count));
    return exchange_facts(x, clips);
}

/* ---- on the stream ---- */

bool tg_exchange_can_stream(const tg_exchange *x) {
    return tg_comm_is_on_stream(x->comm) && x->optim->shard_ranks < 2 && x->optim->parts == 1;
}

tg_status tg_exchange_begin_stream(tg_exchange *x) {
    x->is_streamed = true;
    x->before = x->comm->stats;
    return tg_comm_begin_queue(x->comm);
}

/* Applies sums that were not used as soon as they were ready. */
static tg_status apply_sums(tg_exchange *x) {
    TG_CALL(tg_bucket_update(x->optim));
    for (int i = 0; i < x->optim->slot_count && x->overlaps; i++) {
        const tg_slot *slot = &x->optim->slots[i];
        if (!slot->is_bucketed) {
            const tg_dtype stored = tg_stored(slot->dtype, slot->weight_store);
            const tg_tensor weight =
                tg_backend_view(x->optim->be, stored, &slot->shape, slot->weight);
            TG_CALL(tg_optim_apply(x->optim, i, &weight));
        }
    }
    return TG_OK;
}

tg_status tg_exchange_stream(tg_exchange *x, const tg_tensor *loss) {
    TG_CALL(x->overlaps ? send_ready(x) : TG_OK);
    TG_CALL(end_sums(x));
    TG_CALL(tg_comm_group_sums(x->comm, true));
    TG_CALL(exchange_bucket(x));
    TG_CALL(tg_comm_all_reduce(x->comm, TG_COMM_SUM, loss));
    TG_CALL(tg_comm_group_sums(x->comm, false));
    TG_CALL(apply_sums(x));
    x->passed = (tg_comm_stats){.calls = x->comm->stats.calls - x->before.calls,
                                .reduced = x->comm->stats.reduced - x->before.reduced};
    return TG_OK;
}

tg_status tg_exchange_end_stream(tg_exchange *x, tg_status status) {
    const tg_status ended = tg_comm_end_queue(x->comm);
    x->is_streamed = false;
    x->comm->stats.calls = x->before.calls + x->passed.calls; /* also if a graph replayed it */
    x->comm->stats.reduced = x->before.reduced + x->passed.reduced;
    return status == TG_OK ? ended : status;
}

/* ---- state that is spread over ranks ---- */

tg_status tg_exchange_apply(tg_exchange *x, int param, const tg_tensor *weight) {
    const tg_slot *slot = &x->optim->slots[param];
    const int owner = slot->owner;
    bool is_made = false;
    tg_tensor update;
    if (owner == TG_ON_ALL) {
        return tg_optim_apply(x->optim, param, weight);
    }
    TG_CALL(tg_sum_begin_update(x->optim, param, weight, &is_made, &update));
    if (is_made) {
        TG_CALL(tg_comm_broadcast(comm_of(x, slot), owner, &update));
        TG_CALL(tg_sum_end_update(x->optim, param, weight));
    }
    return TG_OK;
}

/* Copies an array of the owner to the host of every rank; rank 0 keeps it. */
static tg_status gather_part(tg_comm *comm, tg_optim *optim, int owner, const tg_state_part *part,
                             tg_archive *out) {
    const tg_tensor array = tg_backend_view(optim->be, part->dtype, &part->shape, part->memory);
    const int rank = tg_comm_rank(comm);
    tg_tensor copy = {0};
    tg_status status =
        rank == owner ? tg_backend_download(optim->be, &array, NULL, &copy)
                      : tg_tensor_create(optim->ctx, TG_MEM_DATA, part->dtype, &part->shape, &copy);
    TG_TRY(tg_comm_agree(comm, status));
    TG_TRY(tg_comm_broadcast(comm, owner, &copy));
    TG_TRY(tg_comm_agree(comm, rank == 0 ? tg_archive_take(out, part->name, &copy) : TG_OK));
fail:
    tg_tensor_destroy(&copy);
    return status;
}

static tg_status gather_slot(tg_comm *comm, tg_optim *optim, const tg_slot *slot, tg_archive *out) {
    tg_state_part parts[TG_STATE_PARTS];
    int count = 0;
    TG_CALL(tg_state_list_moments(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_CALL(gather_part(comm, optim, slot->owner, &parts[i], out));
    }
    return TG_OK;
}

/* Whether this rank gives its rows of moment i: it is one of those that have them. */
static bool gives_rows(const tg_comm *comm, const tg_optim *optim, const tg_slot *slot, int i) {
    const int rank = tg_comm_rank(comm);
    const bool has = tg_slot_is_sharded(slot) ? !slot->is_elsewhere : rank < optim->parts;
    return has && !(slot->moments.rule->state[i].is_single && rank % optim->parts > 0);
}

/* Puts a moment of the whole tensor together on the host of rank 0. */
static tg_status gather_rows(tg_comm *comm, tg_optim *optim, const tg_slot *slot, int i,
                             tg_archive *out) {
    const tg_block_rows rows = tg_moment_get_rows(optim, slot, i);
    const tg_dtype real = slot->moments.real;
    const int64_t outer = rows.whole * rows.inner;
    const bool is_first = tg_comm_rank(comm) == 0, gives = gives_rows(comm, optim, slot, i);
    const tg_shape shape = {1, {(is_first ? rows.outer : rows.step) * outer}};
    tg_tensor own = {0}, whole = {0}; /* on ranks other than 0, one piece */
    tg_status status = gives ? tg_moment_read(optim, slot, i, &own) : TG_OK;
    status =
        status == TG_OK ? tg_tensor_create(optim->ctx, TG_MEM_DATA, real, &shape, &whole) : status;
    TG_TRY(tg_comm_agree(comm, status));
    for (int64_t first = 0; first < rows.outer; first += rows.step) {
        const size_t at = is_first ? (size_t)(first * outer) * tg_dtype_size(real) : 0;
        tg_tensor piece = whole;
        piece.data = (char *)whole.data + at;
        piece.shape.dim[0] = tg_min(rows.step, rows.outer - first) * outer;
        if (gives) {
            tg_block_put_rows(&rows, first, tg_dtype_size(real), own.data, piece.data);
        } else {
            memset(piece.data, 0, tg_tensor_bytes(&piece));
        }
        TG_TRY(tg_comm_reduce(comm, TG_COMM_SUM, 0, &piece));
    }
    TG_TRY(tg_comm_agree(comm, is_first ? tg_moment_save(optim, slot, i, &whole, out) : TG_OK));
fail:
    tg_tensor_destroy(&own);
    tg_tensor_destroy(&whole);
    return status;
}

static tg_status gather_block(tg_comm *comm, tg_optim *optim, const tg_slot *slot,
                              tg_archive *out) {
    for (int i = 0; i < slot->moments.rule->states; i++) {
        TG_CALL(gather_rows(comm, optim, slot, i, out));
    }
    return TG_OK;
}

tg_status tg_exchange_gather_state(tg_comm *comm, tg_optim *optim, tg_status status,
                                   tg_archive **out) {
    *out = NULL;
    if (optim->shard_ranks < 2 && optim->parts < 2) {
        return status;
    }
    status = status == TG_OK ? tg_archive_create(optim->ctx, out) : status;
    TG_TRY(tg_comm_agree(comm, status));
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        TG_TRY(tg_slot_is_dense_block(slot) ? gather_block(comm, optim, slot, *out)
               : slot->owner > 0            ? gather_slot(comm, optim, slot, *out)
                                            : TG_OK);
    }
    return TG_OK;
fail:
    tg_archive_destroy(out);
    return status;
}

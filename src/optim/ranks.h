/* State spread over ranks: one rank, the owner, has the moments of a projected or large parameter.
 * The ranks reduce their sums to it; it runs the rule and sends the compressed direction or the
 * dense weight, with which every rank completes the update. Small dense parameters stay on all
 * ranks. The numbers are those of an optimizer that has everything. */
#ifndef TG_OPTIM_RANKS_H
#define TG_OPTIM_RANKS_H

#include "optim/optim.h"

/* Dense parameters up to this size are sent together, and their moments stay on every rank. */
#define TG_SMALL_PARAM ((size_t)1 << 20)

/* Sets the owner of each slot: the rank that has its moments, or TG_ON_ALL; of a dense block among
 * the ranks with the same one. Depends only on sizes, and no rank has more than rank 0, if all
 * blocks of a tensor are equal. */
TG_NODISCARD tg_status tg_shard_assign(tg_optim *optim);

static inline bool tg_slot_is_sharded(const tg_slot *slot) {
    return slot->owner != TG_ON_ALL;
}

/* Whether its sum is only on its owner, or in blocks. */
static inline bool tg_slot_has_facts(const tg_slot *slot) {
    return tg_slot_is_sharded(slot) || tg_slot_is_dense_block(slot);
}

/* Facts about such a sum that every rank needs. */
typedef struct tg_sum_facts {
    double nonfinite; /* NaN and Inf in it */
    double squares;   /* sum of squares of the finite entries, if clipping needs it */
} tg_sum_facts;

/* On the owner, or on one rank for each block. */
TG_NODISCARD tg_status tg_sum_measure(tg_optim *optim, int param, bool clips, tg_sum_facts *out);
/* On every rank. */
TG_NODISCARD tg_status tg_sum_learn(tg_optim *optim, int param, const tg_sum_facts *facts);

/* The update, after tg_sum_learn: the owner runs the rule and sends *update, direction or weight,
 * to the others. After NaN and Inf *is_made is false on all ranks, and the update has ended. */
TG_NODISCARD tg_status tg_sum_begin_update(tg_optim *optim, int param, const tg_tensor *weight,
                                           bool *is_made, tg_tensor *update);
/* Completes it with the data from the owner. */
TG_NODISCARD tg_status tg_sum_end_update(tg_optim *optim, int param, const tg_tensor *weight);

/* ---- one rank refreshes a projection for all ---- */

/* Whether the current sum is dense because its projection is due for a refresh. */
bool tg_sum_is_to_refresh(const tg_optim *optim, int param);

/* Numbers sent to the others besides the arrays of tg_sum_list_refreshed. */
typedef struct tg_refresh_news {
    int64_t nonfinite; /* in the sum; nothing was refreshed unless it is 0 */
    int64_t counters[TG_PROJECTOR_COUNTERS];
    double error;
} tg_refresh_news;

/* On the rank that has the total: refreshes the projection with it and projects it. */
TG_NODISCARD tg_status tg_sum_refresh(tg_optim *optim, int param, tg_refresh_news *news);

/* On the others, before the arrays arrive: their sums become compressed ones. On every rank after
 * NaN and Inf: fills the sum with the same number of NaN. */
TG_NODISCARD tg_status tg_sum_begin_refreshed(tg_optim *optim, int param,
                                              const tg_refresh_news *news);
/* Factors, words of the index set and the compressed sum, on the backend. */
enum { TG_REFRESHED_PARTS = 2 * TG_MAX_NDIM + 3 };
int tg_sum_list_refreshed(const tg_optim *optim, int param, tg_tensor parts[TG_REFRESHED_PARTS]);
/* After the arrays have arrived. */
TG_NODISCARD tg_status tg_sum_end_refreshed(tg_optim *optim, int param);

/* On a rank without samples: accumulates zeros. */
TG_NODISCARD tg_status tg_sum_add_nothing(tg_optim *optim, int param);

/* ==== blocks: a parameter that is some rows of a tensor, the rest of which is on other ranks ====
 *
 * Where one rank needs the whole tensor, to refresh its projection or to save its moments, the
 * ranks add up pieces of it, each of them its own rows and zeros. */

/* An array of the whole is (outer, whole, inner) elements; the block has `rows` from `first` on. A
 * piece has `step` of outer. */
typedef struct tg_block_rows {
    int64_t outer, whole, first, rows, inner;
    int64_t step;
} tg_block_rows;

/* ---- the sum of a projected block that is to be refreshed ---- */

/* Bytes of a piece, in the workspace, and of the whole, on its owner; 0: no projected block. */
size_t tg_sum_piece_bytes(const tg_slot *slot);
size_t tg_sum_whole_bytes(const tg_slot *slot);

/* The number of pieces, 0 unless it is a block; and a piece to be added up over all ranks, which on
 * the owner is a part of the whole. */
int64_t tg_sum_pieces(const tg_optim *optim, int param);
TG_NODISCARD tg_status tg_sum_get_piece(tg_optim *optim, int param, int64_t number, bool is_owner,
                                        tg_tensor *out);

/* ---- moments of dense blocks, in a file those of the whole tensor ---- */

/* Temporary bytes on the host of the rank that saves, besides the arrays in the file. */
size_t tg_block_saving_bytes(const tg_optim *optim, const tg_slot *slot);

/* The rows of moment i of a parameter, in reals. */
tg_block_rows tg_moment_get_rows(const tg_optim *optim, const tg_slot *slot, int i);

/* Rows of a block (outer, rows, inner), from `outer` on, as a piece. */
void tg_block_put_rows(const tg_block_rows *rows, int64_t outer, size_t size, const void *block,
                       void *piece);

/* The reals of moment i, decoded, on the host. */
TG_NODISCARD tg_status tg_moment_read(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *out);
/* Moves those of the whole tensor into an archive, encoded. */
TG_NODISCARD tg_status tg_moment_save(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *reals,
                                      tg_archive *archive);
/* Loads the rows of all moments from a checked archive: exact, unless values share scales. */
TG_NODISCARD tg_status tg_moments_load_rows(tg_optim *optim, const tg_slot *slot,
                                            const tg_archive *archive);

#endif

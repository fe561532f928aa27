/* Blocks: a parameter that is some rows of a tensor, the rest of which is on other ranks.
 *
 * Where one rank needs the whole tensor, to refresh its projection or to save its moments, every
 * rank gives arrays of the whole with its own rows and zeros, in pieces; the sum over the ranks is
 * the tensor. */
#ifndef TG_OPTIM_BLOCKS_H
#define TG_OPTIM_BLOCKS_H

#include "optim/optim.h"

/* An array of the whole is (outer, whole, inner) elements; the block has `rows` from `first` on. A
 * piece has `step` of outer. */
typedef struct tg_block_rows {
    int64_t outer, whole, first, rows, inner;
    int64_t step;
} tg_block_rows;

/* ---- the sum of a projected block that is to be refreshed ---- */

/* Bytes of a piece, in the workspace, and of the whole, on the rank that refreshes it; 0: it is no
 * projected block. */
size_t tg_piece_bytes(const tg_optim_setup *setup, const tg_optim_param *param);
size_t tg_gathered_bytes(const tg_optim_setup *setup, const tg_optim_param *param);

/* The number of pieces; 0: it is no block. */
int64_t tg_sum_pieces(const tg_optim *optim, int param);
/* A piece to be added up over all ranks: on the owner in its place in the whole. */
TG_NODISCARD tg_status tg_sum_get_piece(tg_optim *optim, int param, int64_t number, bool is_owner,
                                        tg_tensor *out);

/* ---- moments of dense blocks, in a file those of the whole tensor ---- */

/* Bytes on the host of the rank that saves, for a time, besides the arrays in the file. */
size_t tg_block_saving_bytes(const tg_optim_setup *setup, const tg_optim_param *param);

/* Of moment i of a parameter, in reals. */
tg_block_rows tg_moment_get_rows(const tg_optim *optim, const tg_slot *slot, int i);

/* Rows of a block (outer, rows, inner), from `outer` on, as a piece. */
void tg_block_put_rows(const tg_block_rows *rows, int64_t outer, size_t size, const void *block,
                       void *piece);

/* Its reals, in the arithmetic's precision, on the host. */
TG_NODISCARD tg_status tg_moment_read(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *out);
/* Adds those of the whole to an archive; moves them in. */
TG_NODISCARD tg_status tg_moment_save(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *reals,
                                      tg_archive *archive);
/* Takes the rows of all moments from an archive that was checked. Exact, unless values share
 * scales. */
TG_NODISCARD tg_status tg_moments_load_rows(tg_optim *optim, const tg_slot *slot,
                                            const tg_archive *archive);

#endif

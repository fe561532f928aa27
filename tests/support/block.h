/* A block of a Fourier neural operator, computed by the slots that it fuses: the oracle of the
 * fused slots, and their implementation on the fake device. */
#ifndef TG_TESTS_SUPPORT_BLOCK_H
#define TG_TESTS_SUPPORT_BLOCK_H

#include "backend/backend.h"

size_t t_block_bytes(tg_backend *be, const tg_block *op); /* of workspace */
tg_status t_block_by_parts(tg_backend *be, const tg_block *op);

size_t t_block_back_bytes(tg_backend *be, const tg_block_back *op); /* of workspace */
tg_status t_block_back_by_parts(tg_backend *be, const tg_block_back *op);

/* The backward pass of an MLP; x may be quantized to 8 bits. */
size_t t_mlp_back_bytes(tg_backend *be, const tg_mlp *op); /* of workspace */
tg_status t_mlp_back_by_parts(tg_backend *be, const tg_mlp *op);

#endif

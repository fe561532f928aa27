/* Slots of factorized weights by their definition, entry by entry on the host: the oracle of the
 * fused slots, and their implementation on the fake device. */
#ifndef TG_TESTS_SUPPORT_FACTORIZED_H
#define TG_TESTS_SUPPORT_FACTORIZED_H

#include "backend/backend.h"

void t_two_modes_forward(const tg_two_modes *op);
void t_two_modes_backward(const tg_two_modes *op);
void t_mapped_contract(const tg_mapped *op);
void t_mapped_gradients(const tg_map_gradients *op);

#endif

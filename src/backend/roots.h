/* Roots of unity, for the tables of every backend. */
#ifndef TG_BACKEND_ROOTS_H
#define TG_BACKEND_ROOTS_H

#include "tensor/element.h"

/* e^{-2 pi i j / n}, 0 <= j < n, rounded once: symmetries hold exactly. */
tg_scalar tg_root_of_unity(int64_t j, int64_t n);

#endif

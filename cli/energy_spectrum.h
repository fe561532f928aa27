/* Energy by wave number: E(k) = sum |F_f|^2 / P^2 over the frequencies f with |f| rounded to k, F
 * the discrete Fourier transform of a field on a grid of P points. */
#ifndef CLI_ENERGY_SPECTRUM_H
#define CLI_ENERGY_SPECTRUM_H

#include <stdint.h>

/* Wave numbers 0 .. count - 1 that every direction of the grid has. */
int64_t cli_energy_count(int n_dim, const int64_t *grid);

/* Adds that of a field (grid.., 2) of pairs {re, im}, which is overwritten, to energy (count). */
void cli_energy_add(int n_dim, const int64_t *grid, double *field, double *energy);

#endif

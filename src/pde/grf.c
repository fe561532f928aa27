/* Gaussian random fields, see grf.h. Elements of a sample's stream: the mode (k1, k2) with k1 in
 * -2^20 .. 2^20 - 1 and k2 in 0 .. 2^20 - 1 owns two; numbers of no mode come after all modes. */
#include "pde/grf.h"

#include <math.h>
#include <stdbool.h>

#define PI        3.14159265358979323846
#define SQRT2     1.41421356237309504880
#define SQRT_HALF 0.70710678118654752440 /* sqrt(1/2) */
#define K_RANGE   ((int64_t)1 << 20)
#define LOOSE     ((uint64_t)1 << 44) /* first number that belongs to no mode */

tg_field_key tg_field_key_of(uint64_t seed, unsigned equation, tg_split split, uint32_t sample) {
    return (tg_field_key){
        .rng = {.seed = seed, .purpose = TG_RNG_FIELD, .step = sample},
        .base = ((uint64_t)equation << 1 | (uint64_t)split) << 48,
    };
}

double tg_field_uniform(const tg_field_key *key, unsigned number, double low, double high) {
    return low + (high - low) * tg_rng_uniform(&key->rng, key->base + LOOSE + number);
}

/* Standard normal number `part` (0 or 1) of a mode. */
static double mode_normal(const tg_field_key *key, int64_t k1, int64_t k2, int part) {
    const uint64_t mode = (uint64_t)(k1 + K_RANGE) << 21 | (uint64_t)k2;
    return tg_rng_normal(&key->rng, key->base + 2 * mode + (uint64_t)part);
}

double tg_covariance_sigma(double alpha, double tau) {
    return pow(tau, alpha - 1.0);
}

/* Deviation of the coefficient of a mode with squared wave number k2 (2 pi / L included). */
static double deviation_of(const tg_covariance *c, double k2) {
    return c->sigma * pow(k2 + c->tau * c->tau, -0.5 * c->alpha);
}

void tg_grf_periodic_1d(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                        double *spectrum) {
    spectrum[0] = spectrum[1] = 0.0;
    for (int64_t k = 1; k <= modes; k++) {
        const double wave = 2.0 * PI * (double)k;
        const double deviation = SQRT_HALF * deviation_of(c, wave * wave);
        spectrum[2 * k] = deviation * mode_normal(key, k, 0, 0);
        spectrum[2 * k + 1] = -deviation * mode_normal(key, k, 0, 1);
    }
}

void tg_grf_periodic_2d(const tg_field_key *key, const tg_covariance *c, double length,
                        int64_t modes, double *spectrum) {
    const double unit = 2.0 * PI / length;
    const int64_t columns = modes + 1;
    for (int64_t k1 = -modes; k1 <= modes; k1++) {
        double *row = spectrum + 2 * (k1 + modes) * columns;
        for (int64_t k2 = 0; k2 <= modes; k2++) {
            const double wave2 = unit * unit * (double)(k1 * k1 + k2 * k2);
            const double deviation = SQRT_HALF * deviation_of(c, wave2);
            /* At k2 = 0 the half k1 < 0 is the conjugate of the other half. */
            const bool mirrored = k2 == 0 && k1 < 0;
            const int64_t k = mirrored ? -k1 : k1;
            row[2 * k2] = deviation * mode_normal(key, k, k2, 0);
            row[2 * k2 + 1] = (mirrored ? deviation : -deviation) * mode_normal(key, k, k2, 1);
        }
    }
    spectrum[2 * modes * columns] = spectrum[2 * modes * columns + 1] = 0.0; /* the mean */
}

void tg_grf_neumann(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                    double *coefficients) {
    for (int64_t k1 = 0; k1 < modes; k1++) {
        for (int64_t k2 = 0; k2 < modes; k2++) {
            const double norm = (k1 > 0 ? SQRT2 : 1.0) * (k2 > 0 ? SQRT2 : 1.0);
            const double wave2 = PI * PI * (double)(k1 * k1 + k2 * k2);
            coefficients[k1 * modes + k2] =
                norm * deviation_of(c, wave2) * mode_normal(key, k1, k2, 0);
        }
    }
    coefficients[0] = 0.0;
}

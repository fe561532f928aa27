/* Roots of unity. */
#include "backend/roots.h"

#include <math.h>
#include <stdbool.h>

/* The angle is folded to at most an eighth of the circle in integer arithmetic, so that symmetries
 * hold exactly: root(n - j) = conj(root(j)), and 1, -i, -1, i. */
tg_scalar tg_root_of_unity(int64_t j, int64_t n) {
    const double pi = 3.14159265358979323846;
    const bool lower = 2 * j > n;
    int64_t a = 4 * (lower ? n - j : j); /* quarter turns times n: 0 .. 2n */
    const bool leftward = a > n;
    a = leftward ? 2 * n - a : a; /* 0 .. n */
    const bool steep = 2 * a > n;
    a = steep ? n - a : a; /* 0 .. n/2 */
    const double angle = pi * (double)a / (2.0 * (double)n);
    const double x = steep ? sin(angle) : cos(angle);
    const double y = steep ? cos(angle) : sin(angle);
    return (tg_scalar){leftward ? -x : x, lower ? y : -y};
}

/* The two parts of a layer of complex data, fr (0) and fi (1):
 * out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]. */
#ifndef TG_NN_PARTS_H
#define TG_NN_PARTS_H

/* The plane at the other end of a part, seen from plane q. */
static inline int nn_part_across(int part, int q) {
    return part == 0 ? q : 1 - q;
}

/* Its sign in plane `out`. */
static inline double nn_part_sign(int part, int out) {
    return part == 1 && out == 0 ? -1.0 : 1.0;
}

#endif

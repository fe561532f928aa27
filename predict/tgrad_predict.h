/* Predictions of a trained Fourier neural operator, in C11 with the C library alone.
 *
 *     char error[TGP_ERROR];
 *     tgp_model *model = tgp_load("model.tgp", error);           NULL: error says why
 *     tgp_session *session = tgp_prepare(model, grid, error);    all memory for one grid
 *     tgp_predict(session, x, y);                                any number of times
 *     tgp_release(session);
 *     tgp_free(model);
 *
 * `tgrad export MODEL --c` writes model.tgp, this header, its source and a program that uses them.
 * Compile with OpenMP (-fopenmp) for several threads; without it there is one. */
#ifndef TGRAD_PREDICT_H
#define TGRAD_PREDICT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TGP_MAX_DIMS 3
#define TGP_ERROR    256 /* bytes of an error message */

typedef struct tgp_model tgp_model;
typedef struct tgp_session tgp_session;

/* Reads a model file. NULL on failure, with a message in `error` (TGP_ERROR bytes, or NULL). */
tgp_model *tgp_load(const char *path, char *error);
/* The same for a file in memory, which remains the caller's, must outlive the model, and is aligned
 * to 4 bytes. */
tgp_model *tgp_load_memory(const void *bytes, size_t size, char *error);
/* Call after releasing all sessions; accepts NULL. */
void tgp_free(tgp_model *model);

int tgp_dims(const tgp_model *model); /* of a grid: 1 to 3 */
long tgp_in_channels(const tgp_model *model);
long tgp_out_channels(const tgp_model *model);

/* Tables and memory for fields on one grid: tgp_dims() sizes, outermost first. Any grid is
 * possible, not only that of the training. NULL on failure, with a message. Several sessions may
 * share a model, each used by one thread at a time. */
tgp_session *tgp_prepare(const tgp_model *model, const long *grid, char *error);
void tgp_release(tgp_session *session);        /* accepts NULL */
size_t tgp_memory(const tgp_session *session); /* bytes held in addition to the model */

/* y (out_channels, grid..) from x (in_channels, grid..), both in the units of the training data,
 * row-major. Allocates nothing and cannot fail. */
void tgp_predict(tgp_session *session, const float *x, float *y);

#ifdef __cplusplus
}
#endif
#endif

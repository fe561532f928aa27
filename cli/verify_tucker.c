/* Golden Tucker decompositions of `x`: after 1 and 10 sweeps the reconstruction error must be no
 * worse than the file's by more than 0.0005 of it (factors are unique only up to rotations and
 * phases). What is better counts as equal. */
#include <stdio.h>

#include "verify.h"

static int read_ranks(verify_run *run, int ndim, int64_t *ranks) {
    json_t *list = verify_metadata(run, "ranks");
    if (!list) {
        return CLI_FAILED;
    }
    bool fits = json_is_array(list) && (int)json_array_size(list) == ndim;
    for (int d = 0; fits && d < ndim; d++) {
        const json_t *entry = json_array_get(list, (size_t)d);
        fits = json_is_integer(entry);
        ranks[d] = json_integer_value(entry);
    }
    json_decref(list);
    return fits ? CLI_OK
                : cli_fail("%s: metadata 'ranks' is not a list of %d integers", run->path, ndim);
}

/* Adds core_itN and factorK_itN to what was computed. */
static tg_status keep(verify_run *run, int sweeps, int ndim, tg_tucker_result *result) {
    char name[64];
    snprintf(name, sizeof name, "core_it%d", sweeps);
    CLI_CALL(tg_archive_take(run->computed, name, &result->core));
    for (int d = 0; d < ndim; d++) {
        snprintf(name, sizeof name, "factor%d_it%d", d, sweeps);
        CLI_CALL(tg_archive_take(run->computed, name, &result->factor[d]));
    }
    return TG_OK;
}

int verify_tucker(verify_run *run) {
    int64_t ranks[TG_MAX_NDIM];
    const tg_tensor *x = verify_tensor(run, "x");
    if (!x || read_ranks(run, x->shape.ndim, ranks) != CLI_OK) {
        return CLI_FAILED;
    }
    static const int sweeps[] = {1, 10};
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        char key[32];
        snprintf(key, sizeof key, "rel_err_it%d", sweeps[i]);
        json_t *expected = verify_metadata(run, key);
        if (!expected) {
            return CLI_FAILED;
        }
        const double theirs = json_number_value(expected);
        json_decref(expected);
        tg_tucker_result result;
        tg_status status = tg_tucker(run->ctx, x, ranks, sweeps[i], TG_SVD_TRUNCATED, 0, &result);
        if (status == TG_OK) {
            const double worse = (result.relative_error - theirs) / theirs;
            verify_add(run, worse < 0.0 ? 0.0 : worse, 0.0005,
                       "reconstruction after %d sweep%s, excess over %.3g", sweeps[i],
                       sweeps[i] == 1 ? "" : "s", theirs);
            status = keep(run, sweeps[i], x->shape.ndim, &result);
        }
        tg_tucker_result_destroy(&result);
        if (status != TG_OK) {
            return cli_fail_status(run->ctx, status);
        }
    }
    return CLI_OK;
}

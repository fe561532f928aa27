/* What fortran/tgrad.f90 says again of the headers, as the C compiler has it: for module_test.f90.
 */
#include <stddef.h>

#include <tgrad/tgrad.h>

enum { FACTS = 38 };

int tg_test_facts(long long *out);

int tg_test_facts(long long *out) {
    static const long long facts[FACTS] = {
        TG_MAX_NDIM,
        sizeof(tg_shape),
        offsetof(tg_shape, dim),
        sizeof(tg_tensor),
        offsetof(tg_tensor, dtype),
        offsetof(tg_tensor, shape),
        offsetof(tg_tensor, data),
        offsetof(tg_tensor, place),
        offsetof(tg_tensor, owner),
        TG_OK,
        TG_E_ARGUMENT,
        TG_E_SHAPE,
        TG_E_DTYPE,
        TG_E_MEMORY,
        TG_E_IO,
        TG_E_FORMAT,
        TG_E_CONFIG,
        TG_E_NUMERIC,
        TG_E_UNSUPPORTED,
        TG_E_BACKEND,
        TG_F32,
        TG_F64,
        TG_C64,
        TG_C128,
        TG_HOST,
        TG_DEVICE,
        sizeof(tg_optim_param),
        offsetof(tg_optim_param, dtype),
        offsetof(tg_optim_param, shape),
        offsetof(tg_optim_param, group),
        offsetof(tg_optim_setup, groups),
        offsetof(tg_optim_setup, group_count),
        offsetof(tg_optim_setup, params),
        offsetof(tg_optim_setup, param_count),
        offsetof(tg_optim_setup, seed),
        offsetof(tg_optim_setup, takes_factored),
        offsetof(tg_optim_setup, shares_workspace),
        offsetof(tg_optim_config, size),
    };
    for (int i = 0; i < FACTS; i++) {
        out[i] = facts[i];
    }
    return FACTS;
}

int tg_test_data_bytes(const tg_context *ctx);

/* Bytes of category data that a context holds. */
int tg_test_data_bytes(const tg_context *ctx) {
    return (int)tg_context_memory(ctx, TG_HOST).current[TG_MEM_DATA];
}

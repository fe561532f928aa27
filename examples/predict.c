/* Inference from a checkpoint or model file, in the units of the data:
 *
 *     predict MODEL X.npy Y.npy
 *
 * X holds fields (samples, channels, grid..) on any grid, f32 or for complex data c64. */
#include <stdio.h>
#include <stdlib.h>

#include <tgrad/tgrad.h>

/* Library calls can fail; the context has the error. */
static void need(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "%s\n", tg_context_error(ctx));
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv) {
    tg_context *ctx = NULL;
    tg_model *model = NULL;
    tg_tensor x, y;
    if (argc != 4) {
        fprintf(stderr, "usage: predict MODEL X.npy Y.npy\n");
        return 2;
    }
    need(NULL, tg_context_create(NULL, &ctx)); /* computes on a GPU if there is one */
    need(ctx, tg_model_load(ctx, argv[1], &model));
    need(ctx, tg_npy_read(ctx, argv[2], &x));
    tg_shape shape = x.shape;
    shape.dim[1] = tg_fno_get_config(tg_model_fno(model))->out_channels;
    need(ctx, tg_tensor_create(ctx, TG_MEM_DATA, x.dtype, &shape, &y));
    need(ctx, tg_model_predict(model, &x, &y));
    need(ctx, tg_npy_write(ctx, argv[3], &y));
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&x);
    tg_model_destroy(&model);
    tg_context_destroy(&ctx);
    return EXIT_SUCCESS;
}

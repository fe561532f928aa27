/* A user of the installed library: makes a tensor, writes it to a file, reads it back, and asks for
 * the memory in use. Exits 0 only if every value came back and nothing more is left allocated than
 * the context itself. */
#include <stdio.h>
#include <string.h>

#include "tgrad/tgrad.h"

/* Writes a (3, 5) tensor to `path` and reads it back. */
static tg_status round_trip(tg_context *ctx, const char *path, int *equal) {
    const int64_t dims[] = {3, 5};
    const tg_shape shape = tg_shape_of(2, dims);
    tg_tensor weights = {0};
    tg_archive *written = NULL, *read = NULL;
    tg_status status = tg_tensor_create(ctx, TG_MEM_WEIGHTS, TG_F32, &shape, &weights);
    if (status != TG_OK) {
        goto fail;
    }
    for (int64_t i = 0; i < tg_tensor_numel(&weights); i++) {
        ((float *)weights.data)[i] = 0.5f * (float)i;
    }
    if ((status = tg_archive_create(ctx, &written)) != TG_OK ||
        (status = tg_archive_add_view(written, "weights", &weights)) != TG_OK ||
        (status = tg_archive_set_meta(written, "made by", "user.c")) != TG_OK ||
        (status = tg_safetensors_write(ctx, path, written)) != TG_OK ||
        (status = tg_safetensors_read(ctx, path, &read)) != TG_OK) {
        goto fail;
    }
    const tg_tensor *back = tg_archive_find(read, "weights");
    *equal = back && tg_shape_equal(&back->shape, &shape) &&
             memcmp(back->data, weights.data, tg_tensor_bytes(&weights)) == 0 &&
             strcmp(tg_archive_meta(read, "made by"), "user.c") == 0;
fail:
    tg_archive_destroy(&read);
    tg_archive_destroy(&written);
    tg_tensor_destroy(&weights);
    return status;
}

int main(int argc, char **argv) {
    tg_context *ctx = NULL;
    int equal = 0;
    if (argc != 2 || tg_context_create(NULL, &ctx) != TG_OK) {
        return 2;
    }
    const size_t before = tg_context_memory(ctx, TG_HOST).current_total;
    if (round_trip(ctx, argv[1], &equal) != TG_OK) {
        fprintf(stderr, "%s\n", tg_context_error(ctx));
    }
    const tg_mem_usage usage = tg_context_memory(ctx, TG_HOST);
    printf("tgrad %s: equal %d, peak %zu bytes, now %zu bytes\n", tg_build().version, equal,
           usage.peak_total, usage.current_total);
    const int done = equal && usage.peak_total > before && usage.current_total == before;
    tg_context_destroy(&ctx);
    return done ? 0 : 1;
}

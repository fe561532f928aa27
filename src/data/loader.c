/* Batches in an order that depends only on (seed, epoch): a permutation that needs no memory. */
#include "base/context.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "base/system.h"
#include "data/dataset.h"

struct tg_loader {
    tg_context *ctx;
    tg_dataset *dataset;
    tg_loader_config config;
    int64_t samples;
    int64_t *indices; /* (samples of a batch) being read */
};

tg_status tg_loader_create(tg_context *ctx, tg_dataset *dataset, const tg_loader_config *config,
                           tg_loader **out) {
    TG_NEED_OUT(ctx, out, ctx, dataset, config);
    tg_status status = TG_OK;
    tg_loader *loader = NULL;
    tg_loader_config full = {.size = sizeof full};
    TG_TRY(TG_SIZED_READ(ctx, tg_loader_config, seed, config, &full));
    config = &full;
    if (config->batch_size < 1) {
        return tg_fail(ctx, TG_E_CONFIG, "data.batch_size: %lld is not positive",
                       (long long)config->batch_size);
    }
    if (config->ranks < 0 || config->rank < 0 ||
        config->rank >= (config->ranks > 0 ? config->ranks : 1)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "loader: rank %d of %d", config->rank, config->ranks);
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, loader, 1));
    loader->ctx = ctx;
    loader->dataset = dataset;
    loader->config = *config;
    loader->samples = tg_dataset_get_facts(dataset).samples;
    const int64_t most = tg_min(config->batch_size, loader->samples);
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, loader->indices, most));
    *out = loader;
    return TG_OK;
fail:
    tg_loader_destroy(&loader);
    return status;
}

void tg_loader_destroy(tg_loader **loader) {
    if (loader && *loader) {
        tg_mem_free((*loader)->ctx, (*loader)->indices);
        tg_mem_free((*loader)->ctx, *loader);
        *loader = NULL;
    }
}

int64_t tg_loader_batches(const tg_loader *loader) {
    if (!loader) {
        return 0;
    }
    const int64_t size = loader->config.batch_size;
    return loader->samples / size + (loader->samples % size != 0);
}

tg_status tg_loader_indices(tg_loader *loader, int64_t epoch, int64_t batch, int64_t *indices,
                            int64_t *count) {
    const int64_t size = loader->config.batch_size;
    *count = 0;
    if (epoch < 0 || epoch > UINT32_MAX || batch < 0 || batch >= tg_loader_batches(loader)) {
        return tg_fail(loader->ctx, TG_E_ARGUMENT,
                       "loader: there is no batch %lld in epoch %lld (there are %lld)",
                       (long long)batch, (long long)epoch, (long long)tg_loader_batches(loader));
    }
    const int64_t left = loader->samples - batch * size;
    const int ranks = loader->config.ranks > 0 ? loader->config.ranks : 1;
    const tg_range part = tg_partition(tg_min(left, size), 1, ranks, loader->config.rank);
    const int64_t first = batch * size + part.begin;
    const tg_rng rng = {
        .seed = loader->config.seed, .purpose = TG_RNG_SHUFFLE, .step = (uint32_t)epoch};
    *count = part.end - part.begin;
    for (int64_t i = 0; i < *count; i++) {
        indices[i] =
            loader->config.shuffle
                ? (int64_t)tg_rng_permute(&rng, (uint64_t)loader->samples, (uint64_t)(first + i))
                : first + i;
    }
    return TG_OK;
}

tg_status tg_loader_batch(tg_loader *loader, int64_t epoch, int64_t batch, void *x, void *y,
                          int64_t *count) {
    TG_NEED(NULL, loader);
    TG_NEED(loader->ctx, count);
    tg_status status = tg_loader_indices(loader, epoch, batch, loader->indices, count);
    return status == TG_OK && *count > 0
               ? tg_dataset_read(loader->dataset, loader->indices, *count, x, y)
               : status;
}

/* A library to preload: reports the kernels that a program launches, and in which part of it.
 *
 *     KERNELS=file  gets a line for each kernel of a part, "launches threads part kernel", where
 * launches and threads are those of the whole part; and one for each kernel that the program could
 * launch, "0 0 - kernel". The part is what TEST_PART says at the time, or the program's name. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)

typedef struct function {
    const void *host;    /* what the program launches */
    cudaKernel_t handle; /* or this */
    const char *name;
    bool is_launched; /* in this part */
} function;

enum { MOST = 1 << 14 };
static function functions[MOST];
static int function_count;
static char part[256];
static long part_launches;
static double part_threads;

static void write_part(void) {
    const char *path = getenv("KERNELS");
    FILE *file = part_launches && path ? fopen(path, "a") : NULL;
    for (int i = 0; i < function_count; i++) {
        if (functions[i].is_launched && file) {
            fprintf(file, "%ld\t%.0f\t%s\t%s\n", part_launches, part_threads, part,
                    functions[i].name);
        }
        functions[i].is_launched = false;
    }
    if (file) {
        fclose(file);
    }
    part_launches = 0;
    part_threads = 0.0;
}

static void launched(const void *kernel, dim3 grid, dim3 block) {
    const char *now = getenv("TEST_PART");
    now = now ? now : program_invocation_short_name;
    if (strcmp(part, now) != 0) {
        write_part();
        snprintf(part, sizeof part, "%s", now);
    }
    part_launches++;
    part_threads += (double)grid.x * grid.y * grid.z * block.x * block.y * block.z;
    for (int i = 0; i < function_count; i++) {
        if (kernel == functions[i].host || kernel == functions[i].handle) {
            functions[i].is_launched = true;
            return;
        }
    }
}

__attribute__((destructor)) static void end(void) {
    write_part();
    const char *path = getenv("KERNELS");
    FILE *file = path ? fopen(path, "a") : NULL;
    for (int i = 0; file && i < function_count; i++) {
        fprintf(file, "0\t0\t-\t%s\n", functions[i].name);
    }
    if (file) {
        fclose(file);
    }
}

/* ---- what compiled kernels call ---- */

#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next) {                                                                                   \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
    }

void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
    NEXT(__cudaRegisterFunction)
    next(module, host, device, name, limit, tid, bid, block, grid, warp);
    if (function_count < MOST) {
        functions[function_count++] = (function){.host = host, .name = name};
    }
}

cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *host) {
    NEXT(__cudaGetKernel)
    const cudaError_t error = next(handle, host);
    for (int i = 0; i < function_count; i++) {
        if (functions[i].host == host) {
            functions[i].handle = *handle;
        }
    }
    return error;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream) {
    NEXT(__cudaLaunchKernel)
    launched(kernel, grid, block);
    return next(kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    NEXT(cudaLaunchKernel)
    launched(kernel, grid, block);
    return next(kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    NEXT(cudaLaunchKernelExC)
    launched(kernel, config->gridDim, config->blockDim);
    return next(config, kernel, args);
}

/* Find cuBLAS and cuSOLVER by the version of the headers this file was compiled with. Search the
 * system loader's path and the folders this library was linked with (RUNPATH). */
#include "backend/cuda/core/cuda.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

extern "C" {
#include "base/system.h"
}

#define TEXT_OF(number)      #number
#define FILE_OF(name, major) "lib" name ".so." TEXT_OF(major)

#define ROW(name) {#name, offsetof(cuda_functions, name)},

static const tg_library_row blas_rows[] = {
#define CUDA_BLAS(name) ROW(name)
#define CUDA_SOLVER(name)
#include "backend/cuda/core/libraries.def"
};

static const tg_library_row solver_rows[] = {
#define CUDA_BLAS(name)
#define CUDA_SOLVER(name) ROW(name)
#include "backend/cuda/core/libraries.def"
};

static const struct {
    const char *file;
    const tg_library_row *rows;
    int count;
} libraries[] = {
    {FILE_OF("cublas", CUBLAS_VER_MAJOR), blas_rows, sizeof blas_rows / sizeof blas_rows[0]},
    {FILE_OF("cusolver", CUSOLVER_VER_MAJOR), solver_rows,
     sizeof solver_rows / sizeof solver_rows[0]},
};

cuda_functions cuda_libraries;

/* Returns NULL on failure, with the loader's message in `why`. */
static void *open_library(const char *file, char *why, size_t capacity) {
    char path[128];
    void *library = dlopen(file, RTLD_NOW);
    if (!library) {
        const char *words = dlerror();
        snprintf(why, capacity, "%s", words ? words : file);
        snprintf(path, sizeof path, "/usr/local/cuda/lib64/%s", file); /* NVIDIA's default folder */
        library = dlopen(path, RTLD_NOW);
    }
    return library;
}

static bool open_all(char *reason, size_t capacity) {
    for (const auto &library : libraries) {
        char why[256];
        void *opened = open_library(library.file, why, sizeof why);
        if (!opened) {
            snprintf(reason, capacity,
                     "needs the CUDA %d toolkit, or pip install nvidia-cublas nvidia-cusolver: %s",
                     CUDART_VERSION / 1000, why);
            return false;
        }
        const char *missing = tg_library_read(opened, library.rows, library.count, &cuda_libraries);
        if (missing) {
            snprintf(reason, capacity, "%s has no %s: it is older than the one of the build",
                     library.file, missing);
            return false;
        }
    }
    return true;
}

bool cuda_libraries_open(char *reason, size_t capacity) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool is_open;
    pthread_mutex_lock(&mutex);
    is_open = is_open || open_all(reason, capacity);
    const bool result = is_open;
    pthread_mutex_unlock(&mutex);
    return result;
}

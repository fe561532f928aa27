/* Samples the running threads of the whole machine, and restarts the program if they occupy at
 * least half of its cores. */
#define _DEFAULT_SOURCE
#include "thread_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char **call;

void cli_remember_call(char **argv) {
    call = argv;
}

/* Other threads running now; -1: not known. */
static double running_threads(void) {
    FILE *file = fopen("/proc/loadavg", "r");
    int running = 0;
    const int found = file ? fscanf(file, "%*s %*s %*s %d/", &running) : 0;
    if (file) {
        fclose(file);
    }
    return found == 1 ? running - 1 : -1.0;
}

void cli_choose_waiting(void) {
    enum { SAMPLES = 8 };
    if (!call || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) {
        return;
    }
    double sum = 0.0;
    for (int i = 0; i < SAMPLES; i++) {
        const double running = running_threads();
        if (running < 0.0) {
            return;
        }
        sum += running;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (sum / SAMPLES >= 0.5 * (double)sysconf(_SC_NPROCESSORS_ONLN) &&
        setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
        execv("/proc/self/exe", call);
    }
}

/* OpenBLAS starts a thread for every core when it is loaded, with memory for each, although the
 * library calls it from its own threads, one at a time. Where memory is limited (ulimit -v) those
 * threads cannot start, and the process is ended by a signal or hangs at exit. OpenBLAS calls
 * this function before main to read OPENBLAS_NUM_THREADS; the linker finds the program's definition
 * first, and it returns 1. (In the wheel OpenBLAS is part of libtgrad.so: there the launcher sets
 * the variable.) */
__attribute__((visibility("default"))) int openblas_num_threads_env(void);

int openblas_num_threads_env(void) {
    return 1;
}

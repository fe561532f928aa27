/* OpenBLAS starts a thread for every core when it is loaded, with memory for each, although the
 * library calls it from its own threads, one at a time. Where memory is limited (ulimit -v) those
 * threads cannot start, and the process is ended by a signal or hangs at exit. OpenBLAS reads
 * OPENBLAS_NUM_THREADS by this function, before main; the program's own definition is found first
 * and says 1. (In the wheel OpenBLAS is part of libtgrad.so: there the launcher sets the
 * variable.) */
__attribute__((visibility("default"))) int openblas_num_threads_env(void);

int openblas_num_threads_env(void) {
    return 1;
}

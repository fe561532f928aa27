/* OpenBLAS starts a thread for every core when it is loaded, with memory for each, although the
 * library calls it from its own threads, one at a time. Where memory is limited (ulimit -v) those
 * threads cannot start, and the process is ended by a signal or hangs when it ends. OpenBLAS looks
 * at the environment once, before main; so the program starts itself again with the answer there.
 *
 * This runs before the constructors of all libraries, also those of the C library and of a
 * sanitizer: it may use nothing but its arguments and system calls. Where /proc is missing nothing
 * happens. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

enum { MOST_VARIABLES = 4096 };

static const char wanted[] = "OPENBLAS_NUM_THREADS=1";

/* Is `variable` of this name, the part of `wanted` up to '='? */
__attribute__((no_sanitize("address", "undefined"))) static bool has_name(const char *variable) {
    size_t i = 0;
    while (wanted[i] != '=' && variable[i] == wanted[i]) {
        i++;
    }
    return wanted[i] == '=' && variable[i] == '=';
}

__attribute__((no_sanitize("address", "undefined"))) static void restart(int argc, char **argv,
                                                                         char **environment) {
    static char *changed[MOST_VARIABLES];
    size_t count = 0;
    for (char **variable = environment; *variable; variable++) {
        if (has_name(*variable)) {
            if ((*variable)[sizeof wanted - 2] == '1' && (*variable)[sizeof wanted - 1] == '\0') {
                return;
            }
        } else if (count < MOST_VARIABLES - 2) {
            changed[count++] = *variable;
        } else {
            return;
        }
    }
    changed[count++] = (char *)(uintptr_t)wanted;
    changed[count] = NULL;
    if (argc > 0) {
        execve("/proc/self/exe", argv, changed);
    }
}

typedef void early_call(int argc, char **argv, char **environment);

__attribute__((section(".preinit_array"), used)) static early_call *const first = restart;

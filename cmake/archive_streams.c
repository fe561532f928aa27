/* The standard streams as archives of position-independent executables see them.
 *
 * Distributions compile their archives for executables, where `stderr` may be a copy with an address
 * of its own. A shared library has none: the linker puts these in their place (--wrap), so that such
 * archives (HDF5, libfyaml) can be a part of libtgrad.so. */
#include <stdio.h>

extern FILE *__real_stdin, *__real_stdout, *__real_stderr; /* the C library's */
extern FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor)) static void set_streams(void) {
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}

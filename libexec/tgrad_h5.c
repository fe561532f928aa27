/* tgrad-h5: reads one HDF5 file for a process that uses libtgrad, see src/io/hdf5_wire.h. The
 * library starts it with a socket as descriptor 3 and the path as its only argument. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/hdf5_wire.h"

enum { SOCKET = 3 };

int main(int argc, char **argv) {
    struct stat info;
    if (argc != 2 || fstat(SOCKET, &info) != 0 || !S_ISSOCK(info.st_mode)) {
        fprintf(stderr, "tgrad-h5 is started by libtgrad to read HDF5 files; see tgrad --help.\n");
        return 2;
    }
#ifdef SYS_close_range
    syscall(SYS_close_range, SOCKET + 1, ~0U, 0); /* close inherited descriptors */
#endif
    return tg_h5_serve(SOCKET, argv[1]);
}

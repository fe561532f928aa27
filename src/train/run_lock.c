/* The lock of a run folder: one process trains in it at a time.
 *
 * It is the system's lock on DIR/.lock, not the existence of the file, so it ends with the process,
 * however that dies. The file names its holder and is never removed: otherwise a third process
 * could lock a new file while a second one waits for the old. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "io/file.h"
#include "io/name_index.h"
#include "train/run_folder.h"

enum { HOST = 64 };

static void own_host(char host[HOST]) {
    host[HOST - 1] = '\0';
    if (gethostname(host, HOST - 1) != 0 || !host[0]) {
        snprintf(host, HOST, "localhost");
    }
}

/* The error for a folder that another process holds. Between locking and signing, the file still
 * names the previous holder: a process of this host that is gone is not named. */
static tg_status refuse(const tg_run_folder *folder, int fd) {
    char text[128] = "", host[HOST] = "", own[HOST], quoted[TG_QUOTE];
    long pid = 0;
    const ssize_t got = pread(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    own_host(own);
    const bool is_signed = sscanf(text, "%ld %63s", &pid, host) == 2 && pid > 0;
    if (is_signed && (strcmp(host, own) != 0 || tg_process_is_alive(pid))) {
        return tg_fail(folder->ctx, TG_E_IO,
                       "%s: process %ld on %s is training in this folder; wait for its end, or "
                       "choose another folder",
                       folder->path, pid, tg_quote(host, quoted));
    }
    return tg_fail(folder->ctx, TG_E_IO,
                   "%s: another process is training in this folder; wait for its end, or choose "
                   "another folder",
                   folder->path);
}

tg_status tg_run_folder_lock(tg_run_folder *folder, bool makes) {
    char path[TG_PATH], text[128];
    if (folder->lock >= 0 || folder->has_no_locks) {
        return TG_OK;
    }
    TG_CALL(tg_run_folder_file(folder, ".lock", path));
    const int fd = open(path, O_RDWR | O_CLOEXEC | (makes ? O_CREAT : 0), 0666);
    if (fd < 0 && makes) {
        return tg_fail(folder->ctx, TG_E_IO, "%s: cannot open: %s", path,
                       tg_system_reason(errno, text));
    }
    if (fd < 0) {
        return TG_OK;
    }
    int error;
    do {
        error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0) {
        folder->lock = fd;
        return TG_OK;
    }
    tg_status status = TG_OK;
    if (error == EWOULDBLOCK) {
        status = refuse(folder, fd);
    } else {
        folder->has_no_locks = true;
        tg_log(folder->ctx, TG_LOG_WARN,
               "%s: cannot be locked (%s): nothing keeps a second run out of this folder", path,
               tg_system_reason(error, text));
    }
    close(fd);
    return status;
}

void tg_run_folder_sign(const tg_run_folder *folder) {
    char line[128], host[HOST];
    if (folder->lock < 0) {
        return;
    }
    own_host(host);
    const int length = snprintf(line, sizeof line, "%ld %s\n", (long)getpid(), host);
    if (ftruncate(folder->lock, 0) != 0 || pwrite(folder->lock, line, (size_t)length, 0) < 0) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s/.lock: cannot be written: %s", folder->path,
               strerror(errno));
    }
}

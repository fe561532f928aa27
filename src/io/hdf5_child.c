/* Starts, talks to and ends the reader process, see hdf5_wire.h.
 *
 * The parent ends the reader by closing the socket and killing it; a parent that is itself killed
 * closes the socket too, and a reader whose socket is closed exits. (PR_SET_PDEATHSIG would follow
 * the thread that opened the file, not the process.) */
#define _GNU_SOURCE
#include "io/hdf5_wire.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/hdf5_types.h"

enum {
    READER_FD = 3,             /* its end of the sockets */
    TIMEOUT_MS = 120000,       /* of silence; the reader's own limits end loops long before */
    MAX_TEXT_BYTES = 16 << 10, /* bytes of a sentence or of a line for the log */
};

/* ---- finding the program ---- */

/* The file this code was loaded from, with an absolute path, in `path` (PATH_MAX). */
static bool find_ourselves(char *path) {
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1((void *)&tg_h5_serve, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) {
        return false;
    }
    if (map->l_name[0] ==
        '\0') { /* in the program itself, whose name is whatever it was called by */
        const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
        path[length > 0 ? length : 0] = '\0';
        return length > 0;
    }
    return map->l_name[0] == '/' && realpath(map->l_name, path);
}

/* Absolute paths only: never run a program from the current folder. */
static bool find_reader(char *path) {
    static const char *const places[] = {"", "../libexec/tgrad/", "../../libexec/tgrad/"};
    char ours[PATH_MAX];
    char *slash = find_ourselves(ours) ? strrchr(ours, '/') : NULL;
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++) {
        const int folder = (int)(slash - ours);
        if (snprintf(path, PATH_MAX, "%.*s/%stgrad-h5", folder, ours, places[i]) < PATH_MAX &&
            access(path, X_OK) == 0) {
            return true;
        }
    }
    snprintf(path, PATH_MAX, "%s/tgrad/tgrad-h5", TG_LIBEXECDIR);
    return access(path, X_OK) == 0;
}

/* ---- start ---- */

/* The reader inherits its socket and nothing else: no streams, no signal handlers. */
static int spawn_reader(const char *program, const char *path, int fd, pid_t *pid) {
    char *const words[] = {(char *)(uintptr_t) "tgrad-h5", (char *)(uintptr_t)path, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int error = posix_spawn_file_actions_init(&actions);
    if (error) {
        return error;
    }
    error = posix_spawnattr_init(&attributes);
    if (error) {
        posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    error = posix_spawn_file_actions_adddup2(&actions, fd, READER_FD);
    for (int i = 0; i <= 2 && !error; i++) {
        error =
            posix_spawn_file_actions_addopen(&actions, i, "/dev/null", i ? O_WRONLY : O_RDONLY, 0);
    }
    error = error ? error : posix_spawnattr_setsigdefault(&attributes, &all);
    error = error ? error : posix_spawnattr_setsigmask(&attributes, &none);
    error = error ? error
                  : posix_spawnattr_setflags(&attributes,
                                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    error = error ? error : posix_spawn(pid, program, &actions, &attributes, words, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Holds the HDF5 guard while forking, so that no other thread is inside HDF5. The child closes its
 * copy of the parent's socket, or it would never see that closed, and exits without exit handlers,
 * which belong to the parent. */
static int fork_reader(const char *path, const int fds[2], pid_t *pid) {
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    *pid = fork();
    const int error = *pid < 0 ? errno : 0;
    tg_h5_leave(&guard);
    if (*pid == 0) {
        close(fds[0]);
        const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int i = 0; i <= 2; i++) {
            dup2(null, i);
        }
        _exit(tg_h5_serve(fds[1], path));
    }
    return error;
}

tg_status tg_h5_child_start(tg_context *ctx, const char *path, tg_h5_child *out) {
    char program[PATH_MAX];
    int fds[2] = {-1, -1};
    *out = (tg_h5_child){.ctx = ctx, .path = path, .fd = -1, .pid = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        return tg_fail_system(ctx, path, "make a socket", errno);
    }
    const int error = find_reader(program) ? spawn_reader(program, path, fds[1], &out->pid)
                                           : fork_reader(path, fds, &out->pid);
    close(fds[1]);
    if (error) {
        close(fds[0]);
        return tg_fail_system(ctx, path, "start a process to read it", error);
    }
    out->fd = fds[0];
    tg_h5_frame hello;
    tg_status status = tg_h5_child_receive(out, &hello);
    if (status == TG_OK &&
        (hello.kind != TG_H5_HELLO || hello.status != TG_H5_PROTOCOL || hello.size != 0)) {
        tg_h5_child_end(out);
        status = tg_fail(ctx, TG_E_UNSUPPORTED, "%s: its reader %s is of another version", path,
                         program);
    }
    return status;
}

/* ---- end ---- */

/* Returns the wait status, or -1 if another part of this program has waited for the process. A
 * process that is no longer our child is not killed: its pid may have been reused. */
static int reap(tg_h5_child *child) {
    int status = -1;
    siginfo_t info;
    close(child->fd);
    child->fd = -1;
    if (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, &status, 0) < 0) {
            if (errno != EINTR) {
                return -1;
            }
        }
    }
    return status;
}

void tg_h5_child_end(tg_h5_child *child) {
    if (child->fd >= 0) {
        reap(child);
    }
}

/* Explains the wait status of a reader that has ended. */
static const char *describe_end(int end, char text[64]) {
    if (end == -1) {
        return "ended early";
    }
    if (WIFEXITED(end)) {
        return WEXITSTATUS(end) == 127 ? "could not be started (too little memory?)"
                                       : "ended early";
    }
    switch (WTERMSIG(end)) {
    case SIGPROF:
        return "took too long: the file is damaged";
    case SIGKILL:
        return "was killed (too much memory?)";
    default:
        snprintf(text, 64, "crashed (signal %d): the file is damaged", WTERMSIG(end));
        return text;
    }
}

static tg_status end_failure(tg_h5_child *child) {
    char text[64];
    return tg_fail(child->ctx, TG_E_FORMAT, "%s: the process that reads this HDF5 file %s",
                   child->path, describe_end(reap(child), text));
}

tg_status tg_h5_child_refuse(tg_h5_child *child) {
    tg_h5_child_end(child);
    return tg_fail(
        child->ctx, TG_E_FORMAT,
        "%s: the process that reads this HDF5 file broke the protocol: the file is damaged",
        child->path);
}

/* ---- talk ---- */

static tg_status check_alive(tg_h5_child *child) {
    return child->fd >= 0
               ? TG_OK
               : tg_fail(child->ctx, TG_E_FORMAT,
                         "%s: the process that reads this HDF5 file has ended", child->path);
}

tg_status tg_h5_child_ask(tg_h5_child *child, tg_h5_kind kind, const void *head, size_t head_size,
                          const void *tail, size_t tail_size) {
    const tg_h5_frame frame = {.kind = kind, .size = head_size + tail_size};
    TG_CALL(check_alive(child));
    const bool is_sent = tg_h5_send(child->fd, &frame, sizeof frame) &&
                         tg_h5_send(child->fd, head, head_size) &&
                         tg_h5_send(child->fd, tail, tail_size);
    return is_sent ? TG_OK : end_failure(child);
}

tg_status tg_h5_child_take(tg_h5_child *child, void *data, size_t size) {
    tg_status status = check_alive(child);
    for (size_t done = 0; done < size && status == TG_OK;) {
        struct pollfd wait = {.fd = child->fd, .events = POLLIN};
        const int ready = poll(&wait, 1, TIMEOUT_MS);
        if (ready == 0) {
            tg_h5_child_end(child);
            return tg_fail(child->ctx, TG_E_IO,
                           "%s: the process that reads this HDF5 file did not answer for %d s",
                           child->path, TIMEOUT_MS / 1000);
        }
        const ssize_t got = ready < 0 ? -1 : recv(child->fd, (char *)data + done, size - done, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            status = end_failure(child);
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return status;
}

tg_status tg_h5_child_take_text(tg_h5_child *child, const tg_h5_frame *frame, uint64_t limit,
                                char **out) {
    tg_status status = TG_OK;
    char *text = NULL;
    *out = NULL;
    if (frame->size > limit || frame->size > SIZE_MAX - 2) {
        return tg_h5_child_refuse(child);
    }
    const size_t size = (size_t)frame->size;
    TG_TRY(TG_ALLOC(child->ctx, TG_MEM_OTHER, text, size + 2));
    TG_TRY(tg_h5_child_take(child, text, size));
    text[size] = text[size + 1] = '\0';
    *out = text;
    return TG_OK;
fail:
    TG_FREE(child->ctx, text);
    if (status == TG_E_MEMORY) {
        tg_h5_child_end(child); /* its bytes are still in transit */
    }
    return status;
}

tg_status tg_h5_child_result(tg_h5_child *child, const tg_h5_frame *frame) {
    char *sentence = NULL;
    tg_status status = tg_h5_child_take_text(child, frame, MAX_TEXT_BYTES, &sentence);
    if (status == TG_OK && frame->status != TG_OK) {
        const bool known = frame->status > 0 && frame->status < TG_STATUS_COUNT;
        status =
            tg_fail(child->ctx, known ? (tg_status)frame->status : TG_E_FORMAT, "%s", sentence);
    }
    TG_FREE(child->ctx, sentence);
    return status;
}

tg_status tg_h5_child_receive(tg_h5_child *child, tg_h5_frame *out) {
    char *line = NULL;
    while (true) {
        TG_CALL(tg_h5_child_take(child, out, sizeof *out));
        if (out->kind != TG_H5_LOG) {
            return TG_OK;
        }
        TG_CALL(tg_h5_child_take_text(child, out, MAX_TEXT_BYTES, &line));
        tg_log(child->ctx, out->status == TG_LOG_WARN ? TG_LOG_WARN : TG_LOG_DEBUG, "%s", line);
        TG_FREE(child->ctx, line);
    }
    return TG_OK;
}

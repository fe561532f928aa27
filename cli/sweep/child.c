/* Children of a sweep. Each has a separate process group, so that Ctrl-C reaches only this process:
 * a child that gets two signals ends without saving. */
#define _GNU_SOURCE
#include "sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static sigset_t before; /* signals that were blocked */

static sigset_t awaited(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    return set;
}

void cli_children_begin(void) {
    const sigset_t set = awaited();
    sigprocmask(SIG_BLOCK, &set, &before);
}

void cli_children_end(void) {
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* In the child: does not return. */
static void become(char *const *argv, int out, int log, int device, pid_t parent) {
    char number[16];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (device >= 0) {
        snprintf(number, sizeof number, "%d", device);
        setenv("TGRAD_DEVICE", number, 1);
    }
    if (getppid() == parent && dup2(out, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0) {
        execv("/proc/self/exe", argv);
        perror("tgrad: /proc/self/exe");
    }
    _exit(127);
}

pid_t cli_child_start(const char *const *words, const char *out, const char *log, int device) {
    const int to = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const int notes = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const pid_t parent = getpid();
    fflush(NULL);
    const pid_t pid = to >= 0 && notes >= 0 ? fork() : -1;
    if (pid == 0) {
        become((char *const *)(uintptr_t)words, to, notes, device, parent);
    }
    if (pid < 0) {
        cli_fail("%s: cannot start a run: %s", to < 0 ? out : log, strerror(errno));
    }
    if (to >= 0) {
        close(to);
    }
    if (notes >= 0) {
        close(notes);
    }
    return pid;
}

int cli_children_wait(double seconds) {
    const sigset_t set = awaited();
    const struct timespec limit = {(time_t)seconds,
                                   (long)(1e9 * (seconds - (double)(time_t)seconds))};
    const int signal = sigtimedwait(&set, NULL, &limit);
    return signal == SIGINT || signal == SIGTERM ? signal : 0;
}

pid_t cli_child_reap(int *code) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
        return 0;
    }
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return pid;
}

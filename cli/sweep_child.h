/* Runs of a sweep as processes of this program: begun, asked to stop, waited for. */
#ifndef CLI_SWEEP_CHILD_H
#define CLI_SWEEP_CHILD_H

#include <sys/types.h>

/* From here on SIGINT, SIGTERM and the ends of children are waited for, not handled. */
void cli_children_begin(void);
void cli_children_end(void);

/* Starts this program with words[] (ended by NULL, words[0] is the command): stdout goes to the
 * file `out`, stderr to the end of the file `log`. device: the GPU it computes on, -1 for any. The
 * child stops as by SIGTERM if this process dies. -1 after a message. */
pid_t cli_child_start(const char *const *words, const char *out, const char *log, int device);

/* Waits up to `seconds` for a signal to this process (returned), or for the end of a child (0). */
int cli_children_wait(double seconds);

/* A child that has ended, and how: its exit code, or 128 + signal. 0 if none has. */
pid_t cli_child_reap(int *code);

#endif

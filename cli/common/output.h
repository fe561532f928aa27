/* Output of the program: messages on stderr, JSON on stdout, and a context that logs to stderr. */
#ifndef CLI_COMMON_OUTPUT_H
#define CLI_COMMON_OUTPUT_H

#include <jansson.h>
#include <math.h>
#include <signal.h>

#include "commands.h"
#include "text.h"
#include "tgrad/tgrad.h"

/* Makes sure that descriptors 0 to 2 exist: a file opened later must not become "stdout". */
void cli_guard_streams(void);

/* Stores the arguments of the program for a restart (see choose_waiting); called first. */
void cli_remember_call(char **argv);

/* Flushes and closes stdout; the exit code is `code`, or CLI_FAILED if anything was not written. */
int cli_close_stdout(int code);

/* A line on stdout, cleaned (text.h): it may hold paths and names from files. */
void cli_say(const char *format, ...) TG_PRINTF(1, 2);

/* "tgrad: <sentence>" on stderr; returns CLI_FAILED. */
int cli_fail(const char *format, ...) TG_PRINTF(1, 2);
/* The same for the last error of `ctx` (NULL: only the name of `status`). */
int cli_fail_status(const tg_context *ctx, tg_status status);
/* The same for a command whose options replace keys of data: names them if the sentence asks for
 * such a key. */
int cli_fail_data(const tg_context *ctx, tg_status status, const char *options);
/* The exit code of `status`: CLI_OK, or that of cli_fail_status. */
int cli_code(const tg_context *ctx, tg_status status);
/* "tgrad: warning: <sentence>" on stderr. */
void cli_warn(const char *format, ...) TG_PRINTF(1, 2);
/* "tgrad [command]: <sentence>" and where to read on; `command` may be NULL; returns CLI_USAGE. */
int cli_usage(const char *command, const char *format, ...) TG_PRINTF(2, 3);

/* A failure that the command cannot go on after ends the program at once: streams are flushed, and
 * the system takes back the rest. */
_Noreturn void cli_exit(int code);
_Noreturn void cli_die(const char *format, ...) TG_PRINTF(1, 2); /* as after cli_fail */
_Noreturn void cli_misuse(const char *command, const char *format, ...)
    TG_PRINTF(2, 3); /* as after cli_usage */
/* Unless `code` is CLI_OK; why was printed. */
void cli_require(int code);
/* Unless `status` is TG_OK; prints the last error of the context that was opened last. */
void cli_check(tg_status status);

/* While `catches`, the first SIGINT or SIGTERM only sets cli_signal; a second one ends the process.
 */
extern volatile sig_atomic_t cli_signal;
void cli_catch_signals(bool catches);

/* Where a failure does not end the command, it is returned. */
#define CLI_CALL(call)                                                                             \
    do {                                                                                           \
        const tg_status status_ = (call);                                                          \
        if (status_ != TG_OK) {                                                                    \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* Whether this process prints for all: it is the only one or rank 0. */
bool cli_is_first(void);

/* The GPU to compute on: that of the environment variable TGRAD_DEVICE or, of several ranks, the
 * one with the rank's number on its machine. -1: the first one, or none. */
int cli_device(const cli_common *common);

/* A context for `common`: threads, backend (only if the command names one or `choose` is set) and a
 * log to stderr. */
tg_context *cli_open_context(const cli_common *common, bool choose);
/* The same for `command`, which computes on arrays in host memory: cpu unless ref is asked for; a
 * device is wrong usage. */
tg_context *cli_open_host_context(const char *command, const cli_common *common);

/* The chosen backend as reports name it: "cpu", and with its arithmetic where that can be chosen,
 * "cuda (tf32)". */
enum { CLI_BACKEND_TEXT = 64 };
const char *cli_backend_text(const tg_context *ctx, char text[CLI_BACKEND_TEXT]);
#define CLI_BACKEND(ctx) cli_backend_text(ctx, (char[CLI_BACKEND_TEXT]){0})

bool cli_is_folder(const char *path);

/* Writes a file beside `path` and renames it, so that a reader sees all of it or the old file. A
 * device or a pipe is written in place. CLI_FAILED after a message. */
int cli_write_file(const char *path, const void *bytes, size_t size);
/* Contexts created later show only warnings and errors of the library, no notes. */
void cli_drop_notes(void);
/* Contexts created later send their messages of every level to `log`; NULL: to cli_log, which
 * prints those from level info. */
void cli_listen(tg_log_fn log);
void cli_log(void *user, tg_log_level level, const char *message);
/* Refuses to write `output` over the file that is read, NULL: none. */
void cli_keep_file(const char *input, const char *output);

/* ---- JSON: values never fail (the program ends when memory does). ---- */

json_t *cli_json_object(void);
json_t *cli_json_array(void);
json_t *cli_json_text(const char *text); /* null for NULL; invalid UTF-8 becomes U+FFFD */
json_t *cli_json_real(double value);     /* null for NaN and infinities */
json_t *cli_json_size(size_t value);
/* The reverse: NaN for NULL and for values that are no number. */
static inline double cli_json_number(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
json_t *cli_json_integer(int64_t value);
json_t *cli_json_reals(const double *value, int64_t count);
json_t *cli_json_words(const char *text, const char *separator); /* "a b" -> ["a", "b"] */
/* Puts `value` in and gives it away. */
void cli_json_set(json_t *object, const char *key, json_t *value);
/* Members of an object: cli_json_put(object, KV("name", name), KV("steps", 3)), and of a new one. A
 * value is text, a number or a json_t; conditions, which are integers in C, need json_boolean. */
json_t *cli_json_members(json_t *object, ...);
json_t *cli_json_itself(json_t *value);
#define cli_json_put(object, ...) (void)cli_json_members(object, __VA_ARGS__, (char *)NULL)
#define cli_json_new(...)         cli_json_members(cli_json_object(), __VA_ARGS__, (char *)NULL)
/* clang-format off */
#define KV(key, value) (const char *)(key), _Generic((value), \
        char *: cli_json_text, const char *: cli_json_text, double: cli_json_real, \
        size_t: cli_json_size, json_t *: cli_json_itself, default: cli_json_integer)(value)
/* clang-format on */
void cli_json_append(json_t *array, json_t *value);
/* "backend" and, where it can be chosen, "math". */
void cli_json_set_backend(json_t *object, const tg_context *ctx);
/* "l2" and "h1" with their quantiles; of several channels also "l2_channels" and "h1_channels". */
void cli_json_set_errors(json_t *object, const tg_test_errors *errors);
/* Calls `take` with every line of a file in a folder, NULL for one that is no JSON; without the
 * file never. */
void cli_json_lines(const char *folder, const char *file,
                    void (*take)(const json_t *line, void *to), void *to);
/* Prints the object on stdout and gives it away. */
void cli_json_print(json_t *object);

/* Prints objects as a table (table.c), with columns "title:member format|..": a title ends with '>'
 * if its column is aligned to the right (numbers); the member is a path as "ms.step"; the format is
 * f or g with a number of digits, % likewise of a share, B for bytes, t for seconds, ?yes/no for a
 * condition, and missing for text and integers. What is null or missing shows as '-', or as nan if
 * the format ends with '!'. */
void cli_print_rows(const json_t *rows, const char *columns);

#endif

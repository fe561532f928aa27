/* Streams, messages, the context of a command and JSON. */
#define _DEFAULT_SOURCE
#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "screen_line.h"

void cli_guard_streams(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
            /* The lowest free descriptor is fd itself. Opened the wrong way round, so that reading
             * or writing still fails as on a closed one. */
            if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) {
                return;
            }
        }
    }
}

int cli_close_stdout(int code) {
    errno = 0;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    int reason = errno;
    if (fclose(stdout) != 0 && !lost) {
        lost = true;
        reason = errno;
    }
    if (!lost || code != CLI_OK) {
        return code;
    }
    return cli_fail("cannot write to standard output%s%s", reason ? ": " : "",
                    reason ? strerror(reason) : "");
}

/* One line; it may hold names from hostile files, so it is cleaned. */
static void print_message(const char *prefix, const char *format, va_list args) TG_PRINTF(2, 0);

static void print_message(const char *prefix, const char *format, va_list args) {
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    char *clean = cli_clean_text(text, 0);
    cli_wipe_line();
    fprintf(stderr, "%s: %s\n", prefix, clean);
    free(clean);
}

void cli_say(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    CLI_FREED char *clean = cli_clean_text(text, 0);
    puts(clean);
}

int cli_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_message("tgrad", format, args);
    va_end(args);
    return CLI_FAILED;
}

void cli_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_message("tgrad", format, args);
    va_end(args);
    cli_exit(CLI_FAILED);
}

void cli_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_message("tgrad: warning", format, args);
    va_end(args);
}

int cli_fail_status(const tg_context *ctx, tg_status status) {
    const char *sentence = ctx ? tg_context_error(ctx) : "";
    return cli_fail("%s", *sentence ? sentence : tg_status_name(status));
}

int cli_fail_data(const tg_context *ctx, tg_status status, const char *options) {
    const int code = cli_fail_status(ctx, status);
    if (strstr(tg_context_error(ctx), "data.x_name") ||
        strstr(tg_context_error(ctx), "data.fields") ||
        strstr(tg_context_error(ctx), "data.order")) {
        cli_fail("here the keys of section data are the options %s", options);
    }
    return code;
}

int cli_code(const tg_context *ctx, tg_status status) {
    return status == TG_OK ? CLI_OK : cli_fail_status(ctx, status);
}

void cli_exit(int code) {
    fflush(NULL);
    _exit(code);
}

void cli_require(int code) {
    if (code != CLI_OK) {
        cli_exit(code);
    }
}

static const tg_context *opened; /* last */

void cli_check(tg_status status) {
    cli_require(cli_code(opened, status));
}

volatile sig_atomic_t cli_signal;

static void note_signal(int number) {
    cli_signal = number;
}

void cli_catch_signals(bool catches) {
    const struct sigaction action = {.sa_handler = catches ? note_signal : SIG_DFL,
                                     .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void TG_PRINTF(2, 0) print_usage(const char *command, const char *format, va_list args) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "tgrad%s%s", command ? " " : "", command ? command : "");
    print_message(prefix, format, args);
    fprintf(stderr, "Try '%s --help'.\n", prefix);
}

int cli_usage(const char *command, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_usage(command, format, args);
    va_end(args);
    return CLI_USAGE;
}

void cli_misuse(const char *command, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_usage(command, format, args);
    va_end(args);
    cli_exit(CLI_USAGE);
}

void cli_log(void *user, tg_log_level level, const char *message) {
    (void)user;
    char *clean = cli_clean_text(message, 0);
    cli_wipe_line();
    fprintf(stderr, "tgrad: %s%s\n",
            level == TG_LOG_WARN    ? "warning: "
            : level == TG_LOG_ERROR ? "error: "
                                    : "",
            clean);
    free(clean);
}

bool cli_is_first(void) {
    return tg_comm_get_launch().rank == 0;
}

/* Ranks that may run on every core of the machine share them; 0: all that this one may use, as
 * where the launcher has given each its own. */
static int share_of_threads(void) {
    const tg_comm_launch launch = tg_comm_get_launch();
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    if (launch.local_ranks < 2 || sched_getaffinity(0, sizeof set, &set) != 0 ||
        CPU_COUNT(&set) < online) {
        return 0;
    }
    return online > launch.local_ranks ? (int)(online / launch.local_ranks) : 1;
}

/* Whether the backend that is named, or would be chosen, computes on a GPU. */
static bool wants_gpu(const cli_common *common) {
    bool wants = false;
    for (int i = 0; i < tg_backend_count(); i++) {
        tg_backend_info info;
        wants = wants || (tg_backend_describe(NULL, i, &info) == TG_OK && info.available &&
                          strcmp(info.name, "cuda") == 0);
    }
    return common->backend ? strcmp(common->backend, "cuda") == 0 : wants;
}

int cli_device(const cli_common *common) {
    const tg_comm_launch launch = tg_comm_get_launch();
    const char *wish = getenv("TGRAD_DEVICE");
    if ((!wish && launch.ranks == 1) || !wants_gpu(common)) {
        return -1;
    }
    return wish                     ? (int)strtol(wish, NULL, 10)
           : launch.local_rank >= 0 ? launch.local_rank
                                    : launch.rank;
}

/* ---- how threads wait ---- */

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

/* Threads that spin while they wait are the fastest on a free machine and ruinous on a busy one,
 * where the spinner holds the core that the awaited thread needs: on two cores with a load of 12, a
 * step of the preset burgers took 0.97 s with spinning threads and 0.32 s with passive ones.
 * OpenMP's run time reads its policy from the environment when it is loaded, and has no call for
 * it; so if running threads occupy at least half of the cores, the program starts itself again with
 * passive waiting. A policy set by the user (OMP_WAIT_POLICY, GOMP_SPINCOUNT) is kept. */
static void choose_waiting(void) {
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

/* ---- contexts ---- */

static bool drops_notes;
static tg_log_fn listener;

void cli_drop_notes(void) {
    drops_notes = true;
}

void cli_listen(tg_log_fn log) {
    listener = log;
}

tg_context *cli_open_context(const cli_common *common, bool choose) {
    if (choose && common->threads != 1) {
        choose_waiting();
    }
    tg_context_config config = tg_context_config_default();
    config.threads = common->threads > 0 ? (int)common->threads : share_of_threads();
    config.math = strcmp(common->math, "fp32") == 0 ? TG_MATH_FP32 : TG_MATH_TF32;
    config.log = !cli_is_first() ? NULL : listener ? listener : cli_log;
    config.log_level = listener ? TG_LOG_DEBUG : drops_notes ? TG_LOG_WARN : config.log_level;
    config.device = choose || common->backend ? cli_device(common) : -1;
    tg_context *ctx = NULL;
    tg_status status = tg_context_create(&config, &ctx);
    if (status == TG_OK && (choose || common->backend)) {
        status = tg_backend_select(ctx, common->backend);
    }
    if (status != TG_OK) {
        cli_fail_status(ctx, status);
        if (config.device > 0 && !getenv("TGRAD_DEVICE")) {
            cli_fail("ranks of a machine use its GPUs in turn: start no more than it has, or let "
                     "them share one with TGRAD_DEVICE=0");
        }
        cli_exit(CLI_FAILED);
    }
    opened = ctx;
    return ctx;
}

tg_context *cli_open_host_context(const char *command, const cli_common *common) {
    cli_common host = *common;
    host.backend = host.backend ? host.backend : "cpu";
    if (strcmp(host.backend, "cuda") == 0) {
        cli_misuse(command, "works in host memory: --backend is ref or cpu, not cuda");
    }
    return cli_open_context(&host, true);
}

const char *cli_backend_text(const tg_context *ctx, char text[CLI_BACKEND_TEXT]) {
    const char *math = tg_backend_math(ctx);
    snprintf(text, CLI_BACKEND_TEXT, "%s%s%s%s", tg_backend_name(ctx), *math ? " (" : "", math,
             *math ? ")" : "");
    return text;
}

bool cli_is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

static bool write_stream(FILE *file, const void *bytes, size_t size, bool syncs) {
    const bool is_written = fwrite(bytes, 1, size, file) == size &&
                            (!syncs || (fflush(file) == 0 && fsync(fileno(file)) == 0));
    const int reason = errno;
    const bool is_closed = fclose(file) == 0;
    errno = is_written ? errno : reason;
    return is_written && is_closed;
}

/* Makes the name of a file durable (its content already is). */
static void sync_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) {
        slash[1] = '\0';
    }
    const int fd = open(slash ? path : ".", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
}

int cli_write_file(const char *path, const void *bytes, size_t size) {
    struct stat facts;
    const bool in_place = stat(path, &facts) == 0 && !S_ISREG(facts.st_mode);
    char *beside = cli_format("%s.%ld.tmp", path, (long)getpid());
    const char *target = in_place ? path : beside;
    FILE *file = fopen(target, "wb");
    bool is_good = file && write_stream(file, bytes, size, !in_place);
    is_good = is_good && (in_place || rename(beside, path) == 0);
    const int reason = errno;
    if (!is_good && file && !in_place) {
        remove(beside);
    }
    if (is_good && !in_place) {
        sync_folder(beside);
    }
    free(beside);
    return is_good ? CLI_OK : cli_fail("cannot write %s: %s", path, strerror(reason));
}

void cli_keep_file(const char *input, const char *output) {
    struct stat in, out;
    if (input && stat(input, &in) == 0 && stat(output, &out) == 0 && in.st_dev == out.st_dev &&
        in.st_ino == out.st_ino && S_ISREG(in.st_mode)) {
        cli_die("%s: it is an input and would be overwritten; choose another output", output);
    }
}

json_t *cli_json_object(void) {
    return cli_need(json_object());
}

json_t *cli_json_array(void) {
    return cli_need(json_array());
}

/* A copy of text with every byte that is not part of valid UTF-8 replaced by U+FFFD. */
static char *valid_utf8(const char *text) {
    char *valid = cli_need(malloc(3 * strlen(text) + 1));
    size_t used = 0;
    while (*text) {
        int length = cli_utf8_length(text);
        memcpy(valid + used, length ? text : "\xEF\xBF\xBD", length ? (size_t)length : 3);
        used += length ? (size_t)length : 3;
        text += length ? length : 1;
    }
    valid[used] = '\0';
    return valid;
}

json_t *cli_json_text(const char *text) {
    if (!text) {
        return json_null();
    }
    char *valid = valid_utf8(text);
    json_t *value = cli_need(json_string(valid));
    free(valid);
    return value;
}

json_t *cli_json_real(double value) {
    return cli_need(isfinite(value) ? json_real(value) : json_null());
}

json_t *cli_json_integer(int64_t value) {
    return cli_need(json_integer(value));
}

json_t *cli_json_size(size_t value) {
    return cli_json_integer((int64_t)value);
}

json_t *cli_json_reals(const double *value, int64_t count) {
    json_t *array = cli_json_array();
    for (int64_t i = 0; i < count; i++) {
        cli_json_append(array, cli_json_real(value[i]));
    }
    return array;
}

json_t *cli_json_words(const char *text, const char *separator) {
    json_t *words = cli_json_array();
    const size_t skip = strlen(separator);
    while (*text) {
        const char *end = strstr(text, separator);
        size_t length = end ? (size_t)(end - text) : strlen(text);
        if (length > 0) {
            char *word = cli_need(strndup(text, length));
            cli_json_append(words, cli_json_text(word));
            free(word);
        }
        text += length + (end ? skip : 0);
    }
    return words;
}

void cli_json_set(json_t *object, const char *key, json_t *value) {
    char *valid = valid_utf8(key);
    if (json_object_set_new(object, valid, value) != 0) {
        cli_need(NULL);
    }
    free(valid);
}

json_t *cli_json_itself(json_t *value) {
    return value;
}

json_t *cli_json_members(json_t *object, ...) {
    va_list args;
    va_start(args, object);
    for (const char *key; (key = va_arg(args, const char *));) {
        cli_json_set(object, key, va_arg(args, json_t *));
    }
    va_end(args);
    return object;
}

void cli_json_append(json_t *array, json_t *value) {
    if (json_array_append_new(array, value) != 0) {
        cli_need(NULL);
    }
}

void cli_json_set_backend(json_t *object, const tg_context *ctx) {
    const char *math = tg_backend_math(ctx);
    cli_json_set(object, "backend", cli_json_text(tg_backend_name(ctx)));
    if (*math) {
        cli_json_set(object, "math", cli_json_text(math));
    }
}

void cli_json_set_errors(json_t *object, const tg_test_errors *errors) {
    cli_json_set(object, "l2", cli_json_real(errors->l2));
    cli_json_set(object, "h1", cli_json_real(errors->h1));
    cli_json_set(object, "l2_quantiles", cli_json_reals(errors->l2_quantiles, TG_QUANTILES));
    cli_json_set(object, "h1_quantiles", cli_json_reals(errors->h1_quantiles, TG_QUANTILES));
    if (errors->channels > 1) {
        cli_json_set(object, "l2_channels", cli_json_reals(errors->l2_channels, errors->channels));
        cli_json_set(object, "h1_channels", cli_json_reals(errors->h1_channels, errors->channels));
    }
}

void cli_json_lines(const char *folder, const char *file,
                    void (*take)(const json_t *line, void *to), void *to) {
    char *path = cli_format("%s/%s", folder, file), *line = NULL;
    size_t room = 0;
    FILE *stream = fopen(path, "r");
    while (stream && getline(&line, &room, stream) > 0) {
        json_t *value = json_loads(line, 0, NULL);
        take(value, to);
        json_decref(value);
    }
    if (stream) {
        fclose(stream);
    }
    free(line);
    free(path);
}

void cli_json_print(json_t *object) {
    /* A failed write marks the stream, and cli_close_stdout reports it. */
    if (json_dumpf(object, stdout, JSON_INDENT(2)) != 0 && !ferror(stdout)) {
        cli_need(NULL);
    }
    putchar('\n');
    json_decref(object);
}

/* What a terminal shows of a training: one line that is redrawn and never wraps, at any width and
 * after a change of it, and a line per epoch that is broken where the terminal ends. The program
 * runs on a pseudo-terminal, whose bytes are followed column by column. */
#define _GNU_SOURCE
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/screen_line.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/tgrad.h"

/* ---- fitting ---- */

TEST(a_line_fits_any_width) {
    const cli_part parts[] = {
        {.text = "epoch 12/500"},          {.is_bar = true, .rank = 4},
        {.text = "120/1000", .rank = 1},   {.text = "loss 0.01234", .rank = 2},
        {.text = "12 ms/step", .rank = 5}, {.text = "1 min left", .rank = 3}};
    char text[CLI_SCREEN_LINE];
    for (int columns = -1; columns < 600; columns++) {
        cli_fit_line(parts, 6, 0.5, columns, text);
        assert_true((int)strlen(text) <= (columns > 2 ? columns - 1 : 1));
        assert_memory_equal(text, parts[0].text, strlen(text) < 12 ? strlen(text) : 12);
    }
    assert_string_equal(cli_fit_line(parts, 6, 0.5, 100, text),
                        "epoch 12/500  [###############...............]  120/1000  loss 0.01234  "
                        "12 ms/step  1 min left");
    assert_string_equal(cli_fit_line(parts, 6, 0.25, 80, text),
                        "epoch 12/500  [###............]  120/1000  loss 0.01234  12 ms/step  "
                        "1 min left");
    assert_string_equal(cli_fit_line(parts, 6, 1.0, 61, text),
                        "epoch 12/500  [########]  120/1000  loss 0.01234  1 min left");
    assert_string_equal(cli_fit_line(parts, 6, 1.0, 60, text),
                        "epoch 12/500  120/1000  loss 0.01234  1 min left");
    assert_string_equal(cli_fit_line(parts, 6, 1.0, 40, text),
                        "epoch 12/500  120/1000  loss 0.01234");
    assert_string_equal(cli_fit_line(parts, 6, 1.0, 9, text), "epoch 12");
}

/* ---- a terminal ---- */

typedef struct terminal {
    int fd;
    pid_t child;
    int columns;
    char line[1024]; /* since the last return */
    size_t used;
    int redraws, epochs; /* since the size was set */
} terminal;

static void write_config(const char *path) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "fno: {n_modes: [6, 6], hidden_channels: 12, n_layers: 2}\n"
            "opt: {name: adam, n_epochs: 1000000, save_every: 1000000}\n"
            "data: {root: %s, set: made, train_file: %s, train_resolution: 16,\n"
            "  test_resolutions: [16, 8, 16], batch_size: 1}\n",
            test_path(""), test_path("made.h5"));
    assert_int_equal(fclose(file), 0);
}

static void start(terminal *t, const char *config, const char *folder) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)t->columns};
    t->child = forkpty(&t->fd, NULL, NULL, &size);
    assert_true(t->child >= 0);
    if (t->child == 0) {
        execl(TG_PROGRAM, "tgrad", "train", config, "--run", folder, "--threads", "1",
              (char *)NULL);
        _exit(127);
    }
}

/* A line that ends is that of an epoch (or of the settings), and none of the redrawn ones. */
static void end_line(terminal *t) {
    t->line[t->used] = '\0';
    const bool is_epoch = strncmp(t->line, "epoch", 5) == 0;
    if (is_epoch && !strstr(t->line, "  lr ")) {
        fail_msg("the redrawn line became a line of its own: '%s'", t->line);
    }
    assert_true(!is_epoch || t->used <= 100);
    t->epochs += is_epoch;
}

static void follow(terminal *t, const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const char c = bytes[i];
        if (c == '\n') {
            end_line(t);
        }
        if (c == '\r' && i + 1 < size && bytes[i + 1] == '\n') {
            continue; /* the terminal's own way to end a line */
        }
        if (c == '\r' || c == '\n') {
            t->used = 0;
        } else if (c == '\033') {
            t->redraws++;
            i += i + 2 < size ? 2 : 0; /* [K */
        } else {
            t->line[t->used++] = c;
            t->line[t->used] = '\0';
            const bool is_ours = strncmp(t->line, "epoch", 5) == 0 || t->line[5] == ' ';
            if (is_ours && (int)t->used > t->columns) {
                fail_msg("%d columns: the line wraps: '%s'", t->columns, t->line);
            }
        }
    }
}

/* Reads what comes within `milliseconds`; 0: nothing. */
static size_t read_some(terminal *t, int milliseconds, char *bytes, size_t capacity) {
    struct pollfd ready = {.fd = t->fd, .events = POLLIN};
    if (poll(&ready, 1, milliseconds) <= 0) {
        return 0;
    }
    const ssize_t got = read(t->fd, bytes, capacity);
    return got > 0 ? (size_t)got : 0;
}

/* Watches until the line was redrawn a few times and epochs have ended. */
static void watch(terminal *t) {
    char bytes[4096];
    t->redraws = t->epochs = 0;
    for (int quiet = 0; (t->redraws < 8 || t->epochs < 2) && quiet < 300;) {
        const size_t got = read_some(t, 100, bytes, sizeof bytes);
        quiet = got > 0 ? 0 : quiet + 1;
        follow(t, bytes, got);
    }
    assert_true(t->redraws >= 8 && t->epochs >= 2);
}

/* While the program is stopped, so that no line is half-written; what it had measured before is
 * passed over. */
static void resize(terminal *t, int columns) {
    char bytes[4096];
    int status = 0;
    assert_int_equal(kill(t->child, SIGSTOP), 0);
    assert_int_equal(waitpid(t->child, &status, WUNTRACED), t->child);
    assert_true(WIFSTOPPED(status));
    for (size_t got; (got = read_some(t, 50, bytes, sizeof bytes)) > 0;) {
        follow(t, bytes, got);
    }
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    assert_int_equal(ioctl(t->fd, TIOCSWINSZ, &size), 0);
    assert_int_equal(kill(t->child, SIGCONT), 0);
    const int before = t->columns;
    t->columns = before > columns ? before : columns;
    t->redraws = 0;
    while (t->redraws < 3) {
        const size_t got = read_some(t, 30000, bytes, sizeof bytes);
        assert_true(got > 0);
        follow(t, bytes, got);
    }
    t->columns = columns;
    t->used = (int)t->used > columns ? 0 : t->used;
}

TEST(training_fits_the_terminal) {
    tg_context *ctx = NULL;
    char config[1024], folder[1024];
    const tg_shape train = SET_SHAPE(64, 16, 16), test = SET_SHAPE(2, 16, 16),
                   coarse = SET_SHAPE(2, 8, 8);
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    set_write(ctx, "made.h5", TG_F32, &train, &train);
    set_write(ctx, "made_test_16.h5", TG_F32, &test, &test);
    set_write(ctx, "made_test_8.h5", TG_F32, &coarse, &coarse);
    tg_context_destroy(&ctx);
    snprintf(config, sizeof config, "%s", test_path("config.yaml"));
    snprintf(folder, sizeof folder, "%s", test_path("run"));
    write_config(config);

    terminal t = {.columns = 80};
    start(&t, config, folder);
    watch(&t);
    static const int widths[] = {60, 40, 100, 40, 132};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        resize(&t, widths[i]);
        watch(&t);
    }
    int status = 0;
    char bytes[4096];
    assert_int_equal(kill(t.child, SIGTERM), 0);
    while (read_some(&t, 30000, bytes, sizeof bytes) > 0) {
    }
    assert_int_equal(waitpid(t.child, &status, 0), t.child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    close(t.fd);
}

int main(void) {
    return t_run_tests(NULL, test_files_end);
}

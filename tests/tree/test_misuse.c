/* Wrong calls: every public function with each pointer argument NULL in turn, each tensor in a
 * wrong place or of a wrong dtype and shape, and each number out of range, then calls in an order
 * that makes no sense. None may crash or hang; those that return a status say which argument was
 * NULL, and leave NULL where they would have made something.
 *
 * The table comes from the headers (misuse/calls.awk), so that a function added there is in it.
 * Each call is made in a child of its own: a crash is reported by the name of the function. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "misuse/world.h"
#include "support/files.h"
#include "support/sets.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { SECONDS = 20 }; /* a call that takes longer hangs */

typedef enum expectation { MAY_PASS, FAILS, REFUSED, REFUSED_WITH_SENTENCE } expectation;

typedef struct wrong_call {
    const char *function, *argument, *value;
    expectation expected;
    tg_status (*call)(void);
} wrong_call;

/* How a child ends. */
enum { GOOD, PASSED, NOT_REFUSED, NO_SENTENCE, SOMETHING_MADE };

static const char *const complaints[] = {
    [PASSED] = "is taken, though its place, dtype or shape is wrong",
    [NOT_REFUSED] = "is not refused with TG_E_ARGUMENT",
    [NO_SENTENCE] = "leaves no sentence that names the argument",
    [SOMETHING_MADE] = "fails, but leaves something in its result",
};

static void expect_nothing_made(tg_status status, const void *made) {
    if (status != TG_OK && made) {
        _exit(SOMETHING_MADE);
    }
}

/* Text that is handed out can be read. */
static void read_text(const char *text) {
    volatile size_t length = text ? strlen(text) : 0;
    (void)length;
}

#include "calls.inc"
#include "optim/optim.h"

static int make_call(const wrong_call *wrong) {
    world.ctx->error[0] = '\0';
    const tg_status status = wrong->call();
    if (wrong->expected == FAILS) { /* with some error and a sentence */
        return status == TG_OK ? PASSED : world.ctx->error[0] ? GOOD : NO_SENTENCE;
    }
    if (wrong->expected != MAY_PASS && status != TG_E_ARGUMENT) {
        return NOT_REFUSED;
    }
    if (wrong->expected == REFUSED_WITH_SENTENCE &&
        !strstr(tg_context_error(world.ctx), wrong->argument)) {
        return NO_SENTENCE;
    }
    return GOOD;
}

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/* Runs it in a child; false, with a line on stderr, if something is wrong with the outcome. */
static bool passes(const wrong_call *wrong) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < COUNT(crashes); i++) {
            signal(crashes[i], SIG_DFL); /* cmocka catches them */
        }
        alarm(SECONDS);
        _exit(make_call(wrong));
    }
    int end = 0;
    assert_int_equal(waitpid(child, &end, 0), child);
    if (WIFEXITED(end) && WEXITSTATUS(end) == GOOD) {
        return true;
    }
    print_error("%s with %s = %s ", wrong->function, wrong->argument, wrong->value);
    if (WIFSIGNALED(end)) {
        print_error("%s (signal %d)\n", WTERMSIG(end) == SIGALRM ? "hangs" : "crashes",
                    WTERMSIG(end));
    } else if (WEXITSTATUS(end) < (int)COUNT(complaints)) {
        print_error("%s\n", complaints[WEXITSTATUS(end)]);
    } else {
        print_error("ends the process\n");
    }
    return false;
}

static int check_all(const wrong_call *calls, size_t count) {
    int failures = 0;
    for (size_t i = 0; i < count; i++) {
        failures += !passes(&calls[i]);
    }
    return failures;
}

TEST(test_wrong_arguments) {
    const int failures = check_all(wrong_calls, COUNT(wrong_calls));
    if (failures) {
        fail_msg("%d of %zu wrong calls", failures, COUNT(wrong_calls));
    }
}

/* ---- the right calls in a wrong order ---- */

static tg_status run_without_start(void) {
    tg_train_end end;
    return tg_trainer_run(world.trainer, NULL, &end);
}

static tg_status start_over_a_run(void) {
    return tg_trainer_start(world.trainer);
}

static tg_status run_after_failed_resume(void) {
    bool resumed = true;
    tg_train_end end;
    if (tg_trainer_resume(world.trainer, world.archive_path, &resumed) == TG_OK || resumed) {
        return TG_OK;
    }
    return tg_trainer_run(world.trainer, NULL, &end);
}

static tg_status forward_unprepared(void) {
    tg_fno *fno = NULL;
    const tg_status status = tg_fno_create(world.ctx, &world.network, 1, &fno);
    return status == TG_OK ? tg_fno_forward(fno, &world.x, &world.x) : TG_OK;
}

static tg_status prepare_an_outline(void) {
    tg_fno *fno = NULL;
    const tg_status status = tg_fno_outline(world.ctx, &world.network, &fno);
    return status == TG_OK ? tg_fno_prepare(fno, 2, world.grid, true) : TG_OK;
}

static tg_status backward_without_forward(void) {
    return tg_fno_backward(world.fno, &world.x, &world.sink);
}

static tg_status backward_twice(void) {
    tg_status status = tg_fno_forward(world.fno, &world.x, &world.x);
    status = status == TG_OK ? tg_fno_backward(world.fno, &world.x, &world.sink) : TG_OK;
    return status == TG_OK ? tg_fno_backward(world.fno, &world.x, &world.sink) : TG_OK;
}

static tg_status backward_of_inference(void) {
    tg_status status = tg_fno_prepare(world.fno, 2, world.grid, false);
    status = status == TG_OK ? tg_fno_forward(world.fno, &world.x, &world.x) : TG_OK;
    return status == TG_OK ? tg_fno_backward(world.fno, &world.x, &world.sink) : TG_OK;
}

static tg_status backward_without_loss(void) {
    const tg_status status = tg_fno_forward(world.fno, &world.x, &world.x);
    return status == TG_OK ? tg_fno_backward(world.fno, NULL, &world.sink) : TG_OK;
}

static tg_status step_backward_first(void) {
    return tg_step_backward(world.step);
}

static tg_status step_backward_twice(void) {
    tg_status status = tg_step_forward(world.step, &world.x, &world.x);
    status = status == TG_OK ? tg_step_backward(world.step) : TG_OK;
    return status == TG_OK ? tg_step_backward(world.step) : TG_OK;
}

static tg_status apply_nothing(void) {
    return tg_optim_apply(world.optim, 0, &world.weight);
}

static tg_status update_unbound(void) {
    tg_optim *optim = NULL;
    if (tg_optim_create(world.ctx, &world.setup, &optim) != TG_OK) {
        return TG_OK;
    }
    const tg_grad_sink sink = tg_optim_sink(optim);
    const tg_status status = tg_fno_forward(world.fno, &world.x, &world.x);
    return status == TG_OK ? tg_fno_backward(world.fno, &world.x, &sink) : TG_OK;
}

static tg_status update_not_lent(void) {
    tg_optim *optim = NULL;
    tg_optim_setup setup = world.setup;
    setup.shares_workspace = true;
    if (tg_optim_create(world.ctx, &setup, &optim) != TG_OK) {
        return TG_OK;
    }
    return tg_optim_step_gradient(optim, &world.factored, &world.spectral_weight);
}

static tg_status project_before_refresh(void) {
    return tg_projector_project(world.projector, &world.gradient, 1.0, 0.0, &world.small);
}

static tg_status back_before_refresh(void) {
    return tg_projector_back(world.projector, &world.small, 1.0, 0.0, &world.whole);
}

static tg_status another_backend(void) {
    return tg_backend_select(world.ctx, "ref");
}

static tg_status use_of_what_failed(void) {
    tg_fno *fno = NULL;
    const tg_fno_config nothing = {0};
    if (tg_fno_create(world.ctx, &nothing, 1, &fno) == TG_OK) {
        return TG_OK;
    }
    return tg_fno_forward(fno, &world.x, &world.x);
}

TEST(test_wrong_order) {
    static const wrong_call calls[] = {
#define ROW(call) {#call, "order", "wrong", REFUSED, call}
        ROW(run_without_start),   ROW(start_over_a_run),      ROW(run_after_failed_resume),
        ROW(forward_unprepared),  ROW(prepare_an_outline),    ROW(backward_without_forward),
        ROW(backward_twice),      ROW(backward_of_inference), ROW(backward_without_loss),
        ROW(step_backward_first), ROW(step_backward_twice),   ROW(apply_nothing),
        ROW(update_unbound),      ROW(update_not_lent),       ROW(project_before_refresh),
        ROW(back_before_refresh), ROW(another_backend),       ROW(use_of_what_failed),
#undef ROW
    };
    assert_int_equal(check_all(calls, COUNT(calls)), 0);
}

static int set_up(void **state) {
    (void)state;
    world_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    world_end();
    return 0;
}

/* --list: the functions of the table, for test_exports.sh. */
int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < COUNT(functions); i++) {
            puts(functions[i]);
        }
        return 0;
    }
    return t_run_tests(set_up, tear_down);
}

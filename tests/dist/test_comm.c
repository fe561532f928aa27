/* Communicators: every operation on every transport, against sums that are exact; what becomes of
 * ranks that are late, leave, or do something else.
 *
 * With the argument --world it checks the operations on the ranks of the launcher instead, which
 * test_mpi_comm.sh does with mpirun. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"
#include "dist/comm.h"
#include "support/cmocka.h"
#include "support/fake_device.h"
#include "support/rank_threads.h"
#include "tgrad/tgrad.h"

enum { MOST_RANKS = 4, MOST = 1025 };

static const int64_t sizes[] = {1, 3, 5, 33, MOST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static tg_tensor wrap(tg_dtype dtype, int64_t n, void *data) {
    return (tg_tensor){.dtype = dtype, .shape = {1, {n}}, .data = data};
}

/* ---- the operations; what they return is counted, since threads cannot end a test ---- */

/* Small integers, so that any order of summation gives the same. */
static double value_of(int rank, int64_t i) {
    return (double)((rank + 1) * (i % 97) - 11 * rank);
}

static double expected(int ranks, tg_comm_op op, int64_t i) {
    double result = value_of(0, i);
    for (int r = 1; r < ranks; r++) {
        result = op == TG_COMM_SUM ? result + value_of(r, i) : fmax(result, value_of(r, i));
    }
    return result;
}

static double read(tg_dtype dtype, const void *x, int64_t i) {
    const double *wide = x;
    const float *narrow = x;
    return dtype == TG_F64 ? wide[i] : (double)narrow[i];
}

static void fill(tg_dtype dtype, int rank, int64_t n, void *x) {
    double *wide = x;
    float *narrow = x;
    for (int64_t i = 0; i < n; i++) {
        if (dtype == TG_F64) {
            wide[i] = value_of(rank, i);
        } else {
            narrow[i] = (float)value_of(rank, i);
        }
    }
}

static int check_reductions(tg_comm *comm, tg_comm_op op, tg_dtype dtype, int64_t n) {
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm), owner = ranks / 2;
    double x[MOST];
    int errors = 0;
    const tg_tensor values = wrap(dtype, n, x);
    fill(dtype, rank, n, x);
    errors += tg_comm_all_reduce(comm, op, &values) != TG_OK;
    for (int64_t i = 0; i < n; i++) {
        errors += read(dtype, x, i) != expected(ranks, op, i);
    }
    fill(dtype, rank, n, x);
    errors += tg_comm_reduce(comm, op, owner, &values) != TG_OK;
    for (int64_t i = 0; rank == owner && i < n; i++) {
        errors += read(dtype, x, i) != expected(ranks, op, i);
    }
    fill(dtype, rank, n, x);
    errors += tg_comm_reduce_scatter(comm, op, &values) != TG_OK;
    const tg_range part = tg_partition(n, 1, ranks, rank);
    for (int64_t i = part.begin; i < part.end; i++) {
        errors += read(dtype, x, i) != expected(ranks, op, i);
    }
    return errors;
}

static int check_complex(tg_comm *comm) {
    float x[2 * 7];
    int errors = 0;
    const tg_tensor values = wrap(TG_C64, 7, x);
    fill(TG_F32, tg_comm_rank(comm), 14, x);
    errors += tg_comm_all_reduce(comm, TG_COMM_SUM, &values) != TG_OK;
    for (int64_t i = 0; i < 14; i++) {
        errors += (double)x[i] != expected(tg_comm_ranks(comm), TG_COMM_SUM, i);
    }
    errors += tg_comm_all_reduce(comm, TG_COMM_MAX, &values) != TG_E_DTYPE;
    return errors;
}

static int check_copies(tg_comm *comm, int64_t n) {
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm);
    int16_t x[MOST];
    int errors = 0;
    const tg_tensor values = wrap(TG_I16, n, x);
    for (int root = 0; root < ranks; root++) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = (int16_t)(rank == root ? i + root : -1);
        }
        errors += tg_comm_broadcast(comm, root, &values) != TG_OK;
        for (int64_t i = 0; i < n; i++) {
            errors += x[i] != (int16_t)(i + root);
        }
    }
    int64_t whole = 0;
    const tg_range part = tg_partition(n, 1, ranks, rank);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (int16_t)(i >= part.begin && i < part.end ? 3 * i : -1);
    }
    errors += tg_comm_all_gather(comm, &values) != TG_OK;
    for (int64_t i = 0; i < n; i++) {
        errors += x[i] != (int16_t)(3 * i);
    }
    for (int r = 0; r < ranks; r++) {
        errors += tg_partition(n, 1, ranks, r).begin != whole;
        whole = tg_partition(n, 1, ranks, r).end;
    }
    return errors + (whole != n);
}

/* What rank r sends in step s has n + r values that both ranks know. */
static int check_exchanges(tg_comm *comm, int64_t n) {
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm);
    int32_t sent[MOST + MOST_RANKS], received[MOST + MOST_RANKS];
    int errors = 0;
    for (int step = ranks > 1 ? 1 : 0; step < ranks; step++) {
        const int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        const tg_tensor out = wrap(TG_I32, n - 1 + rank, sent);
        const tg_tensor in = wrap(TG_I32, n - 1 + from, received);
        for (int64_t i = 0; i < n + MOST_RANKS; i++) {
            sent[i] = (int32_t)(1000 * rank + step + 7 * i);
            received[i] = -1;
        }
        errors += tg_comm_exchange(comm, to, &out, from, &in) != TG_OK;
        for (int64_t i = 0; i < n + MOST_RANKS; i++) {
            const int32_t wanted = i < n - 1 + from ? (int32_t)(1000 * from + step + 7 * i) : -1;
            errors += received[i] != wanted;
        }
    }
    return errors;
}

/* Sums of values of all magnitudes, twice: the same bits, on every rank. */
static int check_bits(tg_comm *comm) {
    enum { N = 513 };
    double x[2][N];
    int errors = 0;
    for (int run = 0; run < 2; run++) {
        const tg_tensor values = wrap(TG_F64, N, x[run]);
        for (int64_t i = 0; i < N; i++) {
            x[run][i] = sin((double)(i + 1) * (tg_comm_rank(comm) + 1)) * pow(10.0, i % 17 - 8.0);
        }
        errors += tg_comm_all_reduce(comm, TG_COMM_SUM, &values) != TG_OK;
    }
    errors += memcmp(x[0], x[1], sizeof x[0]) != 0;
    return errors + (tg_comm_check_same(comm, "sums", x[0], sizeof x[0]) != TG_OK);
}

static int check_agreement(tg_context *ctx, tg_comm *comm) {
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm);
    int errors = tg_comm_agree(comm, TG_OK) != TG_OK;
    if (ranks > 1) { /* the last two fail, or the last one of two */
        const int first = ranks > 2 ? ranks - 2 : 1;
        tg_status own = rank >= first ? tg_fail(ctx, TG_E_IO, "rank's own %d", rank) : TG_OK;
        char text[64];
        snprintf(text, sizeof text, "rank %d: rank's own %d", first, first);
        errors += tg_comm_get_info(comm).has_agreed;
        errors += tg_comm_agree(comm, own) != TG_E_IO || strcmp(tg_context_error(ctx), text) != 0;
        errors += !tg_comm_get_info(comm).has_agreed;
        own = tg_fail(ctx, TG_E_CONFIG, "all of them");
        errors += tg_comm_agree(comm, own) != TG_E_CONFIG ||
                  strcmp(tg_context_error(ctx), "all of them") != 0;
        errors += tg_comm_check_same(comm, "the seed", &rank, sizeof rank) != TG_E_CONFIG ||
                  !strstr(tg_context_error(ctx), "rank 1: the seed: not as on rank 0");
    }
    errors += tg_comm_check_same(comm, "the size", &ranks, sizeof ranks) != TG_OK;
    return errors;
}

static int check_operations(tg_context *ctx, tg_comm *comm) {
    int errors = 0;
    for (int i = 0; i < SIZES; i++) {
        for (int op = TG_COMM_SUM; op <= TG_COMM_MAX; op++) {
            errors += check_reductions(comm, (tg_comm_op)op, TG_F32, sizes[i]);
            errors += check_reductions(comm, (tg_comm_op)op, TG_F64, sizes[i]);
        }
        errors += check_copies(comm, sizes[i]) + check_exchanges(comm, sizes[i]);
    }
    errors += check_complex(comm) + check_bits(comm) + check_agreement(ctx, comm);
    errors += tg_comm_barrier(comm) != TG_OK;
    const tg_comm_stats stats = tg_comm_get_info(comm).stats;
    errors += stats.calls < 60 || stats.reduced < 1000 || stats.copied < 1000;
    errors += tg_comm_get_info(comm).local_ranks != tg_comm_ranks(comm); /* all on one machine */
    errors += tg_comm_get_info(comm).local_rank != tg_comm_rank(comm);
    return errors;
}

/* ---- ranks that are threads ---- */

typedef struct crew crew;

typedef struct member {
    const crew *crew;
    int rank;
    int errors;
} member;

struct crew {
    tg_comm_group *group;
    double timeout;
    int (*work)(tg_context *ctx, tg_comm *comm);
};

static void *be_rank(void *user) {
    member *m = user;
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    const tg_comm_config config = {.size = sizeof config, .timeout = m->crew->timeout};
    m->errors = 1;
    if (tg_context_create(NULL, &ctx) == TG_OK &&
        tg_comm_create_threads(ctx, m->crew->group, m->rank, &config, &comm) == TG_OK) {
        m->errors = m->crew->work(ctx, comm);
    }
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
    return NULL;
}

static void run_ranks(int ranks, double timeout, int (*work)(tg_context *ctx, tg_comm *comm)) {
    tg_context *ctx = NULL;
    crew c = {.timeout = timeout, .work = work};
    member members[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_comm_group_create(ctx, ranks, &c.group), TG_OK);
    for (int i = 0; i < ranks; i++) {
        members[i] = (member){.crew = &c, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, be_rank, &members[i]), 0);
    }
    for (int i = 0; i < ranks; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < ranks; i++) {
        assert_int_equal(members[i].errors, 0);
    }
    tg_comm_group_destroy(&c.group);
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    tg_context_destroy(&ctx);
}

TEST(threads_do_every_operation) {
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        run_ranks(ranks, 60.0, check_operations);
    }
}

/* ---- callbacks, which call a communicator of threads ---- */

static int call_all_reduce(void *user, tg_comm_op op, tg_dtype dtype, int64_t count, void *values) {
    const tg_tensor x = wrap(dtype, count, values);
    return (int)tg_comm_all_reduce(user, op, &x);
}

static int call_broadcast(void *user, int root, int64_t bytes, void *data) {
    const tg_tensor x = wrap(TG_U8, bytes, data);
    return (int)tg_comm_broadcast(user, root, &x);
}

static int call_barrier(void *user) {
    return (int)tg_comm_barrier(user);
}

static tg_comm_callbacks callbacks_of(tg_comm *comm) {
    return (tg_comm_callbacks){.size = sizeof(tg_comm_callbacks),
                               .rank = tg_comm_rank(comm),
                               .ranks = tg_comm_ranks(comm),
                               .all_reduce = call_all_reduce,
                               .broadcast = call_broadcast,
                               .barrier = call_barrier,
                               .user = comm};
}

static int work_through_callbacks(tg_context *ctx, tg_comm *inner) {
    const tg_comm_callbacks callbacks = callbacks_of(inner);
    tg_comm *comm = NULL;
    int errors = tg_comm_create_callbacks(ctx, &callbacks, &comm) != TG_OK;
    errors += check_operations(ctx, comm);
    tg_comm_destroy(&comm);
    return errors;
}

TEST(callbacks_do_every_operation) {
    run_ranks(3, 60.0, work_through_callbacks);
}

static int refuse(void *user) {
    (void)user;
    return 7;
}

TEST(callbacks_are_checked) {
    tg_context *ctx = NULL;
    tg_comm *self = NULL, *comm = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_comm_create_self(ctx, &self), TG_OK);
    tg_comm_callbacks callbacks = callbacks_of(self);
    callbacks.broadcast = NULL;
    assert_int_equal(tg_comm_create_callbacks(ctx, &callbacks, &comm), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "broadcast and barrier are needed"));
    callbacks = callbacks_of(self);
    callbacks.rank = 1;
    assert_int_equal(tg_comm_create_callbacks(ctx, &callbacks, &comm), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "rank 1 of 1"));
    tg_comm_destroy(&self);
    tg_context_destroy(&ctx);
}

/* ---- faults ---- */

static int one_is_late(tg_context *ctx, tg_comm *comm) {
    double x = 1.0;
    const tg_tensor values = wrap(TG_F64, 1, &x);
    if (tg_comm_rank(comm) == 1) {
        return 0; /* it leaves, so that the others need not wait .. */
    }
    int errors = tg_comm_all_reduce(comm, TG_COMM_SUM, &values) != TG_E_BACKEND;
    errors += !strstr(tg_context_error(ctx), "all-reduce: rank 1 has left");
    errors += tg_comm_barrier(comm) != TG_E_BACKEND;
    errors += !strstr(tg_context_error(ctx), "failed before");
    return errors;
}

TEST(a_rank_that_leaves_ends_the_others_at_once) {
    const double start = tg_seconds();
    run_ranks(3, 600.0, one_is_late);
    assert_true(tg_seconds() - start < 300.0);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int failed;

static int two_wait_in_vain(tg_context *ctx, tg_comm *comm) {
    int errors = 0;
    pthread_mutex_lock(&gate);
    if (tg_comm_rank(comm) == 2) { /* .. until they have */
        while (failed < 2) {
            pthread_cond_wait(&opened, &gate);
        }
    }
    pthread_mutex_unlock(&gate);
    errors += tg_comm_barrier(comm) != TG_E_BACKEND;
    errors += !strstr(tg_context_error(ctx), "barrier");
    errors += !strstr(tg_context_error(ctx), "rank 2 has not come");
    pthread_mutex_lock(&gate);
    failed++;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
    return errors;
}

TEST(a_late_rank_is_an_error_on_all) {
    run_ranks(3, 0.05, two_wait_in_vain);
}

/* Rank 1 expects less than rank 0 sends. Rank 0 may still read what it was sent when rank 1 has
 * left. */
static int different_messages(tg_context *ctx, tg_comm *comm, const char *sentence) {
    static double numbers[2][4];
    const int rank = tg_comm_rank(comm);
    double *x = numbers[rank];
    const tg_tensor sent = wrap(TG_F64, 2, x), received = wrap(TG_F64, 2 - rank, x + 2);
    const tg_status status = tg_comm_exchange(comm, 1 - rank, &sent, 1 - rank, &received);
    return rank == 0 ? status != TG_E_BACKEND
                     : status != TG_E_ARGUMENT || !strstr(tg_context_error(ctx), sentence);
}

static int different_messages_of_threads(tg_context *ctx, tg_comm *comm) {
    return different_messages(ctx, comm, "8 bytes, but rank 0 is in exchange of 16");
}

static int different_messages_of_callbacks(tg_context *ctx, tg_comm *inner) {
    const tg_comm_callbacks callbacks = callbacks_of(inner);
    tg_comm *comm = NULL;
    int errors = tg_comm_create_callbacks(ctx, &callbacks, &comm) != TG_OK;
    errors += different_messages(ctx, comm, "16 bytes from rank 0, not 8 from 0");
    tg_comm_destroy(&comm);
    return errors;
}

TEST(messages_of_another_size_are_refused) {
    run_ranks(2, 60.0, different_messages_of_threads);
    run_ranks(2, 60.0, different_messages_of_callbacks);
}

static int different_calls(tg_context *ctx, tg_comm *comm) {
    double x[2] = {1.0, 2.0};
    const tg_tensor values = wrap(TG_F64, 1 + tg_comm_rank(comm), x);
    const int errors = tg_comm_all_reduce(comm, TG_COMM_SUM, &values) != TG_E_ARGUMENT;
    return errors + !strstr(tg_context_error(ctx), "is in all-reduce of");
}

TEST(ranks_that_do_different_things_learn_it) {
    run_ranks(2, 60.0, different_calls);
}

/* ---- wrong calls ---- */

TEST(wrong_values_are_refused) {
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    double x[4] = {0};
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    const tg_comm_config config = {.size = sizeof config, .timeout = -1.0};
    tg_comm_group *group = NULL;
    assert_int_equal(tg_comm_group_create(ctx, 1, &group), TG_OK);
    assert_int_equal(tg_comm_create_threads(ctx, group, 0, &config, &comm), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "timeout of -1 s"));
    tg_comm_group_destroy(&group);
    assert_int_equal(tg_comm_create_self(ctx, &comm), TG_OK);
    const tg_tensor bytes = wrap(TG_U8, 4, x), values = wrap(TG_F64, 4, x);
    assert_int_equal(tg_comm_all_reduce(comm, TG_COMM_SUM, &bytes), TG_E_DTYPE);
    assert_non_null(strstr(tg_context_error(ctx), "sum of u8"));
    assert_int_equal(tg_comm_broadcast(comm, 1, &values), TG_E_ARGUMENT);
    assert_int_equal(tg_comm_reduce(comm, TG_COMM_SUM, -1, &values), TG_E_ARGUMENT);
    assert_int_equal(tg_comm_exchange(comm, 0, &values, 1, &values), TG_E_ARGUMENT);
    assert_int_equal(tg_comm_exchange(comm, 0, &values, 0, &bytes), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "32 bytes for itself, not 4"));
    assert_int_equal(tg_comm_create_mpi(ctx, x, NULL, &(tg_comm *){NULL}) != TG_OK, true);
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
}

/* ---- device memory, staged through the host ---- */

static int doubles(void *user, tg_comm_op op, tg_dtype dtype, int64_t count, void *values) {
    double *x = values;
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        x[i] *= 2.0;
    }
    return op != TG_COMM_SUM || dtype != TG_F64;
}

static int counts_bytes(void *user, int root, int64_t bytes, void *data) {
    (void)root;
    (void)data;
    *(int64_t *)user += bytes;
    return 0;
}

TEST(values_on_a_device_are_staged) {
    enum { N = 700001 }; /* more than one piece */
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    tg_tensor host = {0}, device = {0};
    int64_t bytes = 0;
    const tg_shape shape = {1, {N}};
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "fake"), TG_OK);
    const tg_comm_callbacks callbacks = {.size = sizeof callbacks,
                                         .ranks = 2,
                                         .all_reduce = doubles,
                                         .broadcast = counts_bytes,
                                         .barrier = refuse,
                                         .user = &bytes};
    assert_int_equal(tg_comm_create_callbacks(ctx, &callbacks, &comm), TG_OK);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &shape, &host), TG_OK);
    assert_int_equal(tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &shape, &device), TG_OK);
    double *x = host.data;
    for (int64_t i = 0; i < N; i++) {
        x[i] = (double)i;
    }
    assert_int_equal(tg_backend_copy(ctx, &host, &device), TG_OK);
    assert_int_equal(tg_comm_all_reduce(comm, TG_COMM_SUM, &device), TG_OK);
    memset(x, 0, tg_tensor_bytes(&host));
    assert_int_equal(tg_backend_copy(ctx, &device, &host), TG_OK);
    for (int64_t i = 0; i < N; i++) {
        assert_true(x[i] == 2.0 * (double)i);
    }
    bytes = 0;
    assert_int_equal(tg_comm_all_gather(comm, &device), TG_OK);
    assert_int_equal(bytes, N * (int64_t)sizeof(double));
    assert_int_equal(tg_comm_barrier(comm), TG_E_BACKEND);
    assert_non_null(strstr(tg_context_error(ctx), "the caller's barrier returned 7"));
    tg_tensor_destroy(&host);
    tg_tensor_destroy(&device);
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
}

/* Messages of several pieces, each rank's of another size, over `comm`. */
static int exchange_on_device(tg_context *ctx, tg_comm *comm) {
    enum { N = 700001 };
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm);
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    const tg_shape out = {1, {N - 1000 * rank}}, in = {1, {N - 1000 * from}};
    tg_tensor host = {0}, sent = {0}, received = {0};
    int errors = tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &out, &host) != TG_OK ||
                 tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &out, &sent) != TG_OK ||
                 tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &in, &received) != TG_OK;
    double *x = host.data;
    for (int64_t i = 0; errors == 0 && i < out.dim[0]; i++) {
        x[i] = value_of(rank, i);
    }
    errors += errors > 0 || tg_backend_copy(ctx, &host, &sent) != TG_OK ||
              tg_comm_exchange(comm, to, &sent, from, &received) != TG_OK;
    tg_tensor_destroy(&host);
    errors += errors > 0 || tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &in, &host) != TG_OK ||
              tg_backend_copy(ctx, &received, &host) != TG_OK;
    x = host.data;
    for (int64_t i = 0; errors == 0 && i < in.dim[0]; i++) {
        errors += x[i] != value_of(from, i);
    }
    tg_tensor_destroy(&host);
    tg_tensor_destroy(&sent);
    tg_tensor_destroy(&received);
    return errors;
}

static int exchange_staged(tg_context *ctx, tg_comm *inner) {
    const tg_comm_callbacks callbacks = callbacks_of(inner);
    tg_comm *comm = NULL;
    int errors = tg_backend_select(ctx, "fake") != TG_OK || exchange_on_device(ctx, inner);
    errors += tg_comm_create_callbacks(ctx, &callbacks, &comm) != TG_OK;
    errors += errors > 0 || exchange_on_device(ctx, comm);
    tg_comm_destroy(&comm);
    return errors;
}

TEST(messages_on_a_device_are_staged) {
    run_ranks(3, 60.0, exchange_staged);
}

/* ---- launchers ---- */

static const char *const variables[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALRANKID",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NTASKS",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "TORCHELASTIC_RUN_ID"};

static void forget_launchers(void) {
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        unsetenv(variables[i]);
    }
}

static void expect_launch(const char *launcher, int rank, int ranks, int local_rank) {
    const tg_comm_launch launch = tg_comm_get_launch();
    assert_string_equal(launch.launcher, launcher);
    assert_int_equal(launch.rank, rank);
    assert_int_equal(launch.ranks, ranks);
    assert_int_equal(launch.local_rank, local_rank);
}

TEST(launchers_are_known_by_their_variables) {
    forget_launchers();
    expect_launch("none", 0, 1, 0);
    setenv("SLURM_NTASKS", "8", 1); /* of a batch script, which runs once */
    setenv("SLURM_PROCID", "0", 1);
    expect_launch("none", 0, 1, 0);
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    expect_launch("torchrun", 3, 4, -1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_LOCALID", "0", 1);
    expect_launch("srun", 0, 2, 0);
    setenv("SLURM_STEP_TASKS_PER_NODE", "2(x3)", 1);
    assert_int_equal(tg_comm_get_launch().local_ranks, 2);
    setenv("TORCHELASTIC_RUN_ID", "1", 1); /* srun started torchrun */
    expect_launch("torchrun", 3, 4, -1);
    unsetenv("TORCHELASTIC_RUN_ID");
    setenv("PMI_RANK", "5", 1);
    setenv("PMI_SIZE", "5", 1); /* none such */
    expect_launch("srun", 0, 2, 0);
    setenv("PMI_SIZE", "6", 1);
    expect_launch("mpiexec", 5, 6, -1);
    setenv("OMPI_COMM_WORLD_RANK", "1x", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    expect_launch("mpiexec", 5, 6, -1);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    expect_launch("mpirun", 1, 2, 1);
    forget_launchers();
}

TEST(torchrun_is_refused) {
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    forget_launchers();
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    assert_int_equal(tg_comm_create_world(ctx, NULL, &comm), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(ctx), "4 processes by torchrun"));
    assert_null(comm);
    setenv("WORLD_SIZE", "1", 1);
    assert_int_equal(tg_comm_create_world(ctx, NULL, &comm), TG_OK);
    assert_string_equal(tg_comm_get_info(comm).transport, "self");
    assert_int_equal(tg_comm_ranks(comm), 1);
    tg_comm_destroy(&comm);
    forget_launchers();
    tg_context_destroy(&ctx);
}

/* ---- values of a device ---- */

TEST(engines_of_one_rank_on_the_host) {
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_OK);
    assert_int_equal(tg_comm_create_self(ctx, &comm), TG_OK);
    assert_int_equal(tg_comm_open_device(comm, TG_COMM_AUTO), TG_OK);
    assert_int_equal(tg_comm_open_device(comm, TG_COMM_MPI), TG_OK);
    assert_string_equal(tg_comm_get_info(comm).transport, "self");
    assert_int_equal(tg_comm_open_device(comm, TG_COMM_NCCL), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(ctx), "rank 0 computes on the host"));
    assert_int_equal(tg_comm_open_device(comm, (tg_comm_engine)3), TG_E_ARGUMENT);
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
}

/* ---- the ranks of a launcher ---- */

static int check_world(void) {
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    int errors = 1;
    if (tg_context_create(NULL, &ctx) == TG_OK && tg_comm_create_world(ctx, NULL, &comm) == TG_OK) {
        errors = check_operations(ctx, comm);
        printf("rank %d of %d over %s: %d errors\n", tg_comm_rank(comm), tg_comm_ranks(comm),
               tg_comm_get_info(comm).transport, errors);
    }
    if (errors) {
        fprintf(stderr, "%s\n", tg_context_error(ctx));
    }
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
    return errors != 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--world") == 0) {
        return check_world();
    }
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}

/* tgrad bench comm: time of each operation of a communicator, by message size.
 *
 * Every call starts after a barrier and is timed by rank 0; the first call of each size is a
 * warm-up. In the exchange every rank sends to the next one. Constants for predictions: the latency
 * is the all-reduce of a single number; the link speed follows from the largest all-reduce, of
 * which every rank sends 2 (P - 1) / P; the time of a short message is the exchange of a single
 * number. `tgrad plan --link --latency-us` takes the last two. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/statistics.h"

typedef tg_status (*operation_fn)(tg_comm *comm, const tg_tensor *values);

static tg_status all_reduce(tg_comm *comm, const tg_tensor *values) {
    return tg_comm_all_reduce(comm, TG_COMM_SUM, values);
}

static tg_status reduce(tg_comm *comm, const tg_tensor *values) {
    return tg_comm_reduce(comm, TG_COMM_SUM, 0, values);
}

static tg_status reduce_scatter(tg_comm *comm, const tg_tensor *values) {
    return tg_comm_reduce_scatter(comm, TG_COMM_SUM, values);
}

static tg_status broadcast(tg_comm *comm, const tg_tensor *values) {
    return tg_comm_broadcast(comm, 0, values);
}

/* Values of f32: a single one, and up to 16 MiB. */
static const int64_t sizes[] = {1, 256, 16384, 262144, 4194304};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* What arrives is put after the largest message. */
static tg_status exchange(tg_comm *comm, const tg_tensor *values) {
    const int rank = tg_comm_rank(comm), ranks = tg_comm_ranks(comm);
    tg_tensor received = *values;
    received.data = (float *)values->data + sizes[SIZES - 1];
    return tg_comm_exchange(comm, (rank + 1) % ranks, values, (rank + ranks - 1) % ranks,
                            &received);
}

static const struct {
    const char *name;
    operation_fn run;
} operations[] = {
    {"all_reduce", all_reduce},         {"reduce", reduce},
    {"broadcast", broadcast},           {"reduce_scatter", reduce_scatter},
    {"all_gather", tg_comm_all_gather}, {"exchange", exchange},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0], EXCHANGE = OPERATIONS - 1 };

typedef struct measurement {
    double seconds[OPERATIONS][SIZES]; /* medians */
    double latency, message;           /* seconds */
    double link;                       /* bytes per second */
} measurement;

static tg_status measure(tg_context *ctx, tg_comm *comm, operation_fn run, const tg_tensor *values,
                         int steps, double *times, double *median) {
    for (int i = -1; i < steps; i++) {
        CLI_CALL(tg_comm_barrier(comm));
        const double start = cli_seconds();
        CLI_CALL(run(comm, values));
        CLI_CALL(tg_backend_synchronize(ctx));
        times[i < 0 ? 0 : i] = cli_seconds() - start;
    }
    *median = cli_median(times, steps);
    return TG_OK;
}

/* Room for the largest message twice, where the backend computes. */
static tg_status make_zeros(tg_context *ctx, tg_tensor *out) {
    const tg_shape most = {1, {2 * sizes[SIZES - 1]}};
    CLI_OWNED(tg_tensor_destroy) tg_tensor zeros = {0};
    CLI_CALL(tg_tensor_create(ctx, TG_MEM_COMMUNICATION, TG_F32, &most, &zeros));
    memset(zeros.data, 0, tg_tensor_bytes(&zeros));
    CLI_CALL(tg_backend_tensor(ctx, TG_MEM_COMMUNICATION, TG_F32, &most, out));
    return tg_backend_copy(ctx, &zeros, out);
}

static tg_status measure_all(tg_context *ctx, tg_comm *comm, int steps, measurement *out) {
    CLI_FREED double *times = cli_need(calloc((size_t)steps, sizeof *times));
    CLI_OWNED(tg_tensor_destroy) tg_tensor values = {0};
    CLI_CALL(tg_comm_agree(comm, make_zeros(ctx, &values)));
    for (int s = 0; s < SIZES; s++) {
        tg_tensor part = values;
        part.shape.dim[0] = sizes[s];
        for (int o = 0; o < OPERATIONS; o++) {
            CLI_CALL(
                measure(ctx, comm, operations[o].run, &part, steps, times, &out->seconds[o][s]));
        }
    }
    const double ranks = tg_comm_ranks(comm);
    const double sent = 2.0 * (ranks - 1.0) / ranks * (double)(sizes[SIZES - 1] * 4);
    out->latency = out->seconds[0][0];
    out->message = out->seconds[EXCHANGE][0];
    out->link = sent / out->seconds[0][SIZES - 1];
    return TG_OK;
}

static void print_text(const tg_comm *comm, const measurement *m) {
    printf("%d rank%s over %s: medians in microseconds\n%-16s", tg_comm_ranks(comm),
           tg_comm_ranks(comm) > 1 ? "s" : "", tg_comm_get_info(comm).transport, "");
    for (int s = 0; s < SIZES; s++) {
        char text[CLI_UNIT_TEXT];
        printf("  %10s", cli_bytes_text((uint64_t)sizes[s] * 4, text));
    }
    for (int o = 0; o < OPERATIONS; o++) {
        printf("\n%-16s", operations[o].name);
        for (int s = 0; s < SIZES; s++) {
            printf("  %10.1f", 1e6 * m->seconds[o][s]);
        }
    }
    printf("\nlatency %.1f us, message %.1f us", 1e6 * m->latency, 1e6 * m->message);
    if (tg_comm_ranks(comm) > 1) {
        printf(", link %.3g GB/s (tgrad plan --ranks %d --link %.0fMB --latency-us %.1f)",
               1e-9 * m->link, tg_comm_ranks(comm), 1e-6 * m->link, 1e6 * m->message);
    }
    printf("\n");
}

static void print_json(const tg_comm *comm, int64_t steps, const measurement *m) {
    json_t *rows = cli_json_array();
    for (int o = 0; o < OPERATIONS; o++) {
        for (int s = 0; s < SIZES; s++) {
            cli_json_append(rows, cli_json_new(KV("operation", operations[o].name),
                                               KV("bytes", sizes[s] * 4),
                                               KV("us", 1e6 * m->seconds[o][s])));
        }
    }
    cli_json_print(cli_json_new(
        KV("ranks", tg_comm_ranks(comm)), KV("transport", tg_comm_get_info(comm).transport),
        KV("steps", steps), KV("latency_us", 1e6 * m->latency), KV("message_us", 1e6 * m->message),
        KV("link", m->link), KV("operations", rows)));
}

static tg_comm_engine engine_of(const char *word) {
    return strcmp(word, "nccl") == 0  ? TG_COMM_NCCL
           : strcmp(word, "mpi") == 0 ? TG_COMM_MPI
                                      : TG_COMM_AUTO;
}

int bench_comm(const cli_call *call, const bench_options *options) {
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(tg_comm_destroy) tg_comm *comm = NULL;
    measurement m = {0};
    const tg_comm_engine engine = engine_of(options->transport);
    tg_status status = tg_comm_create_world(ctx, NULL, &comm);
    status = status == TG_OK ? tg_comm_open_device(comm, engine) : status;
    if (status == TG_OK && tg_comm_ranks(comm) == 1 && engine != TG_COMM_NCCL) {
        return cli_fail("bench comm: needs at least two processes: mpirun -n 2 tgrad bench comm");
    }
    status = status == TG_OK ? measure_all(ctx, comm, (int)options->steps, &m) : status;
    if (status == TG_OK && cli_is_first() && call->common->json) {
        print_json(comm, options->steps, &m);
    } else if (status == TG_OK && cli_is_first()) {
        print_text(comm, &m);
    }
    return cli_code(ctx, status);
}

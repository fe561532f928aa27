/* What all ranks must have alike, and failures that one of them reports to the others. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "dist/comm.h"

/* 64-bit FNV-1a. */
static uint64_t hash(const void *data, size_t bytes) {
    const unsigned char *byte = data;
    uint64_t value = 0xcbf29ce484222325U;
    for (size_t i = 0; i < bytes; i++) {
        value = (value ^ byte[i]) * 0x100000001b3U;
    }
    return value;
}

uint64_t tg_comm_machine(void) {
    char name[256] = "";
    (void)gethostname(name, sizeof name - 1);
    return hash(name, strlen(name));
}

typedef struct outcome {
    int32_t status;
    char sentence[1024];
} outcome;

tg_status tg_comm_agree(tg_comm *comm, tg_status own) {
    TG_NEED(NULL, comm);
    if (comm->ranks == 1 || (own != TG_OK && comm->is_broken)) {
        return own;
    }
    tg_status status = TG_OK;
    outcome said = {.status = (int32_t)own};
    snprintf(said.sentence, sizeof said.sentence, "%s", tg_context_error(comm->ctx));
    /* the lowest rank that failed, counted from the last; whether any succeeded */
    double votes[2] = {own == TG_OK ? 0 : comm->ranks - comm->rank, own == TG_OK};
    TG_TRY(tg_comm_all_reduce_f64(comm, TG_COMM_MAX, 2, votes));
    if (votes[0] == 0.0) {
        return TG_OK;
    }
    const int rank = comm->ranks - (int)votes[0];
    comm->has_agreed = true;
    TG_TRY(tg_comm_broadcast_bytes(comm, rank, sizeof said, &said));
    return votes[1] == 0.0
               ? tg_fail(comm->ctx, (tg_status)said.status, "%s", said.sentence)
               : tg_fail(comm->ctx, (tg_status)said.status, "rank %d: %s", rank, said.sentence);
fail:
    return own == TG_OK ? status : own;
}

tg_status tg_comm_check_same(tg_comm *comm, const char *what, const void *data, size_t bytes) {
    const uint64_t own[2] = {hash(data, bytes), bytes};
    uint64_t first[2];
    memcpy(first, own, sizeof first);
    tg_status status = tg_comm_broadcast_bytes(comm, 0, sizeof first, first);
    if (status == TG_OK && memcmp(first, own, sizeof first) != 0) {
        status = tg_fail(comm->ctx, TG_E_CONFIG, "%s: not as on rank 0", what);
    }
    return tg_comm_agree(comm, status);
}

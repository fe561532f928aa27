/* Ranks that are threads of one process, for tests and fault injection. */
#ifndef TEST_SUPPORT_RANK_THREADS_H
#define TEST_SUPPORT_RANK_THREADS_H

#include "tgrad/comm.h"

typedef struct tg_comm_group tg_comm_group;

/* What the ranks share; it outlives their communicators. */
TG_NODISCARD tg_status tg_comm_group_create(tg_context *ctx, int ranks, tg_comm_group **out);
void tg_comm_group_destroy(tg_comm_group **group);

/* The communicator of one rank, called by its thread with a context of its own. */
TG_NODISCARD tg_status tg_comm_create_threads(tg_context *ctx, tg_comm_group *group, int rank,
                                              const tg_comm_config *config, tg_comm **out);

#endif

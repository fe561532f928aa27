/* Transports of processes that a launcher started. */
#ifndef TG_DIST_LAUNCH_H
#define TG_DIST_LAUNCH_H

#include "base/context.h"
#include "tgrad/comm.h"

/* Over MPI, initialised here if necessary (mpi.c). */
TG_NODISCARD tg_status tg_comm_create_mpi_world(tg_context *ctx, const tg_comm_config *config,
                                                const tg_comm_launch *launch, tg_comm **out);

/* Over TCP at MASTER_ADDR and MASTER_PORT (tcp.c): for votes and other small messages. */
TG_NODISCARD tg_status tg_comm_create_tcp_world(tg_context *ctx, const tg_comm_config *config,
                                                const tg_comm_launch *launch, tg_comm **out);

#endif

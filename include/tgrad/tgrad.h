/* Umbrella header of libtgrad: compressed-gradient training of Fourier neural operators. */
#ifndef TGRAD_TGRAD_H
#define TGRAD_TGRAD_H

#include "tgrad/backend.h"
#include "tgrad/comm.h"
#include "tgrad/context.h"
#include "tgrad/data.h"
#include "tgrad/fno.h"
#include "tgrad/function.h"
#include "tgrad/gno.h"
#include "tgrad/gradient.h"
#include "tgrad/io.h"
#include "tgrad/keys.h"
#include "tgrad/linalg.h"
#include "tgrad/loss.h"
#include "tgrad/optim.h"
#include "tgrad/pde.h"
#include "tgrad/project.h"
#include "tgrad/settings.h"
#include "tgrad/status.h"
#include "tgrad/step.h"
#include "tgrad/tensor.h"
#include "tgrad/train.h"

TG_C_BEGIN

#define TG_VERSION_MAJOR 0
#define TG_VERSION_MINOR 1
#define TG_VERSION_PATCH 0
#define TG_VERSION       "0.1.0"

typedef struct tg_build_info {
    const char *version;    /* "0.1.0" */
    const char *compiler;   /* "gcc 12.2.0" */
    const char *build_type; /* "Release" */
    const char *features;   /* "openmp hdf5" */
} tg_build_info;

/* How this library was built. */
TG_API tg_build_info tg_build(void);

TG_C_END
#endif

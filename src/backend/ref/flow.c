/* Flow in two dimensions (backend/nn.h), with threads for the cpu backend, which inherits it. */
#include <math.h>

#include "backend/ref/ref.h"

/* A row of the spectra of all flows, number flow * (2K + 1) + k1 + K. */
typedef struct row {
    int64_t flow, at; /* at: of its first number, in complex numbers */
    int64_t k1;
} row;

static int64_t row_count(const tg_flow *f) {
    return f->flows * (2 * f->modes + 1);
}

static row row_of(const tg_flow *f, int64_t number) {
    const int64_t rows = 2 * f->modes + 1;
    return (row){number / rows, number * (f->modes + 1), number % rows - f->modes};
}

static double wave(const tg_flow *f, int64_t k) {
    return 2.0 * 3.14159265358979323846 / f->length * (double)k;
}

static void velocity_of(const tg_flow_op *op, int threads) {
    const tg_flow *f = &op->of;
    const int64_t reals = 2 * (2 * f->modes + 1) * (f->modes + 1); /* of a spectrum */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < row_count(f); r++) {
        const row here = row_of(f, r);
        const double *from = op->w + 2 * here.at, q1 = wave(f, here.k1);
        double *across = op->velocity + 2 * here.at + here.flow * reals, *along = across + reals;
        for (int64_t c = 0; c <= f->modes; c++) {
            const double q2 = wave(f, c), square = q1 * q1 + q2 * q2;
            const double inverse = square > 0.0 ? 1.0 / square : 0.0;
            const double re = inverse * from[2 * c], im = inverse * from[2 * c + 1];
            across[2 * c] = -q2 * im;
            across[2 * c + 1] = q2 * re;
            along[2 * c] = q1 * im;
            along[2 * c + 1] = -q1 * re;
        }
    }
}

static void products_of(const tg_flow_op *op, int threads) {
    const int64_t n = op->of.grid;
    for (int64_t flow = 0; flow < op->of.flows; flow++) {
        double most = 0.0;
        bool lost = false;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max                       \
                                                                         : most) reduction(||      \
                                                                                           : lost)
        for (int64_t i = 0; i < n; i++) {
            double *first = op->values + (2 * flow * n + i) * n, *second = first + n * n;
            for (int64_t j = 0; j < n; j++) {
                const double across = first[j], along = second[j];
                const double sum = fabs(across) + fabs(along);
                lost = lost || isnan(sum);
                most = sum > most ? sum : most;
                first[j] = across * along;
                second[j] = along * along - across * across;
            }
        }
        op->speed[flow] = lost ? (double)NAN : most;
    }
}

static void decay_of(const tg_flow_op *op) {
    const tg_flow *f = &op->of;
    for (int64_t r = 0; r < row_count(f); r++) {
        const row here = row_of(f, r);
        const double q = wave(f, here.k1);
        op->decay[r] = exp(-0.5 * op->dt[here.flow] * op->viscosity * q * q);
    }
}

static void run_stage(const tg_flow_op *op, int threads) {
    const tg_flow *f = &op->of;
    const int64_t modes = f->modes, reals = 2 * (2 * modes + 1) * (modes + 1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < row_count(f); r++) {
        const row here = row_of(f, r);
        const double *product = op->products + 2 * here.at + here.flow * reals;
        const double *difference = product + reals, *force = op->forcing + 2 * here.at;
        const double *decay = op->decay + here.flow * (2 * modes + 1);
        double *w = op->state + 2 * here.at, *next = op->next + 2 * here.at;
        double *sum = op->sum + 2 * here.at;
        const double q1 = wave(f, here.k1), dt = op->dt[here.flow];
        for (int64_t i = 0; i < 2 * (modes + 1); i++) {
            const double q2 = wave(f, i / 2), e = decay[here.k1 + modes] * decay[modes + i / 2];
            const double slope =
                force[i] + q1 * q2 * difference[i] + (q1 * q1 - q2 * q2) * product[i];
            if (op->part == TG_FLOW_STAGE_0) {
                next[i] = e * (w[i] + 0.5 * dt * slope);
                sum[i] = e * e * (w[i] + dt / 6.0 * slope);
            } else if (op->part == TG_FLOW_STAGE_1) {
                next[i] = e * w[i] + 0.5 * dt * slope;
                sum[i] += e * dt / 3.0 * slope;
            } else if (op->part == TG_FLOW_STAGE_2) {
                next[i] = e * (e * w[i] + dt * slope);
                sum[i] += e * dt / 3.0 * slope;
            } else {
                w[i] = sum[i] + dt / 6.0 * slope;
            }
        }
    }
}

tg_status ref_flow(tg_backend *be, const tg_flow_op *op) {
    switch (op->part) {
    case TG_FLOW_VELOCITY:
        velocity_of(op, be->threads);
        break;
    case TG_FLOW_PRODUCTS:
        products_of(op, be->threads);
        break;
    case TG_FLOW_DECAY:
        decay_of(op);
        break;
    default:
        run_stage(op, be->threads);
    }
    return TG_OK;
}

/* Norms: groups are distributed to the threads; statistics in f64, one channel at a time. 16-bit
 * numbers are converted a chunk at a time. */
#include <math.h>

#include "backend/check.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/nn.h"

/* One group: a run of whole channels of one sample. */
typedef struct group {
    int64_t first;    /* index of its first number */
    int64_t channels; /* of it */
    int64_t channel;  /* the first one */
} group;

static int64_t groups_of(const tg_norm *op) {
    return op->per_channel ? op->batch * op->channels : op->batch;
}

static group group_at(const tg_norm *op, int64_t index) {
    const int64_t channels = op->per_channel ? 1 : op->channels;
    return (group){.first = index * channels * op->pixels,
                   .channels = channels,
                   .channel = op->per_channel ? index % op->channels : 0};
}

enum { CHUNK = 1024 }; /* 16-bit numbers converted at once */

/* Number of reals of x from `at` on accessible at once, at most n; all for f32. */
static int64_t chunk_of(const tg_norm *op, int64_t n) {
    return op->store == TG_STORE_FULL || n < CHUNK ? n : CHUNK;
}

static double sum_of(tg_backend *be, const tg_norm *op, const void *x, int64_t at, int64_t n) {
    float room[CHUNK];
    double sum = 0.0;
    for (int64_t i = 0, some; i < n; i += some) {
        some = chunk_of(op, n - i);
        sum += cpu_nn_of(be)->sum(
            some, cpu_read(cpu_state_of(be)->kernels, op->store, x, at + i, some, room));
    }
    return sum;
}

static double dot_of(tg_backend *be, const tg_norm *op, int64_t at, int64_t n) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    float room[2][CHUNK];
    double sum = 0.0;
    for (int64_t i = 0, some; i < n; i += some) {
        some = chunk_of(op, n - i);
        sum += cpu_nn_of(be)->dot(some, cpu_read(k, op->store, op->dy, at + i, some, room[0]),
                                  cpu_read(k, op->store, op->x, at + i, some, room[1]));
    }
    return sum;
}

static double of_channel(const void *values, int64_t channel, double otherwise) {
    return values ? (double)((const float *)values)[channel] : otherwise;
}

/* Sum of squares of x - mean, in stripes. */
static double scatter(int64_t n, double mean, const float *x) {
    double total[8] = {0}, all = 0.0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++) {
            const double d = (double)x[i + j] - mean;
            total[j] += d * d;
        }
    }
    for (; i < n; i++) {
        const double d = (double)x[i] - mean;
        total[0] += d * d;
    }
    for (int j = 0; j < 8; j++) {
        all += total[j];
    }
    return all;
}

static double scatter_of(tg_backend *be, const tg_norm *op, double mean, int64_t at, int64_t n) {
    float room[CHUNK];
    double sum = 0.0;
    for (int64_t i = 0, some; i < n; i += some) {
        some = chunk_of(op, n - i);
        sum += scatter(some, mean,
                       cpu_read(cpu_state_of(be)->kernels, op->store, op->x, at + i, some, room));
    }
    return sum;
}

static void forward_group(tg_backend *be, const tg_norm *op, int64_t index) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const group g = group_at(op, index);
    const int64_t size = g.channels * op->pixels;
    if (op->part != TG_NORM_APPLY) {
        const double center = sum_of(be, op, op->x, g.first, size) / (double)size;
        const double variance = scatter_of(be, op, center, g.first, size) / (double)size;
        op->stats[2 * index] = center;
        op->stats[2 * index + 1] = 1.0 / sqrt(variance + op->eps);
    }
    const double mean = op->stats[2 * index], inverse = op->stats[2 * index + 1];
    float room[CHUNK];
    for (int64_t c = 0; c < g.channels && op->part != TG_NORM_MEASURE; c++) {
        const double scale = inverse * of_channel(op->weight, g.channel + c, 1.0);
        const double bias = of_channel(op->bias, g.channel + c, 0.0) - mean * scale;
        for (int64_t i = 0, some; i < op->pixels; i += some) {
            const int64_t at = g.first + c * op->pixels + i;
            some = chunk_of(op, op->pixels - i);
            const float *x = cpu_read(k, op->store, op->x, at, some, room);
            float *y = cpu_result(op->store, op->y, at, room);
            cpu_nn_of(be)->affine(some, 0.0f, (float)scale, x, (float)bias, y);
            cpu_write(k, op->store, some, y, op->y, at);
        }
    }
}

/* dweight[c] += sum dy n, dbias[c] += sum dy of channel c, n = the normalised x. */
static void weight_sums(tg_backend *be, const tg_norm *op, int64_t c) {
    double weight = 0.0, bias = 0.0;
    for (int64_t b = 0; b < op->batch; b++) {
        const int64_t at = (b * op->channels + c) * op->pixels;
        const double *stats = op->stats + 2 * (op->per_channel ? b * op->channels + c : b);
        const double sum = sum_of(be, op, op->dy, at, op->pixels);
        bias += sum;
        weight += (dot_of(be, op, at, op->pixels) - stats[0] * sum) * stats[1];
    }
    if (op->dweight) {
        float *w = (float *)op->dweight + c;
        *w = (float)((double)*w + weight);
    }
    if (op->dbias) {
        float *b = (float *)op->dbias + c;
        *b = (float)((double)*b + bias);
    }
}

/* dx = (dn - mean(dn) - n mean(dn n)) * inverse = p dy + q x + r, channel by channel. */
static void backward_group(tg_backend *be, const tg_norm *op, int64_t index) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const group g = group_at(op, index);
    const int64_t pixels = op->pixels;
    const double size = (double)(g.channels * pixels);
    const double mean = op->stats[2 * index], inverse = op->stats[2 * index + 1];
    double sum = 0.0, sum_n = 0.0;
    float room[3][CHUNK];
    for (int64_t c = 0; c < g.channels && op->part != TG_NORM_APPLY; c++) {
        const double weight = of_channel(op->weight, g.channel + c, 1.0);
        const int64_t at = g.first + c * pixels;
        const double s = sum_of(be, op, op->dy, at, pixels);
        sum += weight * s / size;
        sum_n += weight * (dot_of(be, op, at, pixels) - mean * s) * inverse / size;
    }
    tg_norm_means(op, index, &sum, &sum_n);
    for (int64_t c = 0; c < g.channels && op->part != TG_NORM_MEASURE; c++) {
        const float p = (float)(of_channel(op->weight, g.channel + c, 1.0) * inverse);
        const float q = (float)(-sum_n * inverse * inverse);
        const float r = (float)((sum_n * mean * inverse - sum) * inverse);
        for (int64_t done = 0, some; done < pixels; done += some) {
            const int64_t at = g.first + c * pixels + done;
            some = chunk_of(op, pixels - done);
            const float *x = cpu_read(k, op->store, op->x, at, some, room[0]);
            const float *dy = cpu_read(k, op->store, op->dy, at, some, room[1]);
            float *dx = cpu_result(op->store, op->dx, at, room[2]);
            for (int64_t i = 0; i < some; i++) {
                dx[i] = p * dy[i] + (q * x[i] + r);
            }
            cpu_write(k, op->store, some, dx, op->dx, at);
        }
    }
}

tg_status cpu_norm(tg_backend *be, const tg_norm *op) {
    if (op->dtype != TG_F32) {
        return be->ref->norm(be, op);
    }
    const int64_t groups = groups_of(op);
    if (op->backward && (op->dweight || op->dbias) && op->part != TG_NORM_APPLY) {
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, op->channels, 1))) schedule(static)
        for (int64_t c = 0; c < op->channels; c++) {
            weight_sums(be, op, c);
        }
    }
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, groups, 1))) schedule(static)
    for (int64_t i = 0; i < groups; i++) {
        (op->backward ? backward_group : forward_group)(be, op, i);
    }
    return TG_OK;
}

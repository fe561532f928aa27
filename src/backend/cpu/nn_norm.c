/* Norms: groups are shared out to the threads; statistics in f64, a channel after the other. */
#include <math.h>

#include "backend/cpu/nn.h"

/* One group: a run of whole channels of one sample. */
typedef struct group {
    int64_t first;    /* number it starts at */
    int64_t channels; /* of it */
    int64_t channel;  /* the first of them */
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

static void forward_group(tg_backend *be, const tg_norm *op, int64_t index) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const group g = group_at(op, index);
    const int64_t size = g.channels * op->pixels;
    const float *x = (const float *)op->x + g.first;
    float *y = (float *)op->y + g.first;
    const double mean = k->sum(size, x) / (double)size;
    const double inverse = 1.0 / sqrt(scatter(size, mean, x) / (double)size + op->eps);
    for (int64_t c = 0; c < g.channels; c++) {
        const double scale = inverse * of_channel(op->weight, g.channel + c, 1.0);
        const double bias = of_channel(op->bias, g.channel + c, 0.0) - mean * scale;
        k->affine(op->pixels, 0.0f, (float)scale, x + c * op->pixels, (float)bias,
                  y + c * op->pixels);
    }
    op->stats[2 * index] = mean;
    op->stats[2 * index + 1] = inverse;
}

static tg_status cpu_norm_forward(tg_backend *be, const tg_norm *op) {
    if (op->dtype != TG_F32 || op->store) {
        return be->ref->norm_forward(be, op);
    }
    const int64_t groups = groups_of(op);
    const int parts = cpu_parts(be, groups, 1);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(groups, 1, parts, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            forward_group(be, op, i);
        }
    }
    return TG_OK;
}

/* dweight[c] += sum dy n, dbias[c] += sum dy of channel c, n = the normalised x. */
static void weight_sums(tg_backend *be, const tg_norm *op, int64_t c) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    double weight = 0.0, bias = 0.0;
    for (int64_t b = 0; b < op->batch; b++) {
        const int64_t at = (b * op->channels + c) * op->pixels;
        const double *stats = op->stats + 2 * (op->per_channel ? b * op->channels + c : b);
        const float *dy = (const float *)op->dy + at;
        const double sum = k->sum(op->pixels, dy);
        bias += sum;
        weight += (k->dot(op->pixels, dy, (const float *)op->x + at) - stats[0] * sum) * stats[1];
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
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const group g = group_at(op, index);
    const int64_t pixels = op->pixels;
    const double size = (double)(g.channels * pixels);
    const double mean = op->stats[2 * index], inverse = op->stats[2 * index + 1];
    const float *x = (const float *)op->x + g.first, *dy = (const float *)op->dy + g.first;
    float *dx = (float *)op->dx + g.first;
    double sum = 0.0, sum_n = 0.0;
    for (int64_t c = 0; c < g.channels; c++) {
        const double weight = of_channel(op->weight, g.channel + c, 1.0);
        const double s = k->sum(pixels, dy + c * pixels);
        sum += weight * s / size;
        sum_n +=
            weight * (k->dot(pixels, dy + c * pixels, x + c * pixels) - mean * s) * inverse / size;
    }
    for (int64_t c = 0; c < g.channels; c++) {
        const float p = (float)(of_channel(op->weight, g.channel + c, 1.0) * inverse);
        const float q = (float)(-sum_n * inverse * inverse);
        const float r = (float)((sum_n * mean * inverse - sum) * inverse);
        for (int64_t i = c * pixels; i < (c + 1) * pixels; i++) {
            dx[i] = p * dy[i] + (q * x[i] + r);
        }
    }
}

static tg_status cpu_norm_backward(tg_backend *be, const tg_norm *op) {
    if (op->dtype != TG_F32 || op->store) {
        return be->ref->norm_backward(be, op);
    }
    const int64_t groups = groups_of(op);
    const int parts = cpu_parts(be, op->channels, 1);
    if (op->dweight || op->dbias) {
#pragma omp parallel for num_threads(parts) schedule(static)
        for (int p = 0; p < parts; p++) {
            const tg_range r = tg_partition(op->channels, 1, parts, p);
            for (int64_t c = r.begin; c < r.end; c++) {
                weight_sums(be, op, c);
            }
        }
    }
    const int group_parts = cpu_parts(be, groups, 1);
#pragma omp parallel for num_threads(group_parts) schedule(static)
    for (int p = 0; p < group_parts; p++) {
        const tg_range r = tg_partition(groups, 1, group_parts, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            backward_group(be, op, i);
        }
    }
    return TG_OK;
}

void cpu_fill_nn_norm(tg_backend_ops *ops) {
    ops->norm_forward = cpu_norm_forward;
    ops->norm_backward = cpu_norm_backward;
}

/* Predicts the sample in this folder and compares it with the exporting program's prediction. A
 * starting point for other programs. */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sample.h"
#include "tgrad_predict.h"

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

int main(void) {
    char error[TGP_ERROR];
    tgp_model *model = tgp_load("model.tgp", error);
    tgp_session *session = model ? tgp_prepare(model, sample_grid, error) : NULL;
    if (!session) {
        fprintf(stderr, "%s\n", error);
        return EXIT_FAILURE;
    }
    size_t points = 1;
    for (int d = 0; d < tgp_dims(model); d++) {
        points *= (size_t)sample_grid[d];
    }
    const size_t in = (size_t)tgp_in_channels(model) * points;
    const size_t out = (size_t)tgp_out_channels(model) * points;
    float *x = malloc((in + 2 * out) * sizeof(float)), *wanted = x + in, *y = wanted + out;
    FILE *file = fopen("sample.f32", "rb");
    if (!x || !file || fread(x, sizeof(float), in + out, file) != in + out) {
        fprintf(stderr, "sample.f32 cannot be read\n");
        return EXIT_FAILURE;
    }
    fclose(file);

    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        const double begin = milliseconds();
        tgp_predict(session, x, y);
        best = fmin(best, milliseconds() - begin);
    }
    double error_norm = 0, norm = 0;
    for (size_t i = 0; i < out; i++) {
        error_norm += ((double)y[i] - wanted[i]) * ((double)y[i] - wanted[i]);
        norm += (double)wanted[i] * wanted[i];
    }
    const double difference = sqrt(error_norm / norm);
    printf("%.2f ms a prediction, relative difference %.1e\n", best, difference);
    free(x);
    tgp_release(session);
    tgp_free(model);
    return difference < 1e-4 ? EXIT_SUCCESS : EXIT_FAILURE;
}

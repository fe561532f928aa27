/* Values out of tensors, and values into pixels. */
#include "report.h"

#include <math.h>
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>

#include "common/output.h"

enum { MAX_PIXELS = 384 }; /* along a side: finer than a tile of the page shows */

/* `count` elements of a tensor from element `first` on, as pairs of doubles; to be freed. */
static double *read_pairs(tg_context *ctx, const tg_tensor *tensor, int64_t first, int64_t count) {
    const tg_shape shape = tg_shape_of(1, &count);
    char *begin = (char *)tensor->data + (size_t)first * tg_dtype_size(tensor->dtype);
    double *out = cli_need(malloc((size_t)count * 2 * sizeof *out));
    tg_tensor from = {0}, to = {0};
    cli_check(tg_tensor_wrap(ctx, tensor->dtype, &shape, begin, &from));
    cli_check(tg_tensor_wrap(ctx, TG_C128, &shape, out, &to));
    cli_check(tg_tensor_convert(ctx, &from, &to));
    return out;
}

cli_field cli_field_read(tg_context *ctx, const tg_tensor *tensor, int64_t sample,
                         int64_t channel) {
    const tg_shape *shape = &tensor->shape;
    const int n_dim = shape->ndim - 2;
    cli_field out = {.height = n_dim > 1 ? shape->dim[shape->ndim - 2] : 1,
                     .width = shape->dim[shape->ndim - 1],
                     .is_complex = tg_dtype_is_complex(tensor->dtype)};
    const int64_t slices = n_dim == 3 ? shape->dim[2] : 1;
    const int64_t slice = (sample * shape->dim[1] + channel) * slices + slices / 2;
    const int64_t size = out.height * out.width;
    out.value = read_pairs(ctx, tensor, slice * size, size);
    return out;
}

void cli_field_free(cli_field *field) {
    free(field->value);
    *field = (cli_field){0};
}

double *cli_field_shown(const cli_field *field) {
    const int64_t count = field->height * field->width;
    double *shown = cli_need(malloc((size_t)count * sizeof *shown));
    for (int64_t i = 0; i < count; i++) {
        const double re = field->value[2 * i], im = field->value[2 * i + 1];
        shown[i] = field->is_complex ? hypot(re, im) : re;
    }
    return shown;
}

double *cli_field_error(const cli_field *prediction, const cli_field *truth) {
    const int64_t count = truth->height * truth->width;
    double *error = cli_need(malloc((size_t)count * sizeof *error));
    for (int64_t i = 0; i < count; i++) {
        const double re = prediction->value[2 * i] - truth->value[2 * i];
        const double im = prediction->value[2 * i + 1] - truth->value[2 * i + 1];
        error[i] = truth->is_complex || prediction->is_complex ? hypot(re, im) : re;
    }
    return error;
}

void cli_field_range(const double *value, int64_t count, double *low, double *high) {
    *low = INFINITY;
    *high = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(value[i])) {
            *low = fmin(*low, value[i]);
            *high = fmax(*high, value[i]);
        }
    }
    if (*low > *high) {
        *low = *high = 0.0;
    }
}

double cli_field_distance(tg_context *ctx, const tg_tensor *prediction, const tg_tensor *truth,
                          int64_t sample, int64_t channel) {
    const int64_t whole = tg_tensor_numel(truth) / truth->shape.dim[0];
    const int64_t count = channel < 0 ? whole : whole / truth->shape.dim[1];
    const int64_t first = sample * whole + (channel < 0 ? 0 : channel * count);
    CLI_FREED double *p = read_pairs(ctx, prediction, first, count);
    CLI_FREED double *y = read_pairs(ctx, truth, first, count);
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < 2 * count; i++) {
        error += (p[i] - y[i]) * (p[i] - y[i]);
        norm += y[i] * y[i];
    }
    return sqrt(error / (norm == 0.0 ? 1.0 : norm));
}

/* ---- PNG by libpng, which no other file sees; the file is put together in memory first, so that a
 * failing disk is one failing write and never a long jump ---- */

static void append(png_structp png, png_bytep data, size_t size) {
    cli_bytes_add(png_get_io_ptr(png), data, size);
}

static void flush_nothing(png_structp png) {
    (void)png;
}

static void stay_silent(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void jump_back(png_structp png, png_const_charp message) {
    (void)message;
    longjmp(*(jmp_buf *)png_get_error_ptr(png), 1);
}

typedef struct indexed_picture {
    int width, height;
    unsigned char *pixel;              /* (height, width) numbers of colours */
    uint32_t palette[CLI_MAP_COLOURS]; /* 0xRRGGBB */
} indexed_picture;

/* 8 bits a pixel: the number of its colour in the palette. */
static bool encode(const indexed_picture *p, cli_bytes *out) {
    png_color palette[256];
    jmp_buf failed;
    png_structp png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, &failed, jump_back, stay_silent);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info || setjmp(failed)) {
        png_destroy_write_struct(&png, &info);
        return false;
    }
    for (int i = 0; i < 256; i++) {
        const uint32_t rgb = p->palette[i];
        palette[i] = (png_color){(rgb >> 16) & 255, (rgb >> 8) & 255, rgb & 255};
    }
    png_set_write_fn(png, out, append, flush_nothing);
    png_set_IHDR(png, info, (png_uint_32)p->width, (png_uint_32)p->height, 8,
                 PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, 256);
    png_write_info(png, info);
    for (int y = 0; y < p->height; y++) {
        png_write_row(png, p->pixel + (size_t)p->width * (size_t)y);
    }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return true;
}

/* ---- pictures ---- */

/* The mean over a block of step x step values, cut off at the edges. */
static double block_mean(const double *value, int64_t height, int64_t width, int64_t step,
                         int64_t row, int64_t column) {
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t i = row * step; i < height && i < (row + 1) * step; i++) {
        for (int64_t j = column * step; j < width && j < (column + 1) * step; j++, count++) {
            sum += value[i * width + j];
        }
    }
    return sum / (double)count;
}

/* The place of a value between low (0) and high (1); if these are equal: below, at (0.5) or above.
 */
static double place_between(double value, double low, double high) {
    if (high > low || isnan(value)) {
        return (value - low) / (high - low);
    }
    return value < low ? 0.0 : value > high ? 1.0 : 0.5;
}

void cli_field_draw(cli_html *page, const double *value, int64_t height, int64_t width, cli_map map,
                    double low, double high, const char *alt) {
    const int64_t longest = height > width ? height : width;
    const int64_t step = (longest + MAX_PIXELS - 1) / MAX_PIXELS;
    const int rows = (int)((height + step - 1) / step), columns = (int)((width + step - 1) / step);
    CLI_OWNED(cli_bytes_free) cli_bytes file = {0};
    indexed_picture p = {.width = columns,
                         .height = rows,
                         .pixel = cli_need(malloc((size_t)rows * (size_t)columns))};
    cli_map_table(map, p.palette);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            const double mean = block_mean(value, height, width, step, i, j);
            p.pixel[i * columns + j] = cli_map_level(place_between(mean, low, high));
        }
    }
    if (!encode(&p, &file)) {
        cli_die("%s: the picture could not be made (libpng)", alt);
    }
    cli_html_add(page, "<img alt=\"%s\" width=\"%d\" height=\"%d\" src=\"", alt, columns, rows);
    cli_html_png(page, (const unsigned char *)file.data, file.size);
    cli_html_add(page, "\">");
    free(p.pixel);
}

/* ---- points: each covers the pixels around it, and a pixel shows the nearest point in front ----
 *
 * Distances are much smaller than the depth of a body, so its back stays hidden. */

/* The point's places in the picture: right, down, and its depth. */
static void look(const cli_points *points, int64_t i, double at[3]) {
    const double *x = points->coordinate;
    const int64_t n = points->count;
    const double other[2] = {points->dims > 1 ? x[n + i] : 0.5,
                             points->dims > 2 ? x[2 * n + i] : 0.0};
    at[0] = x[i];
    at[1] = 1.0 - (points->dims > 2 ? other[1] : other[0]);
    at[2] = points->dims > 2 ? other[0] : 0.0;
}

double *cli_points_picture(const cli_points *points, const double *value) {
    enum { SIZE = CLI_POINTS_PICTURE };
    double *picture = cli_need(malloc((size_t)SIZE * SIZE * sizeof *picture));
    double *score = cli_need(malloc((size_t)SIZE * SIZE * sizeof *score));
    const int reach = (int)ceil(fmin(0.9 * SIZE / sqrt((double)points->count + 1.0), 0.1 * SIZE));
    for (int p = 0; p < SIZE * SIZE; p++) {
        picture[p] = (double)NAN;
        score[p] = INFINITY;
    }
    for (int64_t i = 0; i < points->count; i++) {
        double at[3];
        look(points, i, at);
        if (!(at[0] >= 0.0 && at[0] <= 1.0 && at[1] >= 0.0 && at[1] <= 1.0)) {
            continue; /* of a file that was changed */
        }
        const int row = (int)(at[1] * SIZE), column = (int)(at[0] * SIZE);
        for (int y = row - reach; y <= row + reach; y++) {
            for (int x = column - reach; x <= column + reach; x++) {
                const double from = hypot(x + 0.5 - at[0] * SIZE, y + 0.5 - at[1] * SIZE);
                const double rank = at[2] + from / SIZE;
                if (x >= 0 && x < SIZE && y >= 0 && y < SIZE && from <= reach &&
                    rank < score[y * SIZE + x]) {
                    score[y * SIZE + x] = rank;
                    picture[y * SIZE + x] = value[i];
                }
            }
        }
    }
    free(score);
    return picture;
}

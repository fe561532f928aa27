/* PNG by libpng, which no other file sees. The file is put together in memory first, so that a
 * failing disk is one failing write and never a long jump. */
#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "picture.h"
#include "text.h"

typedef struct buffer {
    unsigned char *bytes;
    size_t used, capacity;
} buffer;

static void append(png_structp png, png_bytep data, size_t size) {
    buffer *out = png_get_io_ptr(png);
    if (out->capacity - out->used < size) {
        out->capacity = 2 * out->capacity + size;
        out->bytes = cli_need(realloc(out->bytes, out->capacity));
    }
    memcpy(out->bytes + out->used, data, size);
    out->used += size;
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

/* 8-bit RGB, 144 dots per inch (so that it is not too large on a page). */
static bool encode(const cli_picture *picture, buffer *out) {
    enum { DOTS_PER_METRE = 5669 };
    jmp_buf failed;
    png_structp png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, &failed, jump_back, stay_silent);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info || setjmp(failed)) {
        png_destroy_write_struct(&png, &info);
        return false;
    }
    png_set_write_fn(png, out, append, flush_nothing);
    png_set_IHDR(png, info, (png_uint_32)picture->width, (png_uint_32)picture->height, 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_pHYs(png, info, DOTS_PER_METRE, DOTS_PER_METRE, PNG_RESOLUTION_METER);
    png_write_info(png, info);
    for (int y = 0; y < picture->height; y++) {
        png_write_row(png, picture->rgb + 3 * (size_t)y * (size_t)picture->width);
    }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return true;
}

static bool write_bytes(const buffer *data, const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) {
        return false;
    }
    const bool is_written = fwrite(data->bytes, 1, data->used, file) == data->used;
    const int reason = errno;
    const bool is_closed = fclose(file) == 0;
    if (!is_written) {
        errno = reason;
    }
    return is_written && is_closed;
}

int cli_picture_write_png(const cli_picture *picture, const char *path) {
    buffer data = {0};
    int code = CLI_OK;
    if (!encode(picture, &data)) {
        code = cli_fail("%s: the picture could not be made (libpng)", path);
    } else if (!write_bytes(&data, path)) {
        code = cli_fail("cannot write %s: %s", path, strerror(errno));
    }
    free(data.bytes);
    return code;
}

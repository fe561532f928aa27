/* PNG by libpng, which no other file sees. The file is put together in memory first, so that a
 * failing disk is one failing write and never a long jump. */
#include <png.h>
#include <setjmp.h>
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

/* Colours of a picture that has few, and the number of each pixel's colour. */
typedef struct palette {
    png_color colour[256];
    int count;
    unsigned char *index; /* (height, width); NULL: more than 256 colours */
} palette;

static palette find_palette(const cli_picture *picture) {
    const size_t pixels = (size_t)picture->width * (size_t)picture->height;
    palette found = {.index = cli_need(malloc(pixels))};
    int last = 0; /* neighbours are often alike */
    for (size_t i = 0; i < pixels; i++) {
        const unsigned char *rgb = picture->rgb + 3 * i;
        int c = found.count > 0 && memcmp(&found.colour[last], rgb, 3) == 0 ? last : 0;
        while (c < found.count && memcmp(&found.colour[c], rgb, 3) != 0) {
            c++;
        }
        if (c == 256) {
            free(found.index);
            return (palette){.index = NULL};
        }
        if (c == found.count) {
            found.colour[found.count++] = (png_color){rgb[0], rgb[1], rgb[2]};
        }
        found.index[i] = (unsigned char)c;
        last = c;
    }
    return found;
}

/* 8 bits of colour number or 3 x 8 bits of RGB, 144 dots per inch (so that it is not too large on
 * a page). */
static bool encode(const cli_picture *picture, palette *few, buffer *out) {
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
                 few->index ? PNG_COLOR_TYPE_PALETTE : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (few->index) {
        png_set_PLTE(png, info, few->colour, few->count);
    }
    png_set_pHYs(png, info, DOTS_PER_METRE, DOTS_PER_METRE, PNG_RESOLUTION_METER);
    png_write_info(png, info);
    const size_t row = (size_t)picture->width * (few->index ? 1 : 3);
    for (int y = 0; y < picture->height; y++) {
        png_write_row(png, (few->index ? few->index : picture->rgb) + row * (size_t)y);
    }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return true;
}

int cli_picture_encode_png(const cli_picture *picture, const char *label, unsigned char **bytes,
                           size_t *size) {
    buffer data = {0};
    palette few = find_palette(picture);
    int code = CLI_OK;
    if (!encode(picture, &few, &data)) {
        code = cli_fail("%s: the picture could not be made (libpng)", label);
        free(data.bytes);
        data = (buffer){0};
    }
    free(few.index);
    *bytes = data.bytes;
    *size = data.used;
    return code;
}

int cli_picture_write_png(const cli_picture *picture, const char *path) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    int code = cli_picture_encode_png(picture, path, &bytes, &size);
    if (code == CLI_OK) {
        code = cli_write_file(path, bytes, size);
    }
    free(bytes);
    return code;
}

/* PNG by libpng, which no other file sees. The file is put together in memory first, so that a
 * failing disk is one failing write and never a long jump. */
#include "png_encode.h"

#include <png.h>
#include <setjmp.h>

#include "common/output.h"

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

/* 8 bits a pixel: the number of its colour in the palette. */
static bool encode(const cli_png *picture, cli_bytes *out) {
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
        const uint32_t rgb = picture->palette[i];
        palette[i] = (png_color){(rgb >> 16) & 255, (rgb >> 8) & 255, rgb & 255};
    }
    png_set_write_fn(png, out, append, flush_nothing);
    png_set_IHDR(png, info, (png_uint_32)picture->width, (png_uint_32)picture->height, 8,
                 PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, 256);
    png_write_info(png, info);
    for (int y = 0; y < picture->height; y++) {
        png_write_row(png, picture->pixel + (size_t)picture->width * (size_t)y);
    }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return true;
}

int cli_png_encode(const cli_png *picture, const char *label, cli_bytes *out) {
    return encode(picture, out) ? CLI_OK
                                : cli_fail("%s: the picture could not be made (libpng)", label);
}

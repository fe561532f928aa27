/* A picture of at most 256 colours as the bytes of a PNG file. */
#ifndef CLI_REPORT_PNG_ENCODE_H
#define CLI_REPORT_PNG_ENCODE_H

#include <stdint.h>

#include "common/text.h"

typedef struct cli_png {
    int width, height;
    unsigned char *pixel;    /* (height, width) numbers of colours */
    const uint32_t *palette; /* (256) 0xRRGGBB */
} cli_png;

/* Adds to `out`. CLI_OK, or CLI_FAILED after a message, which `label` begins. */
int cli_png_encode(const cli_png *picture, const char *label, cli_bytes *out);

#endif

/* From lightness, chroma and hue over OKLab to linear sRGB and bytes. */
#include "colour.h"

#include <math.h>

/* Linear sRGB of a lightness 0 .. 1, a chroma and a hue in degrees. */
static void linear_rgb(double lightness, double chroma, double hue, double rgb[3]) {
    const double degree = 0.017453292519943295;
    const double a = chroma * cos(degree * hue), b = chroma * sin(degree * hue);
    const double l = pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3.0);
    const double m = pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3.0);
    const double s = pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3.0);
    rgb[0] = 4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s;
    rgb[1] = -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s;
    rgb[2] = -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s;
}

static uint32_t byte_of(double linear) {
    const double clipped = fmin(fmax(linear, 0.0), 1.0);
    const double encoded =
        clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * pow(clipped, 1.0 / 2.4) - 0.055;
    return (uint32_t)lround(255.0 * encoded);
}

static uint32_t colour_of(double lightness, double chroma, double hue) {
    double rgb[3];
    linear_rgb(lightness, chroma, hue, rgb);
    return byte_of(rgb[0]) << 16 | byte_of(rgb[1]) << 8 | byte_of(rgb[2]);
}

/* t of 0 .. 1. The chroma is a parabola that stays below what the screen can show on this path:
 * least in the greenish blue, more towards both ends. */
static uint32_t field_colour(double t) {
    const double off = t - 0.45;
    const double chroma = 0.096 + (off < 0.0 ? 0.14 : 0.28) * off * off;
    return colour_of(0.24 + 0.70 * t, chroma, 305.0 - 200.0 * t);
}

/* t of -1 .. 1. */
static uint32_t error_colour(double t) {
    return colour_of(0.975 - 0.53 * fabs(t), 0.15 * fabs(t), t < 0.0 ? 256.0 : 30.0);
}

void cli_map_table(cli_map map, uint32_t colour[CLI_MAP_COLOURS]) {
    for (int i = 0; i < CLI_MAP_LEVELS; i++) {
        const double t = (double)i / (CLI_MAP_LEVELS - 1);
        colour[i] = map == CLI_MAP_FIELD ? field_colour(t) : error_colour(2.0 * t - 1.0);
    }
    colour[CLI_MAP_NAN] = 0x8c8c8c;
}

unsigned char cli_map_level(double t) {
    return isnan(t) ? CLI_MAP_NAN
                    : (unsigned char)lround(fmin(fmax(t, 0.0), 1.0) * (CLI_MAP_LEVELS - 1));
}

/* Colour maps of the report, made here in OKLab, where equal steps look equal.
 *
 * Field: lightness grows on a straight line from a dark violet over blue and green to a light
 * yellow, so that it reads also in grey and with any colour vision. Error: blue for what is too
 * low, white for 0, red for what is too high, the same lightness at the same distance from 0. */
#ifndef CLI_REPORT_COLOUR_H
#define CLI_REPORT_COLOUR_H

#include <stdint.h>

typedef enum cli_map { CLI_MAP_FIELD, CLI_MAP_ERROR } cli_map;

enum {
    CLI_MAP_LEVELS = 255, /* with CLI_COLOUR_NAN a palette of 256 */
    CLI_COLOUR_NAN = 0x8c8c8c
};

/* The colours, 0xRRGGBB, from the lowest value to the highest; the middle one of the error map
 * stands for no error. */
void cli_map_table(cli_map map, uint32_t colour[CLI_MAP_LEVELS]);

/* The colour of t in 0 .. 1; beyond it is clipped, NaN gives CLI_COLOUR_NAN. */
uint32_t cli_map_colour(const uint32_t colour[CLI_MAP_LEVELS], double t);

#endif

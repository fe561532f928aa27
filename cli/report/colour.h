/* Colour maps of the report, made here in OKLab, where equal steps look equal.
 *
 * Field: lightness grows on a straight line from a dark violet over blue and green to a light
 * yellow, so that it reads also in grey and with any colour vision. Error: blue for what is too
 * low, white for 0, red for what is too high, the same lightness at the same distance from 0. */
#ifndef CLI_REPORT_COLOUR_H
#define CLI_REPORT_COLOUR_H

#include <stdint.h>

typedef enum cli_map { CLI_MAP_FIELD, CLI_MAP_ERROR } cli_map;

/* The levels from the lowest value to the highest, and after them a colour for NaN. */
enum { CLI_MAP_LEVELS = 255, CLI_MAP_NAN = CLI_MAP_LEVELS, CLI_MAP_COLOURS };

/* The colours, 0xRRGGBB; the middle level of the error map stands for no error. */
void cli_map_table(cli_map map, uint32_t colour[CLI_MAP_COLOURS]);

/* The level of t in 0 .. 1; beyond it is clipped, NaN gives CLI_MAP_NAN. */
unsigned char cli_map_level(double t);

#endif

/* Layout of lines for the kernels of lines.cu: n = parts * m, the stages of m, the lines per block,
 * and their place in shared memory. A fixed function of the sizes, the same in every process. */
#include "backend/cuda/fft/fft.cuh"

enum {
    TILE_BYTES = 16 << 10, /* points of a tile, unless one line or four columns need more */
};

static fft_divisor divisor_of(int64_t value) {
    return {(uint32_t)value, (uint32_t)(((INT64_C(1) << 31) + value - 1) / value)};
}

/* Instructions per point of a stage: loads, stores, addresses, and the butterfly with its twiddle
 * factors. */
static double stage_cost(int radix) {
    switch (radix) {
    case 16:
        return 21.0;
    case 8:
        return 19.0;
    case 7:
        return 25.0;
    case 5:
        return 20.0;
    case 4:
        return 16.0;
    case 3:
        return 15.0;
    default:
        return 13.0;
    }
}

/* Radices of m, largest first (the first stage has no twiddle factors); 0 if m has a prime factor
 * above 7. */
static int split_length(int m, int *radices) {
    int count = 0, twos = 0;
    for (; m % 2 == 0; m /= 2) {
        twos++;
    }
    const int stages = (twos + 3) / 4; /* radices of at most 16, as equal as possible */
    for (int i = 0; i < stages; i++) {
        radices[count++] = 1 << (twos / stages + (i < twos % stages));
    }
    for (int prime = 7; prime > 2; prime -= 2) {
        for (; m % prime == 0; m /= prime) {
            radices[count++] = prime;
        }
    }
    if (count == 0) {
        radices[count++] = 1;
    }
    return m == 1 ? count : 0;
}

/* The cheapest n = parts * m. More parts pay off when few frequencies are kept. */
static bool choose_parts(fft_lines *lines) {
    const double kept = (double)(lines->real ? 2 * lines->kept - 1 : lines->kept) / lines->n;
    double least = 0.0;
    lines->parts = 0;
    for (int parts = 1; parts <= 16; parts++) {
        int radices[FFT_MAX_STAGES + 16];
        const int count = lines->n % parts == 0 ? split_length(lines->n / parts, radices) : 0;
        double cost = 6.0 * parts * kept;
        for (int i = 0; i < count; i++) {
            cost += stage_cost(radices[i]);
        }
        if (count > 0 && count <= FFT_MAX_STAGES && (lines->parts == 0 || cost < least)) {
            least = cost;
            lines->parts = parts;
            lines->m = lines->n / parts;
            lines->stages = count;
            for (int i = 0, span = 1; i < count; span *= radices[i++]) {
                lines->stage[i] = {radices[i], span, divisor_of(lines->m / radices[i]),
                                   divisor_of(span)};
            }
        }
    }
    return lines->parts > 0;
}

static int power_below(int64_t x) {
    int power = 1;
    for (; 2 * power <= x; power *= 2) {
    }
    return power;
}

/* The smallest odd multiple of `unit` that is >= x; a unit of 0 means no constraint. */
static int odd_multiple(int x, int unit) {
    for (; unit > 0 && x % (2 * unit) != unit; x++) {
    }
    return x;
}

/* Pitches for which threads that access shared memory at the same time (`banks` of them) use
 * different banks. From one thread to the next changes first the line of columns or the part of
 * rows, then the point of a part (neighbours are about a slot apart), then the line of rows. */
static void choose_pitches(fft_lines *lines, int banks) {
    const int parts = power_below(lines->parts), tile = power_below(lines->tile);
    const int points = power_below(lines->m / lines->stage[0].radix);
    int part_unit = 0, line_unit = 0;
    if (lines->by_columns) {
        line_unit = tile < banks ? banks / tile : 1;
        part_unit = tile * parts < banks ? banks / (tile * parts) : 1;
    } else {
        part_unit = parts * points < banks ? points : parts < banks ? banks / parts : 1;
        line_unit = parts * points < banks ? parts * points : 0;
    }
    const int part = lines->m + (lines->m - 1) / FFT_PAD;
    lines->part_pitch = odd_multiple(part, lines->parts > 1 ? part_unit : 0);
    lines->line_pitch = odd_multiple(lines->parts * lines->part_pitch, line_unit);
}

bool cuda_fft_lines_layout(bool wide, bool real, int64_t n, int64_t kept, int64_t first,
                           int64_t inner, fft_lines *out) {
    const int number = 2 * (wide ? (int)sizeof(double) : (int)sizeof(float));
    *out = {};
    if (n > FFT_MAX_SHARED / (2 * number)) {
        return false;
    }
    out->wide = wide;
    out->real = real;
    out->by_columns = inner > 1;
    out->n = (int)n;
    out->kept = (int)kept;
    out->first = (int)first;
    if (!choose_parts(out)) {
        return false;
    }
    /* columns: whole sectors of four numbers; as few tiles as possible, of about the same width */
    const int64_t most = TILE_BYTES / number / n;
    const int64_t wanted = most > 4 ? most : out->by_columns ? 4 : most > 1 ? most : 1;
    const int64_t across = (inner + wanted - 1) / wanted;
    out->tile = (int)(out->by_columns ? ((inner + across - 1) / across + 3) / 4 * 4 : wanted);
    if (out->by_columns && out->tile > inner) {
        out->tile = (int)inner;
    }
    for (;; out->tile /= 2) {
        if (out->tile == 0) {
            return false;
        }
        choose_pitches(out, 128 / number);
        out->shared_bytes = (size_t)2 * out->tile * out->line_pitch * number;
        if (out->shared_bytes <= FFT_MAX_SHARED) {
            break;
        }
    }
    out->threads =
        (int)tg_max(tg_min(((int64_t)out->tile * n / 16 + 31) / 32 * 32, FFT_MAX_THREADS), 64);
    out->by_kept = divisor_of(kept);
    out->by_m = divisor_of(out->m);
    out->by_parts = divisor_of(out->parts);
    out->by_tile = divisor_of(out->tile);
    out->by_first = divisor_of(n / out->stage[0].radix);
    out->by_last = divisor_of(n / out->stage[out->stages - 1].radix);
    return true;
}

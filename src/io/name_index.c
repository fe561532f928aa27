/* Arrays for the order, an open-addressing hash table for look-up.
 *
 * The hash (FNV-1a with a final mixing step) is seeded with the address of the table's memory,
 * which the author of a file cannot know, so that no file can aim its names at one slot. */
#include "io/name_index.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static size_t hash_of(const tg_names *names, const char *name) {
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(uintptr_t)names->slots;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        h = (h ^ *c) * 0x100000001b3u;
    }
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return (size_t)h;
}

/* The slot of the name, or the free one where it belongs. */
static size_t slot_of(const tg_names *names, const char *name) {
    const size_t mask = names->slot_count - 1;
    size_t slot = hash_of(names, name) & mask;
    while (names->slots[slot] && strcmp(names->items[names->slots[slot] - 1], name) != 0) {
        slot = (slot + 1) & mask;
    }
    return slot;
}

static tg_status grow(tg_names *names) {
    tg_status status = TG_OK;
    tg_names larger = {.ctx = names->ctx,
                       .record_bytes = names->record_bytes,
                       .count = names->count,
                       .capacity = names->capacity ? 2 * names->capacity : 16};
    larger.slot_count = 4 * (size_t)larger.capacity;
    larger.records =
        tg_mem_alloc(names->ctx, TG_MEM_OTHER, (size_t)larger.capacity, names->record_bytes);
    TG_TRY(larger.records ? TG_OK : TG_E_MEMORY);
    TG_TRY(TG_ALLOC(names->ctx, TG_MEM_OTHER, larger.items, larger.capacity));
    TG_TRY(TG_NEW(names->ctx, TG_MEM_OTHER, larger.slots, larger.slot_count));
    for (int64_t i = 0; i < names->count; i++) {
        larger.items[i] = names->items[i];
        larger.slots[slot_of(&larger, names->items[i])] = i + 1;
    }
    if (names->count > 0) {
        memcpy(larger.records, names->records, (size_t)names->count * names->record_bytes);
    }
    names->count = 0; /* the items have moved */
    tg_names_clear(names);
    *names = larger;
    return TG_OK;
fail:
    tg_mem_free(names->ctx, larger.records);
    tg_mem_free(names->ctx, larger.items);
    return status;
}

tg_status tg_names_add(tg_names *names, const char *kind, const char *name, const void *record) {
    if (!name || !*name) {
        return tg_fail(names->ctx, TG_E_ARGUMENT, "%s: the name is empty", kind);
    }
    if (!tg_utf8_is_valid(name)) {
        return tg_fail(names->ctx, TG_E_ARGUMENT, "%s '%s': the name is not UTF-8", kind,
                       TG_QUOTED(name));
    }
    if (names->count == names->capacity) {
        TG_CALL(grow(names));
    }
    const size_t slot = slot_of(names, name);
    if (names->slots[slot]) {
        return tg_fail(names->ctx, TG_E_ARGUMENT, "%s '%s': the name is already there", kind,
                       TG_QUOTED(name));
    }
    char *copy = tg_mem_strdup(names->ctx, name);
    if (!copy) {
        return TG_E_MEMORY;
    }
    names->items[names->count++] = copy;
    names->slots[slot] = names->count;
    if (record) {
        memcpy(tg_names_record(names, names->count - 1), record, names->record_bytes);
    }
    return TG_OK;
}

int64_t tg_names_find(const tg_names *names, const char *name) {
    return names->count > 0 ? names->slots[slot_of(names, name)] - 1 : -1;
}

const char *tg_names_item(const tg_names *names, int64_t index) {
    return index >= 0 && index < names->count ? names->items[index] : NULL;
}

void *tg_names_record(const tg_names *names, int64_t index) {
    return index >= 0 && index < names->count ? names->records + (size_t)index * names->record_bytes
                                              : NULL;
}

const char *tg_names_item_of(const tg_names *names, const void *record) {
    return names->items[(size_t)((const char *)record - names->records) / names->record_bytes];
}

tg_status tg_names_missing(const tg_names *names, const char *label, const char *kind,
                           const char *name) {
    char there[400] = "";
    for (int64_t i = 0; i < names->count; i++) {
        tg_names_append(there, sizeof there, i, names->count, names->items[i]);
    }
    return tg_fail(names->ctx, TG_E_ARGUMENT, "%s: there is no %s '%s'; there %s%s", label, kind,
                   TG_QUOTED(name), names->count ? "are " : "is none", there);
}

void tg_names_clear(tg_names *names) {
    for (int64_t i = 0; i < names->count; i++) {
        TG_FREE(names->ctx, names->items[i]);
    }
    TG_FREE(names->ctx, names->items);
    TG_FREE(names->ctx, names->records);
    TG_FREE(names->ctx, names->slots);
    *names = (tg_names){.ctx = names->ctx, .record_bytes = names->record_bytes};
}

/* Bytes of the well-formed UTF-8 character at `c`; 0 if malformed. */
static int utf8_length(const unsigned char *c) {
    if (c[0] < 0x80) {
        return 1;
    }
    const int length = c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool is_overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    const bool is_surrogate = c[0] == 0xed && c[1] >= 0xa0;
    const bool is_beyond = c[0] == 0xf4 && c[1] >= 0x90;
    return is_overlong || is_surrogate || is_beyond ? 0 : length;
}

bool tg_utf8_is_valid(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        int length = utf8_length(c);
        if (length == 0) {
            return false;
        }
        c += length;
    }
    return true;
}

/* Control characters, and those that change the writing direction or end a line: U+061C, U+200E,
 * U+200F, U+2028 to U+202E, U+2066 to U+2069. `c` is well-formed. */
static bool is_hidden(const unsigned char *c) {
    switch (c[0]) {
    case 0xc2:
        return c[1] < 0xa0;
    case 0xd8:
        return c[1] == 0x9c;
    case 0xe2:
        return (c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae))) ||
               (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9);
    default:
        return c[0] < 0x20 || c[0] == 0x7f;
    }
}

const char *tg_quote(const char *text, char quoted[TG_QUOTE]) {
    const unsigned char *c = (const unsigned char *)text;
    size_t used = 0;
    while (*c) {
        const int length = utf8_length(c);
        const int step = length > 0 ? length : 1;
        if (used + (size_t)step + sizeof ".." > TG_QUOTE) {
            memcpy(quoted + used, "..", 2);
            used += 2;
            break;
        }
        if (length == 0 || is_hidden(c)) {
            quoted[used++] = '?';
        } else {
            memcpy(quoted + used, c, (size_t)step);
            used += (size_t)step;
        }
        c += step;
    }
    quoted[used] = '\0';
    return quoted;
}

void tg_names_append(char *text, size_t capacity, int64_t index, int64_t count, const char *name) {
    static const char end[] = " in all)";
    enum { END = sizeof end - 1, TAIL = 40 }; /* room for ", .. (N in all)" */
    const size_t used = strlen(text);
    char quoted[TG_QUOTE];
    if (used >= END && strcmp(text + used - END, end) == 0) {
        return;
    }
    if (used + strlen(tg_quote(name, quoted)) + TAIL < capacity) {
        snprintf(text + used, capacity - used, "%s%s", index ? ", " : "", quoted);
    } else {
        snprintf(text + used, capacity - used, ", .. (%lld%s", (long long)count, end);
    }
}

const char *tg_content_name(const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    if (size == 0) {
        return "an empty file";
    }
    if (size >= 6 && memcmp(at, "\x93NUMPY", 6) == 0) {
        return "an npy file";
    }
    if (size >= 8 && memcmp(at, "\x89HDF\r\n\x1a\n", 8) == 0) {
        return "an HDF5 file";
    }
    if (size >= 2 && at[0] == 'P' && at[1] == 'K') {
        return "a zip archive (of torch.save? use safetensors.torch.save_file)";
    }
    if (size >= 2 && at[0] == 0x80 && at[1] <= 5) {
        return "a pickle, perhaps of torch.save before version 1.6 (save it again)";
    }
    if (size >= 8 && memcmp(at, "MATLAB 5", 8) == 0) {
        return "a MATLAB file of version 5 (save it again with '-v7.3')";
    }
    if (size >= 4 && memcmp(at, "CDF", 3) == 0 && (at[3] == 1 || at[3] == 2 || at[3] == 5)) {
        return "a netCDF file of version 3 (nccopy -k nc4 makes HDF5 of it)";
    }
    for (size_t i = 0; i < size && i < 8; i++) {
        if ((at[i] < ' ' && !strchr("\t\r\n", at[i])) || at[i] > '~' || at[i] == '\0') {
            return NULL;
        }
    }
    return "a text file";
}

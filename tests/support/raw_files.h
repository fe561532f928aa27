/* Bytes in memory as a file of raw arrays. */
#ifndef TEST_SUPPORT_RAW_FILES_H
#define TEST_SUPPORT_RAW_FILES_H

#include "io/formats.h"

/* Reads all of them; `label` stands for the path. On success every element can be read. */
static inline tg_status raw_parse(tg_context *context, tg_file_format format, const char *label,
                                  const void *bytes, size_t size, tg_archive **out) {
    const tg_source source = tg_source_of_memory(context, label, bytes, size);
    TG_CALL(tg_raw_read_all(&source, format, out));
    for (int64_t i = 0; i < tg_archive_count(*out); i++) {
        tg_tensor_stats stats;
        if (tg_archive_find(*out, tg_archive_name(*out, i)) != tg_archive_tensor(*out, i) ||
            tg_tensor_get_stats(context, tg_archive_tensor(*out, i), &stats) != TG_OK) {
            __builtin_trap();
        }
    }
    return TG_OK;
}

#endif

#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

const char *tg_library_read(void *library, const tg_library_row *rows, int count, void *out) {
    for (int i = 0; i < count; i++) {
        void *at = dlsym(library, rows[i].name);
        if (!at) {
            return rows[i].name;
        }
        memcpy((char *)out + rows[i].offset, &at, sizeof at);
    }
    return NULL;
}

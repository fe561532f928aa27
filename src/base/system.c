/* Fixed partitions, usable cores, run-time libraries and available host memory; how this library
 * was built. */
#define _GNU_SOURCE
#include "base/system.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tgrad/tgrad.h"

tg_range tg_partition(int64_t n, int64_t grain, int parts, int index) {
    int64_t units = (n + grain - 1) / grain;
    int64_t share = units / parts;
    int64_t extra = units % parts; /* the first `extra` parts get one unit more */
    int64_t begin = index * share + (index < extra ? index : extra);
    int64_t end = begin + share + (index < extra ? 1 : 0);
    tg_range range = {begin * grain, end * grain};
    range.begin = range.begin < n ? range.begin : n;
    range.end = range.end < n ? range.end : n;
    return range;
}

int tg_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = CPU_COUNT(&set);
        return count > 0 ? count : 1;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* ---- libraries ---- */

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

/* Available host memory as Linux reports it in /proc and /sys. */

enum { PATH = 1024, LINE = 512 };

/* The number after `word` at the start of a line, any unit; false if there is none. */
static bool find_number(const char *path, const char *word, double *out) {
    char line[LINE];
    const size_t length = strlen(word);
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *end = NULL;
        if (strncmp(line, word, length) == 0) {
            *out = strtod(line + length, &end);
            found = end != line + length;
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

/* A file of one number; "max", and its equivalent in version 1, count as none. */
static bool read_number(const char *folder, const char *name, double *out) {
    char path[PATH];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < PATH &&
           find_number(path, "", out) && *out < 0x1p60;
}

/* ---- control groups ---- */

typedef struct group_files {
    const char *controller; /* in /proc/self/cgroup */
    const char *folder;
    const char *limit, *used, *swap_limit, *swap_used;
    const char *caches[2]; /* of files, in memory.stat */
} group_files;

static const group_files versions[2] = {
    {"0::",
     "/sys/fs/cgroup",
     "memory.max",
     "memory.current",
     "memory.swap.max",
     "memory.swap.current",
     {"inactive_file ", "active_file "}},
    {":memory:",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     "",
     "",
     {"total_inactive_file ", "total_active_file "}},
};

/* Lowers *left to the memory left in one group, if that is less. */
static void look_at_group(const group_files *v, const char *folder, double swap, double *left) {
    double limit = 0.0, used = 0.0, cache = 0.0, most = 0.0, swapped = 0.0;
    char path[PATH];
    if (!read_number(folder, v->limit, &limit) || !read_number(folder, v->used, &used)) {
        return;
    }
    if (snprintf(path, sizeof path, "%s/memory.stat", folder) < PATH) {
        for (int i = 0; i < 2; i++) {
            used -= find_number(path, v->caches[i], &cache) ? cache : 0.0;
        }
    }
    if (read_number(folder, v->swap_limit, &most) && read_number(folder, v->swap_used, &swapped)) {
        const double free_swap = most - swapped;
        swap = free_swap < swap ? free_swap : swap;
    }
    const double rest = limit - (used > 0.0 ? used : 0.0) + (swap > 0.0 ? swap : 0.0);
    *left = rest < *left ? rest : *left;
}

/* The path of the process's group below the mount point of a version; "": the top. */
static void find_group(const char *root, const group_files *v, char group[LINE]) {
    char path[PATH], line[LINE];
    group[0] = '\0';
    snprintf(path, sizeof path, "%.900s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, v->controller);
        if (at && (v != &versions[0] || at == line)) {
            snprintf(group, LINE, "%s", at + strlen(v->controller));
            group[strcspn(group, "\n")] = '\0';
        }
    }
    if (file) {
        fclose(file);
    }
}

/* The group and its ancestors. Inside a container the path may not exist, but its top is the
 * container's. */
static void look_at_groups(const char *root, const group_files *v, double swap, double *left) {
    char group[LINE], folder[PATH + LINE];
    find_group(root, v, group);
    for (;;) {
        snprintf(folder, sizeof folder, "%.400s%s%s", root, v->folder, group);
        look_at_group(v, folder, swap, left);
        char *slash = strrchr(group, '/');
        if (!slash) {
            break;
        }
        *slash = '\0';
    }
}

/* Lowers *left to what a limit on address space (ulimit -v) leaves. */
static void look_at_limit(const char *root, double *left) {
    struct rlimit limit;
    char folder[PATH];
    double pages = 0.0;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        snprintf(folder, sizeof folder, "%.400s/proc/self", root) < PATH &&
        read_number(folder, "statm", &pages)) {
        const double rest = (double)limit.rlim_cur - pages * (double)sysconf(_SC_PAGESIZE);
        *left = rest < *left ? rest : *left;
    }
}

bool tg_host_memory_left(const char *root, size_t *left) {
    char path[PATH];
    double available = 0.0, swap = 0.0;
    snprintf(path, sizeof path, "%.900s/proc/meminfo", root);
    if (!find_number(path, "MemAvailable:", &available)) { /* in KiB */
        return false;
    }
    if (!find_number(path, "SwapFree:", &swap)) {
        swap = 0.0;
    }
    double rest = 1024.0 * (available + swap);
    for (int i = 0; i < 2; i++) {
        look_at_groups(root, &versions[i], 1024.0 * swap, &rest);
    }
    look_at_limit(root, &rest);
    *left = rest > 0.0 ? (size_t)rest : 0;
    return true;
}

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

tg_build_info tg_build(void) {
    return (tg_build_info){.version = TG_VERSION,
                           .compiler = COMPILER,
                           .build_type = TG_BUILD_TYPE,
                           .features = TG_FEATURES};
}

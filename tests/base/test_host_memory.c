/* What the host has left, read from made-up trees of /proc and /sys, and from the real ones. */
#define _XOPEN_SOURCE 700
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "support/cmocka.h"
#include "support/files.h"

/* A file of a tree, with its folders. */
static void put(const char *tree, const char *name, const char *text) {
    char path[1024];
    snprintf(path, sizeof path, "%s%s", test_path(tree), name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
    test_write_bytes(path, text, strlen(text));
}

static size_t left_of(const char *tree) {
    size_t left = 7;
    assert_true(tg_host_memory_left(test_path(tree), &left));
    return left;
}

static const char meminfo[] = "MemTotal:       16000 kB\nMemFree:         100 kB\n"
                              "MemAvailable:   8000 kB\nSwapTotal:      4000 kB\n"
                              "SwapFree:       2000 kB\n";

TEST(machines) {
    size_t left = 7;
    put("none", "/proc/other", "");
    assert_false(tg_host_memory_left(test_path("none"), &left));
    put("none", "/proc/meminfo", "MemTotal: 5 kB\n"); /* as old as that */
    assert_false(tg_host_memory_left(test_path("none"), &left));
    put("plain", "/proc/meminfo", meminfo);
    assert_int_equal(left_of("plain"), 10000 * 1024);
    if (tg_host_memory_left("", &left)) {
        assert_true(left > 1 << 20 && left < (size_t)1 << 50);
    }
}

/* Version 2: the smallest of the groups on the way up counts; file caches are free. */
TEST(groups_of_version_2) {
    put("v2", "/proc/meminfo", meminfo);
    put("v2", "/proc/self/cgroup", "0::/users/me\n");
    put("v2", "/sys/fs/cgroup/users/me/memory.max", "max\n");
    put("v2", "/sys/fs/cgroup/users/me/memory.current", "500000\n");
    assert_int_equal(left_of("v2"), 10000 * 1024);
    put("v2", "/sys/fs/cgroup/users/memory.max", "1000000\n");
    put("v2", "/sys/fs/cgroup/users/memory.current", "900000\n");
    put("v2", "/sys/fs/cgroup/users/memory.stat",
        "anon 300000\nfile 600000\ninactive_file 400000\nactive_file 200000\n");
    put("v2", "/sys/fs/cgroup/users/memory.swap.max", "0\n");
    put("v2", "/sys/fs/cgroup/users/memory.swap.current", "0\n");
    assert_int_equal(left_of("v2"), 700000);
    put("v2", "/sys/fs/cgroup/users/memory.swap.max", "60000\n");
    put("v2", "/sys/fs/cgroup/users/memory.swap.current", "10000\n");
    assert_int_equal(left_of("v2"), 750000);
    put("v2", "/sys/fs/cgroup/users/me/memory.max", "500000\n");
    put("v2", "/sys/fs/cgroup/users/me/memory.swap.max", "0\n");
    put("v2", "/sys/fs/cgroup/users/me/memory.swap.current", "0\n");
    assert_int_equal(left_of("v2"), 0);
}

/* Version 1, from inside a container: the path is the one outside. */
TEST(groups_of_version_1) {
    put("v1", "/proc/meminfo", "MemAvailable: 8000 kB\n");
    put("v1", "/proc/self/cgroup", "9:cpu:/\n5:memory:/docker/0a1b\n");
    put("v1", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("v1", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "2000000\n");
    assert_int_equal(left_of("v1"), 8000 * 1024);
    put("v1", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n");
    put("v1", "/sys/fs/cgroup/memory/memory.stat",
        "cache 1\ntotal_inactive_file 30000\ntotal_active_file 20000\n");
    assert_int_equal(left_of("v1"), 2050000);
}

/* Limits on address space (ulimit -v) leave what the process has not mapped yet. */
TEST(limits_on_address_space) {
    struct rlimit before, limit;
    char pages[64];
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = (struct rlimit){(rlim_t)1 << 46, before.rlim_max};
    snprintf(pages, sizeof pages, "%lld 77 5 1\n", (1LL << 46) / sysconf(_SC_PAGESIZE) - 100);
    put("limit", "/proc/meminfo", meminfo);
    put("limit", "/proc/self/statm", pages);
    assert_int_equal(left_of("limit"), 10000 * 1024);
    if (before.rlim_cur == RLIM_INFINITY && setrlimit(RLIMIT_AS, &limit) == 0) {
        const size_t left = left_of("limit");
        assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
        assert_int_equal(left, 100 * sysconf(_SC_PAGESIZE));
    }
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *at) {
    (void)facts;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_trees(void **state) {
    (void)state;
    static const char *const trees[] = {"none", "plain", "v1", "v2", "limit"};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        nftw(test_path(trees[i]), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    test_folder_remove();
    return 0;
}

int main(void) {
    return t_run_tests(NULL, remove_trees);
}

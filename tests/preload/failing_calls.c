/* A library to preload: makes the n-th call of one kind that the program itself makes fail (calls
 * inside other libraries do not count), or reports the order in which files are written, synced and
 * renamed.
 *
 *     FAULT=malloc|write|fsync|rename|open  AT=n (1-based, 0: none)  COUNT=file (gets the calls
 * made) TRACE=file (a line per call: "write PATH", "fsync PATH", "rename FROM TO")
 *
 * A failed call does nothing; errno is ENOMEM, ENOSPC for writes, EIO otherwise. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC visibility push(default)

typedef enum kind { NONE, MALLOC, WRITE, FSYNC, RENAME, OPEN, KINDS } kind;

static const char *const names[KINDS] = {"", "malloc", "write", "fsync", "rename", "open"};
static const int errors[KINDS] = {0, ENOMEM, ENOSPC, EIO, EIO, EIO};

static kind wanted;
static long fail_at;
static atomic_long calls;
static int trace = -1;
static const char *count_path;
static uintptr_t program_begin, program_end;

/* Of the program itself, which comes first. */
static int find_program(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size;
    (void)user;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            program_begin = info->dlpi_addr + part->p_vaddr;
            program_end = program_begin + part->p_memsz;
        }
    }
    return 1;
}

/* The processes that the program starts are left alone. */
__attribute__((constructor)) static void begin(void) {
    const char *fault = getenv("FAULT"), *at = getenv("AT"), *path = getenv("TRACE");
    dl_iterate_phdr(find_program, NULL);
    fail_at = at ? strtol(at, NULL, 10) : 0;
    for (int i = 1; fault && i < KINDS; i++) {
        wanted = strcmp(fault, names[i]) == 0 ? (kind)i : wanted;
    }
    if (path) {
        trace = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                             0666);
    }
    count_path = getenv("COUNT") ? strdup(getenv("COUNT")) : NULL;
    unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void end(void) {
    if (count_path) {
        char text[32];
        const int fd =
            (int)syscall(SYS_openat, AT_FDCWD, count_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        const int length = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
        (void)!syscall(SYS_write, fd, text, length);
        syscall(SYS_close, fd);
    }
}

/* Whether this call is the one that fails. */
static bool fails(kind what, const void *caller) {
    if (what != wanted || (uintptr_t)caller < program_begin || (uintptr_t)caller >= program_end ||
        atomic_fetch_add(&calls, 1) + 1 != fail_at) {
        return false;
    }
    errno = errors[what];
    return true;
}

static void tell(const char *what, const char *path, const char *other) {
    char line[8192];
    if (trace >= 0) {
        const int length = snprintf(line, sizeof line, "%s %s%s%s\n", what, path, other ? " " : "",
                                    other ? other : "");
        (void)!syscall(SYS_write, trace, line, length);
    }
}

static void tell_fd(const char *what, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = trace >= 0 ? readlink(link, path, sizeof path - 1) : -1;
    if (length > 0) {
        path[length] = '\0';
        tell(what, path, NULL);
    }
}

#define CALLER __builtin_return_address(0)
/* The function of that name that this one replaces. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next) {                                                                                   \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
    }

/* ---- memory: glibc's own names, as dlsym asks for memory itself ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    return fails(MALLOC, CALLER) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails(MALLOC, CALLER) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    return fails(MALLOC, CALLER) ? NULL : __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return fails(MALLOC, CALLER) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = fails(MALLOC, CALLER) ? NULL : __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}

/* ---- files ---- */

ssize_t write(int fd, const void *bytes, size_t count) {
    NEXT(write)
    tell_fd("write", fd);
    return fails(WRITE, CALLER) ? -1 : next(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    NEXT(pwrite)
    tell_fd("write", fd);
    return fails(WRITE, CALLER) ? -1 : next(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    NEXT(pwrite64)
    tell_fd("write", fd);
    return fails(WRITE, CALLER) ? -1 : next(fd, bytes, count, offset);
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream) {
    NEXT(fwrite)
    tell_fd("write", fileno(stream));
    return fails(WRITE, CALLER) ? 0 : next(bytes, size, count, stream);
}

int fflush(FILE *stream) {
    NEXT(fflush)
    return fails(WRITE, CALLER) ? EOF : next(stream);
}

/* Closes in any case, as the real one does. */
int fclose(FILE *stream) {
    NEXT(fclose)
    const bool is_bad = fails(WRITE, CALLER);
    const int result = next(stream);
    errno = is_bad ? errors[WRITE] : errno;
    return is_bad ? EOF : result;
}

int fsync(int fd) {
    NEXT(fsync)
    tell_fd("fsync", fd);
    return fails(FSYNC, CALLER) ? -1 : next(fd);
}

int fdatasync(int fd) {
    NEXT(fdatasync)
    tell_fd("fsync", fd);
    return fails(FSYNC, CALLER) ? -1 : next(fd);
}

int rename(const char *from, const char *to) {
    NEXT(rename)
    tell("rename", from, to);
    return fails(RENAME, CALLER) ? -1 : next(from, to);
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    NEXT(open)
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return fails(OPEN, CALLER) ? -1 : next(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    NEXT(open64)
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return fails(OPEN, CALLER) ? -1 : next(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    NEXT(fopen)
    return fails(OPEN, CALLER) ? NULL : next(path, mode);
}

/* Damages files and runs commands on them: `damage [options] -- FILE .. -- COMMAND ..`.
 *
 * Run number i takes file i mod F, changes it in a way that depends on (seed, i) alone, and calls
 * the command with every word "{}" replaced by the path of the damaged copy. A command must end by
 * itself with exit code 0 or 1, within the time limit; 1 needs a message on stderr, and what it
 * writes to stdout and stderr must leave a terminal alone. Anything else is a finding: it is
 * counted, told, and its file is kept. Prints one line of counts; exits 1 if there is a finding. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LARGEST = 1 << 20, /* bytes of a file */
    FILES = 16,
    WORDS = 64,
    SPOKEN = 1 << 16, /* bytes of output that are looked at */
};

typedef struct image {
    unsigned char bytes[LARGEST];
    size_t size;
} image;

typedef struct options {
    uint64_t seed;
    long runs;
    double limit;     /* seconds a command may take */
    const char *path; /* of the damaged copy; "file.h5" */
    const char *label;
} options;

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- damage ---- */

/* A number of 1, 2, 4 or 8 bytes that readers stumble over. */
static void put_number(image *im, size_t at, uint64_t *state) {
    static const uint64_t odd[] = {0,          1,          2,          7,          8,
                                   0x7f,       0x80,       0xff,       0x7fff,     0x8000,
                                   0xffff,     0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX,
                                   UINT64_MAX, 1u << 20,   1ull << 40};
    const size_t width = (size_t)1 << next_random(state) % 4;
    uint64_t value = odd[next_random(state) % (sizeof odd / sizeof odd[0])];
    if (next_random(state) % 4 == 0) { /* an address inside of the file */
        value = next_random(state) % (im->size + 1);
    }
    for (size_t i = 0; i < width && at + i < im->size; i++) {
        im->bytes[at + i] = (unsigned char)(value >> 8 * i);
    }
}

static void damage(image *im, uint64_t *state) {
    const int rounds = 1 + (int)(next_random(state) % 6);
    for (int i = 0; i < rounds && im->size > 0; i++) {
        const size_t at = next_random(state) % im->size, left = im->size - at;
        const uint64_t r = next_random(state);
        switch (next_random(state) % 16) {
        case 0: /* cut off */
            im->size = r % 4 == 0 ? at : im->size;
            break;
        case 1: /* a run of one byte */
            memset(im->bytes + at, (int)(r % 256), left < 16 ? left : 1 + r % 16);
            break;
        case 2: { /* one part over another */
            const size_t from = r % im->size, rest = im->size - from;
            const size_t reach = left < rest ? left : rest;
            memmove(im->bytes + at, im->bytes + from, reach < 64 ? reach : 8 + r % 56);
            break;
        }
        case 3:
        case 4:
        case 5: /* one bit */
            im->bytes[at] ^= (unsigned char)(1u << r % 8);
            break;
        case 6:
        case 7:
        case 8: /* one byte */
            im->bytes[at] = (unsigned char)r;
            break;
        case 9:
        case 10: /* a little more or less */
            im->bytes[at] = (unsigned char)(im->bytes[at] + (r % 2 ? 1 : -1));
            break;
        default:
            put_number(im, at, state);
        }
    }
}

static int read_image(const char *path, image *im) {
    FILE *file = fopen(path, "rb");
    im->size = file ? fread(im->bytes, 1, LARGEST, file) : 0;
    if (file) {
        fclose(file);
    }
    return im->size > 0 && im->size < LARGEST ? 0 : -1;
}

static int write_image(const char *path, const image *im) {
    FILE *file = fopen(path, "wb");
    const size_t written = file ? fwrite(im->bytes, 1, im->size, file) : 0;
    return file && fclose(file) == 0 && written == im->size ? 0 : -1;
}

/* ---- commands ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct outcome {
    int status; /* as wait returns it */
    int hung;
    size_t spoken[2];
    char text[2][SPOKEN]; /* stdout and stderr */
} outcome;

/* Reads both streams until they are closed or the time is over. */
static void listen_to(int fds[2], double deadline, outcome *out) {
    int open_count = 2;
    while (open_count > 0) {
        struct pollfd wait[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
        const double left = deadline - now();
        if (left <= 0.0 || poll(wait, 2, (int)(1e3 * left) + 1) == 0) {
            out->hung = 1;
            return;
        }
        for (int i = 0; i < 2; i++) {
            char spill[4096];
            if (fds[i] < 0 || !wait[i].revents) {
                continue;
            }
            const size_t room = SPOKEN - 1 - out->spoken[i];
            const ssize_t got = room ? read(fds[i], out->text[i] + out->spoken[i], room)
                                     : read(fds[i], spill, sizeof spill);
            if (got <= 0) {
                close(fds[i]);
                fds[i] = -1;
                open_count--;
            } else {
                out->spoken[i] += room ? (size_t)got : 0;
            }
        }
    }
}

static void run(char *const words[], double limit, outcome *out) {
    int streams[2][2];
    out->hung = 0;
    out->spoken[0] = out->spoken[1] = 0;
    if (pipe(streams[0]) != 0 || pipe(streams[1]) != 0) {
        perror("damage: pipe");
        exit(2);
    }
    const pid_t pid = fork();
    if (pid < 0) {
        perror("damage: fork");
        exit(2);
    }
    if (pid == 0) {
        const int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(streams[0][1], 1);
        dup2(streams[1][1], 2);
        for (int i = 0; i < 2; i++) {
            close(streams[i][0]);
            close(streams[i][1]);
        }
        execv(words[0], words);
        _exit(126);
    }
    int fds[2] = {streams[0][0], streams[1][0]};
    close(streams[0][1]);
    close(streams[1][1]);
    listen_to(fds, now() + limit, out);
    if (out->hung) {
        kill(pid, SIGKILL);
    }
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
        out->text[i][out->spoken[i]] = '\0';
    }
    waitpid(pid, &out->status, 0);
}

/* What is wrong with the outcome; NULL if nothing. */
static const char *judge(const outcome *out) {
    if (out->hung) {
        return "hung";
    }
    if (WIFSIGNALED(out->status)) {
        return "crashed";
    }
    if (WEXITSTATUS(out->status) > 1) {
        return "exit code";
    }
    if (WEXITSTATUS(out->status) == 1 && out->spoken[1] == 0) {
        return "no message";
    }
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < out->spoken[i]; k++) {
            const unsigned char c = (unsigned char)out->text[i][k];
            if ((c < 0x20 && c != '\n') || c == 0x7f) {
                return "control characters";
            }
        }
    }
    return NULL;
}

static long parse_options(int argc, char **argv, options *opt, image *images, int *image_count,
                          char **words) {
    int i = 1, count = 0;
    for (; i + 1 < argc && strcmp(argv[i], "--") != 0; i += 2) {
        const char *value = argv[i + 1];
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 's':
            opt->seed = strtoull(value, NULL, 10);
            break;
        case 'n':
            opt->runs = strtol(value, NULL, 10);
            break;
        case 't':
            opt->limit = strtod(value, NULL);
            break;
        case 'o':
            opt->path = value;
            break;
        case 'l':
            opt->label = value;
            break;
        default:
            return -1;
        }
    }
    for (i++; i < argc && strcmp(argv[i], "--") != 0 && *image_count < FILES; i++) {
        if (read_image(argv[i], &images[(*image_count)++]) != 0) {
            fprintf(stderr, "damage: cannot read %s\n", argv[i]);
            return -1;
        }
    }
    for (i++; i < argc && count < WORDS - 1; i++) {
        words[count++] = strcmp(argv[i], "{}") == 0 ? (char *)(uintptr_t)opt->path : argv[i];
    }
    words[count] = NULL;
    return *image_count > 0 && count > 0 ? count : -1;
}

int main(int argc, char **argv) {
    static outcome out;
    static image images[FILES], copy;
    options opt = {.seed = 1, .runs = 100, .limit = 60.0, .path = "file.h5", .label = "command"};
    char *words[WORDS];
    int image_count = 0;
    long findings = 0, errors = 0, endings = 0;
    if (parse_options(argc, argv, &opt, images, &image_count, words) < 0) {
        fprintf(stderr, "usage: damage [-s seed] [-n runs] [-t seconds] [-o path] [-l label] -- "
                        "FILE .. -- COMMAND ..\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    for (long i = 0; i < opt.runs; i++) {
        uint64_t state = opt.seed * 1000003u + (uint64_t)i;
        const image *whole = &images[i % image_count];
        memcpy(copy.bytes, whole->bytes, whole->size);
        copy.size = whole->size;
        damage(&copy, &state);
        if (write_image(opt.path, &copy) != 0) {
            perror("damage: cannot write");
            return 2;
        }
        run(words, opt.limit, &out);
        errors += WIFEXITED(out.status) && WEXITSTATUS(out.status) == 1;
        endings += strstr(out.text[1], "the process that reads this HDF5 file") != NULL;
        const char *wrong = judge(&out);
        if (wrong) {
            char kept[4096];
            findings++;
            snprintf(kept, sizeof kept, "finding-%s-%llu-%ld", opt.label,
                     (unsigned long long)opt.seed, i);
            write_image(kept, &copy);
            fprintf(stderr, "damage: %s: run %ld of seed %llu: %s (wait status %d), kept as %s\n%s",
                    opt.label, i, (unsigned long long)opt.seed, wrong, out.status, kept,
                    out.text[1]);
        }
    }
    printf("%s: %ld damaged files, %ld refused, %ld ended their reader, %ld findings\n", opt.label,
           opt.runs, errors, endings, findings);
    return findings > 0;
}

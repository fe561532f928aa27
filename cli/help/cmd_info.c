/* tgrad info: features of this build and machine, and the backend and threads that a run with these
 * options would use. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/output.h"

/* Instruction sets that matter to numerical code and that this CPU has, "avx2 fma ..". */
static void cpu_features(char *text, size_t capacity) {
    text[0] = '\0';
#if defined(__x86_64__)
    __builtin_cpu_init();
    const struct {
        const char *name;
        int present;
    } features[] = {
        {"sse4.2", __builtin_cpu_supports("sse4.2")},
        {"avx", __builtin_cpu_supports("avx")},
        {"avx2", __builtin_cpu_supports("avx2")},
        {"fma", __builtin_cpu_supports("fma")},
        {"avx512f", __builtin_cpu_supports("avx512f")},
        {"avx512bw", __builtin_cpu_supports("avx512bw")},
        {"avx512vl", __builtin_cpu_supports("avx512vl")},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
    };
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        size_t used = strlen(text);
        if (features[i].present) {
            snprintf(text + used, capacity - used, "%s%s", used ? " " : "", features[i].name);
        }
    }
#elif defined(__aarch64__)
    snprintf(text, capacity, "neon");
#endif
}

/* Resources of one of several processes; plain bytes, to be sent. */
typedef struct rank_facts {
    char host[64];
    char backend[32];
    char device[96]; /* with its number, of a GPU */
    int32_t threads;
} rank_facts;

/* Content of both printers: gathered before the first byte of output. */
typedef struct facts {
    const tg_context *ctx;
    char features[160], libraries[128]; /* of the CPU; of io, a backend names its own */
    int64_t cores, memory;              /* bytes; 0: not known */
    tg_backend_info *backends;          /* (count) */
    int count;
    tg_comm *comm;
    rank_facts *ranks; /* of each process */
} facts;

static void gather(tg_context *ctx, facts *f) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    *f = (facts){.ctx = ctx,
                 .cores = cores > 0 ? cores : 0,
                 .memory = pages > 0 && page > 0 ? (int64_t)pages * page : 0,
                 .count = tg_backend_count()};
    cpu_features(f->features, sizeof f->features);
    tg_io_libraries(f->libraries, sizeof f->libraries);
    f->backends = cli_need(calloc((size_t)f->count, sizeof *f->backends));
    for (int i = 0; i < f->count; i++) {
        cli_check(tg_backend_describe(ctx, i, &f->backends[i]));
    }
}

static const tg_backend_info *find_backend(const facts *f, const char *name) {
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->backends[i].name, name) == 0) {
            return &f->backends[i];
        }
    }
    return NULL;
}

/* The facts of all processes, on every rank. */
static tg_status gather_ranks(tg_context *ctx, const cli_common *common, facts *f) {
    CLI_CALL(tg_comm_create_world(ctx, NULL, &f->comm));
    CLI_CALL(tg_comm_open_device(f->comm, TG_COMM_AUTO));
    const int count = tg_comm_ranks(f->comm), device = cli_device(common);
    f->ranks = cli_need(calloc((size_t)count, sizeof *f->ranks));
    rank_facts *own = &f->ranks[tg_comm_rank(f->comm)];
    (void)gethostname(own->host, sizeof own->host - 1);
    snprintf(own->backend, sizeof own->backend, "%s", tg_backend_name(ctx));
    const char *name = find_backend(f, own->backend)->device;
    if (device >= 0) {
        snprintf(own->device, sizeof own->device, "%d: %.76s", device, name);
    } else {
        snprintf(own->device, sizeof own->device, "%.95s", name);
    }
    own->threads = tg_context_threads(ctx);
    const tg_tensor all = {.dtype = TG_U8,
                           .shape = {1, {(int64_t)((size_t)count * sizeof *f->ranks)}},
                           .data = f->ranks};
    return tg_comm_all_gather(f->comm, &all);
}

static void print_rank_text(const facts *f) {
    const int count = tg_comm_ranks(f->comm);
    if (count > 1) {
        printf("ranks      %d by %s, over %s\n", count, tg_comm_get_launch().launcher,
               tg_comm_get_info(f->comm).transport);
    }
    for (int i = 0; count > 1 && i < count; i++) {
        const rank_facts *r = &f->ranks[i];
        printf("  %-8d %s, backend %s, %s, threads %d\n", i, r->host, r->backend, r->device,
               (int)r->threads);
    }
}

static json_t *json_of_ranks(const facts *f) {
    json_t *list = cli_json_array();
    for (int i = 0; i < tg_comm_ranks(f->comm); i++) {
        const rank_facts *r = &f->ranks[i];
        json_t *rank = cli_json_new(KV("host", r->host), KV("backend", r->backend),
                                    KV("device", r->device), KV("threads", r->threads));
        cli_json_append(list, rank);
    }
    return cli_json_new(KV("launcher", tg_comm_get_launch().launcher),
                        KV("transport", tg_comm_get_info(f->comm).transport), KV("rank", list));
}

static void print_text(const facts *f) {
    const tg_build_info build = tg_build();
    printf("tgrad %s\n", build.version);
    printf("build      %s, %s, with %s\n", build.compiler, build.build_type, build.features);
    printf("machine    %lld cores, %s of memory, %s\n", (long long)f->cores,
           CLI_BYTES((uint64_t)f->memory), f->features);
    const tg_backend_info *gpu = find_backend(f, "cuda");
    printf("gpu        %s\n", !gpu           ? "none: this build has no cuda backend"
                              : *gpu->device ? gpu->device
                                             : gpu->reason);
    printf("libraries  %s\n", f->libraries);
    printf("threads    %d\n", tg_context_threads(f->ctx));
    printf("backend    %s\n", tg_backend_name(f->ctx));
    if (*tg_backend_math(f->ctx)) {
        printf("math       %s\n", tg_backend_math(f->ctx));
    }
    print_rank_text(f);
    for (int i = 0; i < f->count; i++) {
        const tg_backend_info *info = &f->backends[i];
        printf("\nbackend %s: %s\n", info->name, info->summary);
        printf("  available  %s%s%s\n", info->available ? "yes" : "no", *info->reason ? ": " : "",
               info->reason);
        const struct {
            const char *title, *text;
        } lines[] = {{"device", info->device},
                     {"libraries", info->libraries},
                     {"overrides", info->overrides}};
        for (int k = 0; k < 3; k++) {
            if (*lines[k].text) {
                printf("  %-9s  %s\n", lines[k].title, lines[k].text);
            }
        }
    }
}

static json_t *json_of_backend(const tg_backend_info *info) {
    return cli_json_new(KV("name", info->name), KV("summary", info->summary),
                        KV("available", json_boolean(info->available)), KV("reason", info->reason),
                        KV("device", info->device),
                        KV("libraries", cli_json_words(info->libraries, ", ")),
                        KV("overrides", cli_json_words(info->overrides, " ")));
}

static void print_json(const facts *f) {
    const tg_build_info build = tg_build();
    const tg_backend_info *gpu = find_backend(f, "cuda");
    json_t *backends = cli_json_array();
    for (int i = 0; i < f->count; i++) {
        cli_json_append(backends, json_of_backend(&f->backends[i]));
    }
    json_t *object = cli_json_new(
        KV("version", build.version),
        KV("build", cli_json_new(KV("compiler", build.compiler), KV("type", build.build_type),
                                 KV("features", cli_json_words(build.features, " ")))),
        KV("machine", cli_json_new(KV("cores", f->cores), KV("memory_bytes", f->memory),
                                   KV("features", cli_json_words(f->features, " ")))),
        KV("gpu", gpu && *gpu->device ? cli_json_text(gpu->device) : json_null()),
        KV("libraries", cli_json_words(f->libraries, ", ")),
        KV("threads", tg_context_threads(f->ctx)));
    cli_json_set_backend(object, f->ctx);
    cli_json_put(object, KV("ranks", json_of_ranks(f)), KV("backends", backends));
    cli_json_print(object);
}

static int run(const cli_call *call) {
    facts f;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    gather(ctx, &f);
    const tg_status status = gather_ranks(ctx, call->common, &f);
    if (status == TG_OK && cli_is_first()) { /* rank 0 reports */
        (call->common->json ? print_json : print_text)(&f);
    }
    free(f.backends);
    free(f.ranks);
    tg_comm_destroy(&f.comm);
    return cli_code(ctx, status);
}

const cli_command cli_cmd_info = {
    .name = "info",
    .arguments = "",
    .summary = "Show the build, the machine and what each backend supports here",
    .description =
        "'backend', 'threads' and, on a GPU, 'math' are what a run with the same options\n"
        "would use.\n"
        "'overrides' are the operations that a backend implements itself; all others are\n"
        "those of ref. Asking for a backend that cannot run here is an error.\n"
        "Under mpirun, mpiexec or srun it reports this for every process.\n",
    .examples = "  tgrad info\n"
                "  tgrad info --backend cuda\n"
                "  tgrad info --json | jq -r .backend\n"
                "  mpirun -n 4 tgrad info\n",
    .takes = CLI_TAKES_DEVICE | CLI_TAKES_JSON,
    .run = run,
};

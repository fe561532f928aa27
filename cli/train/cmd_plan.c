/* tgrad plan: will it fit? Parameters and bytes of a run, without running it; and with --fit, what
 * to change so that it does. */
#include <stdlib.h>

#include "common/input_files.h"
#include "common/workbench.h"
#include "plan_fit.h"

static const char *preset;
static const char *method;
static const char *fit;
static int64_t batch;
static int64_t ranks = 1;
static const char *split;
static const char *link_speed;
static const char *latency_us;
static const char *step_ms;
static bool shows_paths;

static const cli_option options[] = {
    CLI_OPTION_TEXT("preset", 0, &preset, cli_presets, "NAME",
                    "ns128, ns1024(_max_memory), darcy421, burgers, em or gino, no file", NULL),
    CLI_OPTION_TEXT("opt", 0, &method, NULL, "NAME", "adam, lowrank, tensorgrad, ..",
                    "the file's, or adam"),
    CLI_OPTION_INT("batch", 0, &batch, 1, 1 << 30, "N", "samples of a step", "as set"),
    CLI_OPTION_INT("ranks", 0, &ranks, 1, 1 << 20, "P", "processes that share every batch", "1"),
    CLI_OPTION_TEXT("split", 0, &split, NULL, "D",
                    "of those, ranks that share each sample; or auto", "1"),
    CLI_OPTION_TEXT("link", 0, &link_speed, NULL, "BYTES",
                    "with --ranks: bandwidth of a link per second, 25GB", NULL),
    CLI_OPTION_TEXT("latency-us", 0, &latency_us, NULL, "T",
                    "with --link: time of a short message, us", "0"),
    CLI_OPTION_TEXT("step-ms", 0, &step_ms, NULL, "T",
                    "with --link: compute time of a rank in a step, ms", NULL),
    CLI_OPTION_TEXT("fit", 0, &fit, NULL, "BYTES",
                    "propose settings with which the run fits: 8GB, 7.5GiB", NULL),
    CLI_OPTION_FLAG("paths", 0, &shows_paths,
                    "also the path and kernels that the backend uses for each op"),
    {0},
};

/* The planned run. */
typedef struct subject {
    const char *name; /* of the file or preset */
    tg_settings *settings;
    bool has_data;
    tg_train_memory memory;
    cli_paths paths; /* with --paths */
} subject;

static void free_subject(subject **s) {
    tg_settings_destroy(&(*s)->settings);
    cli_paths_free(&(*s)->paths);
}

static const tg_train_phase *peak_of(const tg_train_memory *m, tg_place place) {
    return &m->phase[m->peak_phase[place]];
}

static const char *method_of(const subject *s) {
    return cli_setting_or(s->settings, "opt.name", "adam");
}

/* ---- several ranks ---- */

/* Speeds that were asked about; 0: none. */
typedef struct speeds {
    double link;    /* bytes per second */
    double latency; /* seconds of a short message */
    double compute; /* seconds of a step */
} speeds;

static double read_time(const char *option, const char *unit, const char *text, double factor) {
    char *end = NULL;
    const double seconds = text ? factor * strtod(text, &end) : 0.0;
    if (text && (end == text || *end || !(seconds > 0.0 && seconds < 1e9))) {
        cli_misuse("plan", "%s needs a number of %s, not '%.64s'", option, unit, text);
    }
    return seconds;
}

static speeds read_speeds(void) {
    speeds out = {0};
    if ((link_speed && ranks == 1) || ((step_ms || latency_us) && !link_speed)) {
        cli_misuse("plan", "--link goes with --ranks, --step-ms and --latency-us with --link");
    }
    if (link_speed && (!tg_bytes_parse(link_speed, &out.link) || !(out.link >= 1.0))) {
        cli_misuse("plan", "--link needs bytes per second (25GB, 400MB), not '%.64s'", link_speed);
    }
    out.compute = read_time("--step-ms", "milliseconds", step_ms, 1e-3);
    out.latency = read_time("--latency-us", "microseconds", latency_us, 1e-6);
    return out;
}

/* Seconds of an update on a ring of links: every rank sends and receives 2 (P - 1) / P of the
 * reduced bytes; with sharded state half of that are the updates that return. The ranks of a sample
 * send what is counted. Every message begins when the one before has arrived. */
static double exchange_time(const tg_train_memory *m, const speeds *at) {
    return (2.0 * (double)(ranks - 1) / (double)ranks * (double)m->sent + (double)m->sent_split) /
               at->link +
           (double)(m->messages + m->messages_split) * at->latency;
}

/* Nothing is sent while something is computed. */
static double efficiency(const tg_train_memory *m, const speeds *at) {
    return at->compute / (at->compute + exchange_time(m, at));
}

static void print_exchange(const tg_train_memory *m, const speeds *at) {
    char sent[CLI_UNIT_TEXT], dense[CLI_UNIT_TEXT], refresh[CLI_UNIT_TEXT];
    printf("\n%lld ranks: each sends %s in a step (%s without compression), %s when it refreshes\n",
           (long long)ranks, cli_bytes_text(m->sent, sent), cli_bytes_text(m->sent_dense, dense),
           cli_bytes_text(m->sent_refresh, refresh));
    if (m->parts > 1) {
        printf("groups of %d share a sample: each rank sends %s more in a step, in %lld messages\n",
               m->parts, cli_bytes_text(m->sent_split, sent), (long long)m->messages_split);
    }
    if (m->sent_updates > 0) {
        printf("moments live on one rank each, rank 0 has most of them; updates of %s are sent "
               "back\n",
               cli_bytes_text(m->sent_updates, sent));
    }
    if (at->link > 0.0) {
        printf("on links of %.4g GB/s: %.3g ms per step", 1e-9 * at->link,
               1e3 * exchange_time(m, at));
        if (at->compute > 0.0) {
            printf(", %.4g with %.4g ms of computing, efficiency %.1f %%",
                   1e3 * (at->compute + exchange_time(m, at)), 1e3 * at->compute,
                   100.0 * efficiency(m, at));
        }
        printf("\n");
    }
}

static json_t *json_of_exchange(const tg_train_memory *m, const speeds *at) {
    json_t *object =
        cli_json_new(KV("count", ranks), KV("sent", m->sent), KV("sent_dense", m->sent_dense),
                     KV("sent_refresh", m->sent_refresh), KV("sent_updates", m->sent_updates),
                     KV("split", m->parts), KV("sent_split", m->sent_split),
                     KV("messages", m->messages), KV("messages_split", m->messages_split));
    if (at->link > 0.0) {
        cli_json_set(object, "communication_ms", cli_json_real(1e3 * exchange_time(m, at)));
    }
    if (at->compute > 0.0) {
        cli_json_set(object, "efficiency", cli_json_real(efficiency(m, at)));
    }
    return object;
}

/* ---- text ---- */

static void print_peak(const tg_train_memory *m) {
    const tg_train_phase *peak = peak_of(m, m->place);
    CLI_FREED char *columns = cli_format("%s:name|bytes>:bytes|>:bytes B", peak->name);
    json_t *rows = cli_json_array();
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        const size_t bytes = peak->bytes[m->place][c];
        if (bytes > 0) {
            cli_json_append(rows, cli_json_new(KV("name", tg_mem_category_name((tg_mem_category)c)),
                                               KV("bytes", bytes)));
        }
    }
    cli_json_append(rows, cli_json_new(KV("name", "peak"), KV("bytes", m->peak_total[m->place])));
    cli_print_rows(rows, columns);
    json_decref(rows);
}

static void print_phases(const tg_train_memory *m) {
    json_t *rows = cli_json_array();
    for (int i = 0; i < m->count; i++) {
        const tg_train_phase *phase = &m->phase[i];
        CLI_FREED char *total = cli_format("%s%s", i == m->peak_phase[m->place] ? "peak " : "",
                                           CLI_BYTES(phase->total[m->place]));
        cli_json_append(rows, cli_json_new(KV("name", phase->name), KV("total", total),
                                           KV("host", phase->total[TG_HOST])));
    }
    cli_print_rows(rows, m->place == TG_HOST ? "over the run:name|>:total"
                                             : "over the run:name|>:total|host>:host B");
    json_decref(rows);
}

/* The modes as they are set; of a UNO those of each layer. */
static const char *modes_of(const subject *s, const char *fallback) {
    return cli_setting_or(s->settings, "fno.n_modes",
                          cli_setting_or(s->settings, "fno.uno_n_modes", fallback));
}

static void print_text(const subject *s, const speeds *at) {
    char text[CLI_UNIT_TEXT];
    const tg_train_memory *m = &s->memory;
    cli_say("%s: %lld parameters; modes %s, batch %s at resolution %s, optimizer %s", s->name,
            (long long)m->parameters, modes_of(s, "?"),
            cli_setting_or(s->settings, "data.batch_size", "16"),
            cli_setting_or(s->settings, "data.train_resolution", "?"), method_of(s));
    putchar('\n');
    print_peak(m);
    printf("\n");
    print_phases(m);
    printf("\ninference alone: %s\n", cli_bytes_text(m->inference, text));
    if (m->clamped.params > 0) {
        cli_say("%s", m->clamped.note);
    }
    if (s->has_data && m->missing[0]) {
        cli_say("data are not counted: %s", m->missing);
    }
    if (ranks > 1) {
        print_exchange(m, at);
    }
    if (shows_paths) {
        putchar('\n');
        cli_paths_print(&s->paths);
    }
}

/* ---- JSON ---- */

static json_t *json_of_phase(const tg_train_phase *phase, tg_place place) {
    json_t *object = cli_json_object();
    cli_json_set(object, "peak", cli_json_integer((int64_t)phase->total[place]));
    for (int c = 0; c < TG_MEM_OTHER; c++) {
        cli_json_set(object, tg_mem_category_name((tg_mem_category)c),
                     cli_json_integer((int64_t)phase->bytes[place][c]));
    }
    cli_json_set(object, "moment", cli_json_text(phase->name));
    return object;
}

static json_t *json_of_grid(const subject *s) {
    tg_fno_config fno = tg_fno_config_default();
    json_t *grid = cli_json_array();
    const bool has_modes = tg_settings_get(s->settings, "fno.n_modes") != NULL;
    const char *key = has_modes ? "n_modes" : "uno_n_modes";
    const char *kind = cli_setting_or(s->settings, "fno.architecture", "fno");
    if (tg_fno_config_set(NULL, &fno, key, modes_of(s, "1")) == TG_OK &&
        tg_fno_config_set(NULL, &fno, "architecture", kind) == TG_OK) {
        int64_t points[TG_DATA_MAX_DIMS] = {0};
        const char *text = cli_setting_or(s->settings, "data.train_resolution", "0");
        const int sizes = tg_grid_parse(text, points);
        for (int d = 0; d < cli_data_dims(&fno); d++) {
            cli_json_append(grid, cli_json_integer(points[sizes > 1 ? d : 0]));
        }
    }
    return grid;
}

static json_t *json_of_clamped(const tg_clamped_rank *clamped) {
    if (clamped->params == 0) {
        return json_null();
    }
    return cli_json_new(KV("parameter", clamped->name), KV("parameters", clamped->params),
                        KV("asked", clamped->asked), KV("taken", clamped->taken),
                        KV("share", clamped->share), KV("note", clamped->note));
}

static void print_json(const subject *s, const speeds *at) {
    const tg_train_memory *m = &s->memory;
    json_t *phases = cli_json_array();
    json_t *object = cli_json_new(
        KV("name", s->name), KV("optimizer", method_of(s)),
        KV("batch", strtoll(cli_setting_or(s->settings, "data.batch_size", "16"), NULL, 10)),
        KV("grid", json_of_grid(s)), KV("parameters", m->parameters),
        KV("place", m->place == TG_HOST ? "host" : "device"),
        KV("memory", json_of_phase(peak_of(m, m->place), m->place)));
    for (int i = 0; i < m->count; i++) {
        cli_json_append(phases, json_of_phase(&m->phase[i], m->place));
    }
    cli_json_set(object, "moments", phases);
    if (m->place != TG_HOST) {
        cli_json_set(object, "host", json_of_phase(peak_of(m, TG_HOST), TG_HOST));
    }
    cli_json_put(object, KV("inference", m->inference),
                 KV("clamped_rank", json_of_clamped(&m->clamped)));
    if (ranks > 1) {
        cli_json_set(object, "ranks", json_of_exchange(m, at));
    }
    if (shows_paths) {
        cli_json_set(object, "paths", cli_paths_json(&s->paths));
    }
    cli_json_set(object, "missing",
                 s->has_data && m->missing[0] ? cli_json_text(m->missing) : json_null());
    cli_json_print(object);
}

/* ---- fitting ---- */

static json_t *json_of_proposal(const cli_proposal *p) {
    char text[512];
    json_t *settings = cli_json_object();
    for (int i = 0; i < p->count; i++) {
        cli_json_set(settings, p->key[i], cli_json_text(p->value[i]));
    }
    return cli_json_new(KV("settings", settings),
                        KV("arguments", cli_proposal_arguments(p, text, sizeof text)),
                        KV("peak", p->peak), KV("moment", p->phase), KV("time", p->time));
}

static void print_fit(const subject *s, const cli_fit *found, size_t bytes, bool json) {
    char room[CLI_UNIT_TEXT], peak[CLI_UNIT_TEXT], text[512];
    if (json) {
        json_t *list = cli_json_array();
        for (int i = 0; i < found->count; i++) {
            cli_json_append(list, json_of_proposal(&found->proposal[i]));
        }
        cli_json_print(cli_json_new(KV("name", s->name), KV("fit", bytes),
                                    KV("fits", json_boolean(found->now.peak <= bytes)),
                                    KV("peak", found->now.peak), KV("proposals", list)));
        return;
    }
    cli_bytes_text(bytes, room);
    if (found->now.peak <= bytes) {
        cli_say("%s fits in %s as it is: %s at most (%s)", s->name, room,
                cli_bytes_text(found->now.peak, peak), found->now.phase);
        return;
    }
    cli_say("%s takes %s (%s); it fits in %s with", s->name, cli_bytes_text(found->now.peak, peak),
            found->now.phase, room);
    putchar('\n');
    for (int i = 0; i < found->count; i++) {
        const cli_proposal *p = &found->proposal[i];
        printf("  %s\n      %s at most (%s); a step takes about %.2f times as long\n",
               cli_proposal_arguments(p, text, sizeof text), cli_bytes_text(p->peak, peak),
               p->phase, p->time);
    }
}

/* The smallest number of ranks that could share each sample with `bytes` on each; 0: none. */
static int64_t find_split(tg_context *ctx, const subject *s, size_t bytes) {
    static tg_train_memory memory; /* large */
    CLI_OWNED(tg_settings_destroy) tg_settings *shared = NULL;
    cli_check(tg_settings_copy(ctx, s->settings, &shared));
    for (int parts = 2; parts <= 1024; parts *= 2) {
        cli_check(cli_settings_set_integer(shared, "distributed.split", parts, "--fit"));
        if (tg_train_plan(ctx, shared, parts, &memory) != TG_OK) {
            return 0;
        }
        if (memory.peak_total[memory.place] <= bytes) {
            return parts;
        }
    }
    return 0;
}

static int run_fit(tg_context *ctx, const subject *s, bool json) {
    double bytes = 0.0;
    cli_fit found;
    char room[CLI_UNIT_TEXT], peak[CLI_UNIT_TEXT], least[CLI_UNIT_TEXT], text[512];
    if (!tg_bytes_parse(fit, &bytes) || !(bytes >= 1.0 && bytes < 0x1p62)) {
        return cli_usage("plan", "--fit needs a number of bytes (8GB, 7.5GiB), not '%.64s'", fit);
    }
    cli_check(cli_fit_search(ctx, s->settings, (size_t)bytes, &found));
    if (found.now.peak > (size_t)bytes && found.count == 0) {
        const char *with = cli_proposal_arguments(&found.smallest, text, sizeof text);
        cli_bytes_text((uint64_t)bytes, room);
        cli_bytes_text(found.now.peak, peak);
        const int64_t parts = find_split(ctx, s, (size_t)bytes);
        char sharing[96] = "";
        if (parts > 0) {
            snprintf(sharing, sizeof sharing,
                     "; %lld ranks that share each sample fit (--ranks, --split)",
                     (long long)parts);
        }
        return *with ? cli_fail("%s does not fit in %s: it takes %s, and %s at least, with %s%s",
                                s->name, room, peak, cli_bytes_text(found.smallest.peak, least),
                                with, sharing)
                     : cli_fail("%s does not fit in %s: it takes %s, whatever is set%s", s->name,
                                room, peak, sharing);
    }
    print_fit(s, &found, (size_t)bytes, json);
    return CLI_OK;
}

/* ---- paths ---- */

/* A step that refreshes and one that does not, on random data: the backend reports its paths. */
static void find_paths(tg_context *ctx, const subject *s) {
    CLI_OWNED(cli_workbench_close) cli_workbench bench = {0};
    const cli_problem problem = cli_problem_from(ctx, s->name, s->settings);
    cli_check(cli_workbench_open(ctx, &problem, 0, &bench));
    cli_check(cli_workbench_run(&bench, TG_GRAPHS_OFF, 2, NULL));
}

/* ---- the command ---- */

static int run(const cli_call *call) {
    static subject s; /* large */
    const cli_run_source source = {.command = "plan",
                                   .preset = preset,
                                   .config = call->args.count > 0 ? call->args.item[0] : NULL,
                                   .method = method,
                                   .batch = batch,
                                   .args = &call->args};
    const speeds at = read_speeds();
    if (fit && ranks > 1) {
        return cli_usage("plan", "--fit is for one process: leave out --ranks");
    }
    if (shows_paths && (fit || ranks > 1)) {
        return cli_usage("plan", "--paths is of one process: leave out --fit and --ranks");
    }
    cli_paths_collect(shows_paths ? &s.paths : NULL);
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(free_subject) subject *owned = &s;
    s.name = preset ? preset : source.config;
    s.settings = cli_run_settings_read(ctx, &source, &s.has_data);
    if (split) {
        cli_check(tg_settings_set(s.settings, "distributed.split", split, "--split"));
    }
    if (fit) {
        return run_fit(ctx, owned, call->common->json);
    }
    cli_check(tg_train_plan(ctx, s.settings, (int)ranks, &s.memory));
    if (shows_paths) {
        find_paths(ctx, &s);
    }
    (call->common->json ? print_json : print_text)(&s, &at);
    return CLI_OK;
}

const cli_command cli_cmd_plan = {
    .name = "plan",
    .arguments = "[CONFIG]",
    .args = {0, 1},
    .summary = "Estimate memory before training",
    .description =
        "Parameters, bytes by category and the highest phase of a whole run: data, steps,\n"
        "refreshes, evaluation, saving. They come from shapes and the data files' headers alone;\n"
        "the memory ledger of the run counts the same, but for some names and handles (category\n"
        "other). Where data files are missing, their samples are not counted.\n\n"
        "--fit proposes settings with which the run fits into BYTES where the backend computes,\n"
        "cheapest first: precision, activation checkpointing, smaller batches with accumulation,\n"
        "compressed moments. Its times are rough. If nothing fits it fails and reports the\n"
        "smallest size it can reach, and how many ranks could share each sample in BYTES each.\n\n"
        "--ranks reports the memory of one of P processes, and the bytes that each sends; with\n"
        "--link the time of that on a ring of such links, and with --step-ms the efficiency.\n"
        "With --split D of the P share each sample, and the one that needs most is reported.\n\n"
        "--paths takes two steps on random data, so the step has to fit here, and prints which of\n"
        "its implementations the backend used for each op; for cuda there must be a GPU.\n",
    .examples = "  tgrad plan --preset ns128 --opt tensorgrad\n"
                "  tgrad plan darcy.yaml --batch 4 --fno.hidden_channels 64\n"
                "  tgrad plan --preset ns1024 --opt adam --fit 24GB\n"
                "  tgrad plan --preset ns1024 --opt tensorgrad --batch 16 --ranks 8 --link 25GB\n"
                "  tgrad plan --preset ns1024 --opt adam --ranks 4 --split 4\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_OVERRIDES,
    .run = run,
};

/* Memory, stream, copy stream and graphs of the fake device. */
#define _DEFAULT_SOURCE
#include "support/fake_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { POISON_BYTE = 0xFF }; /* NaN in f32, f64, bf16 and f16 */

static const size_t arena_bytes = (size_t)1 << 34; /* addresses, not memory */
static const size_t page = 4096;

/* Work in the stream or in a graph. */
typedef struct item {
    struct item *next;
    fake_run run;
    size_t bytes;
    max_align_t arguments[];
} item;

typedef struct item_list {
    item *first, **end;
} item_list;

struct tg_graph {
    item_list items;
    bool runs_at_once; /* when it is launched: a library's work is in it */
};

struct tg_stream_event {
    bool is_reached;
    long recorded, reached; /* times */
};

/* A range of the arena. */
typedef struct stretch {
    struct stretch *next;
    size_t begin, bytes;
    bool is_used;
} stretch;

/* An upload beside the stream. */
typedef struct stream_copy {
    struct stream_copy *next;
    void *dst;
    const void *src;
    size_t bytes;
} stream_copy;

typedef struct fake_state {
    tg_backend *host; /* who computes */
    char *arena;
    size_t reach; /* bytes of the arena that were ever used */
    stretch *stretches;
    tg_mem_device memory;
    item_list stream;
    fake_stream handle, side_handle;
    item_list side; /* work beside the stream, which runs as late as it may */
    tg_graph *capture;
    stream_copy *copies;
    tg_status failed; /* of queued work, until somebody waits */
} fake_state;

static fake_counts counts;
static size_t limit, told_left;
static long graph_to_fail;
static bool caller_captures;

static fake_state *state_of(const tg_backend *be) {
    return be->state;
}

fake_counts fake_device_counts(void) {
    return counts;
}

void fake_device_limit(size_t bytes) {
    limit = bytes;
}

void fake_device_tell_left(size_t bytes) {
    told_left = bytes;
}

void fake_device_fail_graph(long n) {
    graph_to_fail = n;
}

void fake_device_set_capturing(bool captures) {
    caller_captures = captures;
}

tg_backend *fake_host(const tg_backend *be) {
    return state_of(be)->host;
}

/* ---- memory ---- */

static void protect(fake_state *fake, int protection) {
    if (fake->reach > 0 && mprotect(fake->arena, fake->reach, protection) != 0) {
        perror("mprotect");
        abort();
    }
}

static void *arena_alloc(void *state, size_t bytes) {
    fake_state *fake = state;
    const size_t size = (bytes / page + 1) * page;
    stretch **link = &fake->stretches;
    size_t at = 0;
    if (limit > 0 && bytes > limit) {
        return NULL;
    }
    limit -= limit > 0 ? bytes : 0;
    while (*link && (*link)->begin - at < size) { /* the first gap that is large enough */
        at = (*link)->begin + (*link)->bytes;
        link = &(*link)->next;
    }
    stretch *s = malloc(sizeof *s);
    if (!s || at + size > arena_bytes) {
        free(s);
        return NULL;
    }
    *s = (stretch){.next = *link, .begin = at, .bytes = size};
    *link = s;
    fake->reach = at + size > fake->reach ? at + size : fake->reach;
    protect(fake, PROT_READ | PROT_WRITE);
    memset(fake->arena + at, POISON_BYTE, size);
    protect(fake, PROT_NONE);
    return fake->arena + at;
}

static void arena_release(void *state, void *block) {
    fake_state *fake = state;
    const size_t at = (size_t)((char *)block - fake->arena);
    stretch **link = &fake->stretches;
    while (*link && (*link)->begin != at) {
        link = &(*link)->next;
    }
    stretch *s = *link;
    if (s) {
        *link = s->next;
        free(s);
    }
}

static void *pinned_take(void *state, size_t bytes) {
    (void)state;
    void *block = malloc(bytes ? bytes : 1);
    if (block) {
        memset(block, POISON_BYTE, bytes);
    }
    return block;
}

static void pinned_give(void *state, void *block) {
    (void)state;
    free(block);
}

static const tg_mem_device pinned_memory = {pinned_take, pinned_give, NULL, TG_HOST, NULL};

/* ---- the stream ---- */

static void append(item_list *list, item *i) {
    if (!list->end) {
        list->end = &list->first;
    }
    *list->end = i;
    list->end = &i->next;
}

static item *make_item(fake_run run, const void *arguments, size_t bytes) {
    item *i = calloc(1, sizeof *i + bytes);
    if (i) {
        i->run = run;
        i->bytes = bytes;
        memcpy(i->arguments, arguments, bytes);
    }
    return i;
}

tg_status fake_submit(tg_backend *be, fake_run run, const void *arguments, size_t bytes) {
    fake_state *fake = state_of(be);
    item *i = make_item(run, arguments, bytes);
    if (!i) {
        return tg_fail(be->ctx, TG_E_MEMORY, "no memory for the test itself");
    }
    append(fake->capture ? &fake->capture->items : &fake->stream, i);
    return TG_OK;
}

static void drop(item_list *list) {
    while (list->first) {
        item *i = list->first;
        list->first = i->next;
        free(i);
    }
    list->end = NULL;
}

/* Runs the stream up to an event (NULL: all of it). */
static tg_status run_stream(tg_backend *be, const tg_stream_event *until) {
    fake_state *fake = state_of(be);
    const long wanted = until ? until->recorded : 0;
    protect(fake, PROT_READ | PROT_WRITE);
    while (fake->stream.first && !(until && until->reached >= wanted)) {
        item *i = fake->stream.first;
        fake->stream.first = i->next;
        if (!fake->stream.first) {
            fake->stream.end = NULL;
        }
        const tg_status status = i->run(fake->host, i->arguments);
        fake->failed = fake->failed == TG_OK ? status : fake->failed;
        free(i);
    }
    protect(fake, PROT_NONE);
    counts.waits++;
    counts.starved += !fake->stream.first;
    const tg_status status = fake->failed;
    fake->failed = TG_OK;
    return status;
}

static tg_status refuse_capture(tg_backend *be) {
    return tg_fail(be->ctx, TG_E_BACKEND, "a call that waits or allocates while a graph is made");
}

tg_backend *fake_enter(tg_backend *be, tg_status *status) {
    fake_state *fake = state_of(be);
    *status = fake->capture ? refuse_capture(be) : run_stream(be, NULL);
    if (*status != TG_OK) {
        return NULL;
    }
    protect(fake, PROT_READ | PROT_WRITE);
    return fake->host;
}

tg_status fake_leave(tg_backend *be, tg_status status) {
    protect(state_of(be), PROT_NONE);
    return status;
}

/* ---- life, memory and transfers ---- */

static void fake_probe(tg_backend_info *info) {
    info->available = true;
    snprintf(info->device, sizeof info->device, "a device that is none");
}

static char streams[FAKE_DEVICES]; /* their addresses */

void *fake_device_stream(int device) {
    return &streams[device];
}

static tg_status fake_devices(tg_backend *be, void *stream, int *count, int *of_stream) {
    *count = FAKE_DEVICES;
    for (*of_stream = 0; stream && *of_stream < FAKE_DEVICES; ++*of_stream) {
        if (stream == &streams[*of_stream]) {
            return TG_OK;
        }
    }
    return stream ? tg_fail(be->ctx, TG_E_BACKEND, "asking the context's stream failed: it is none")
                  : TG_OK;
}

static void fake_close(tg_backend *be) {
    fake_state *fake = state_of(be);
    if (!fake) {
        return;
    }
    drop(&fake->stream);
    while (fake->stretches) {
        stretch *s = fake->stretches;
        fake->stretches = s->next;
        free(s);
    }
    if (fake->arena) {
        munmap(fake->arena, arena_bytes);
    }
    tg_backend_close(&fake->host);
    free(fake);
    be->state = NULL;
}

static tg_status fake_open(tg_backend *be) {
    fake_state *fake = calloc(1, sizeof *fake);
    if (!fake) {
        return TG_E_MEMORY;
    }
    be->state = fake;
    void *arena =
        mmap(NULL, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fake->arena = arena == MAP_FAILED ? NULL : arena;
    fake->memory = (tg_mem_device){arena_alloc, arena_release, fake, TG_DEVICE, be->stream};
    const tg_status status =
        fake->arena ? tg_backend_open(be->ctx, "cpu", &fake->host) : TG_E_MEMORY;
    if (status != TG_OK) {
        fake_close(be);
    }
    return status;
}

static void *fake_alloc(tg_backend *be, tg_mem_category category, size_t bytes) {
    fake_state *fake = state_of(be);
    if (fake->capture) {
        refuse_capture(be);
        return NULL;
    }
    return tg_mem_device_alloc(be->ctx, &fake->memory, category, bytes);
}

static void fake_release(tg_backend *be, void *block) {
    fake_state *fake = state_of(be);
    if (block && fake) {
        fake->failed = run_stream(be, NULL); /* as freeing waits for a GPU */
        tg_mem_device_free(be->ctx, &fake->memory, block);
    }
}

typedef struct copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} copy_args;

static tg_status run_copy(tg_backend *host, void *arguments) {
    (void)host;
    const copy_args *a = arguments;
    memmove(a->dst, a->src, a->bytes);
    return TG_OK;
}

static tg_status fake_copy(tg_backend *be, void *dst, const void *src, size_t bytes) {
    return fake_submit(be, run_copy, &(copy_args){dst, src, bytes}, sizeof(copy_args));
}

static tg_status transfer_now(tg_backend *be, void *dst, const void *src, size_t bytes) {
    tg_status status = TG_OK;
    if (!fake_enter(be, &status)) {
        return status;
    }
    memcpy(dst, src, bytes);
    return fake_leave(be, status);
}

static tg_status fake_synchronize(tg_backend *be) {
    return state_of(be)->capture ? refuse_capture(be) : run_stream(be, NULL);
}

static tg_status fake_device_facts(tg_backend *be, tg_device_facts *out) {
    *out = (tg_device_facts){.memory_left =
                                 told_left > 0 ? told_left : arena_bytes - state_of(be)->reach,
                             .memory_total = arena_bytes,
                             .address = (uint64_t)be->device};
    return TG_OK;
}

/* ---- pinned memory, events ---- */

static void *fake_pinned_alloc(tg_backend *be, tg_mem_category category, size_t bytes) {
    return tg_mem_device_alloc(be->ctx, &pinned_memory, category, bytes);
}

static void fake_pinned_release(tg_backend *be, void *block) {
    if (block) {
        state_of(be)->failed = run_stream(be, NULL);
        tg_mem_device_free(be->ctx, &pinned_memory, block);
    }
}

static tg_status fake_event_create(tg_backend *be, tg_stream_event **out) {
    *out = tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, sizeof **out);
    return *out ? TG_OK : TG_E_MEMORY;
}

static void fake_event_destroy(tg_backend *be, tg_stream_event **event) {
    if (event && *event) {
        state_of(be)->failed = run_stream(be, NULL);
        tg_mem_free(be->ctx, *event);
        *event = NULL;
    }
}

static tg_status run_event(tg_backend *host, void *arguments) {
    (void)host;
    tg_stream_event *event = *(tg_stream_event **)arguments;
    __atomic_add_fetch(&event->reached, 1, __ATOMIC_SEQ_CST);
    return TG_OK;
}

static tg_status fake_event_record(tg_backend *be, tg_stream_event *event) {
    if (state_of(be)->capture) {
        return refuse_capture(be);
    }
    __atomic_add_fetch(&event->recorded, 1, __ATOMIC_SEQ_CST);
    return fake_submit(be, run_event, &event, sizeof event);
}

static tg_status fake_event_wait(tg_backend *be, tg_stream_event *event) {
    return state_of(be)->capture ? refuse_capture(be) : run_stream(be, event);
}

static bool fake_event_is_reached(tg_backend *be, tg_stream_event *event) {
    (void)be;
    return __atomic_load_n(&event->reached, __ATOMIC_SEQ_CST) ==
           __atomic_load_n(&event->recorded, __ATOMIC_SEQ_CST);
}

/* ---- the copy stream ---- */

typedef struct spoil_args {
    void *dst;
    size_t bytes;
} spoil_args;

static tg_status run_spoil(tg_backend *host, void *arguments) {
    (void)host;
    const spoil_args *a = arguments;
    memset(a->dst, POISON_BYTE, a->bytes);
    return TG_OK;
}

static tg_status fake_copy_stream_upload(tg_backend *be, bool after_stream, void *dst,
                                         const void *pinned, size_t bytes) {
    fake_state *fake = state_of(be);
    stream_copy *copy = malloc(sizeof *copy);
    if (fake->capture || !copy) {
        free(copy);
        return refuse_capture(be);
    }
    *copy = (stream_copy){.next = fake->copies, .dst = dst, .src = pinned, .bytes = bytes};
    fake->copies = copy;
    if (after_stream) {
        return fake_submit(be, run_spoil, &(spoil_args){dst, bytes}, sizeof(spoil_args));
    }
    protect(fake, PROT_READ | PROT_WRITE);
    memset(dst, POISON_BYTE, bytes);
    protect(fake, PROT_NONE);
    return TG_OK;
}

static tg_status join_copies(tg_backend *be) {
    fake_state *fake = state_of(be);
    tg_status status = fake->capture ? refuse_capture(be) : TG_OK;
    while (fake->copies && status == TG_OK) {
        stream_copy *copy = fake->copies;
        fake->copies = copy->next;
        status = fake_copy(be, copy->dst, copy->src, copy->bytes);
        free(copy);
    }
    return status;
}

/* ---- graphs ---- */

static void fake_graph_destroy(tg_backend *be, tg_graph **graph) {
    if (graph && *graph) {
        drop(&(*graph)->items);
        tg_mem_free(be->ctx, *graph);
        *graph = NULL;
    }
}

static tg_status fake_graph_begin(tg_backend *be) {
    fake_state *fake = state_of(be);
    if (fake->capture) {
        return refuse_capture(be);
    }
    fake->capture = tg_mem_calloc(be->ctx, TG_MEM_OTHER, 1, sizeof *fake->capture);
    return fake->capture ? TG_OK : TG_E_MEMORY;
}

static tg_status fake_graph_end(tg_backend *be, tg_graph **out) {
    *out = state_of(be)->capture;
    state_of(be)->capture = NULL;
    if (graph_to_fail > 0 && --graph_to_fail == 0) {
        fake_graph_destroy(be, out);
        return tg_fail(be->ctx, TG_E_BACKEND, "this graph was to fail");
    }
    counts.recorded++;
    return *out ? TG_OK : tg_fail(be->ctx, TG_E_BACKEND, "no graph was begun");
}

/* By the caller, not by fake_graph_begin. */
static bool fake_is_capturing(tg_backend *be) {
    (void)be;
    return caller_captures;
}

static tg_status fake_graph_launch(tg_backend *be, tg_graph *graph) {
    tg_status status = state_of(be)->capture ? refuse_capture(be) : TG_OK;
    for (const item *i = graph->items.first; i && status == TG_OK; i = i->next) {
        status = fake_submit(be, i->run, i->arguments, i->bytes);
    }
    counts.launched++;
    return status == TG_OK && graph->runs_at_once ? run_stream(be, NULL) : status;
}

/* ---- for other libraries ---- */

static tg_status finish(tg_backend *be) {
    tg_graph *capture = state_of(be)->capture;
    if (capture) {
        capture->runs_at_once = true;
    }
    return capture ? TG_OK : run_stream(be, NULL);
}

static tg_status submit_beside(tg_backend *be, fake_run run, const void *arguments, size_t bytes) {
    item *i = make_item(run, arguments, bytes);
    if (i) {
        append(&state_of(be)->side, i);
    }
    return i ? TG_OK : TG_E_MEMORY;
}

static tg_status finish_nothing(tg_backend *be) {
    (void)be;
    return TG_OK;
}

static void *fake_handle(tg_backend *be, tg_stream_id stream) {
    fake_state *fake = state_of(be);
    fake->handle = (fake_stream){be, fake_submit, finish};
    fake->side_handle = (fake_stream){be, submit_beside, finish_nothing};
    return stream == TG_STREAM_SIDE ? &fake->side_handle : &fake->handle;
}

static tg_status join_side(tg_backend *be) {
    fake_state *fake = state_of(be);
    while (fake->side.first) {
        item *i = fake->side.first;
        fake->side.first = i->next;
        i->next = NULL;
        append(fake->capture ? &fake->capture->items : &fake->stream, i);
    }
    fake->side.end = NULL;
    return finish(be);
}

static tg_status fake_follow(tg_backend *be, tg_stream_id follower, tg_stream_id leader) {
    return leader == TG_STREAM_COPY     ? join_copies(be)
           : leader == TG_STREAM_SIDE   ? join_side(be)
           : follower == TG_STREAM_SIDE ? TG_OK /* it runs late in any case */
                                        : refuse_capture(be);
}

static const tg_stream_ops stream_ops = {
    .pinned_alloc = fake_pinned_alloc,
    .pinned_release = fake_pinned_release,
    .event_create = fake_event_create,
    .event_destroy = fake_event_destroy,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_is_reached = fake_event_is_reached,
    .copy_stream_upload = fake_copy_stream_upload,
    .follow = fake_follow,
    .graph_begin = fake_graph_begin,
    .graph_end = fake_graph_end,
    .graph_destroy = fake_graph_destroy,
    .graph_launch = fake_graph_launch,
    .is_capturing = fake_is_capturing,
    .handle = fake_handle,
};

static void fill(tg_backend_ops *ops) {
    *ops = (tg_backend_ops){.summary = "the cpu backend with inaccessible memory and a stream",
                            .place = TG_DEVICE,
                            .stream = &stream_ops,
                            .probe = fake_probe,
                            .open = fake_open,
                            .close = fake_close,
                            .alloc = fake_alloc,
                            .release = fake_release,
                            .upload = transfer_now,
                            .download = transfer_now,
                            .copy = fake_copy,
                            .synchronize = fake_synchronize,
                            .device_facts = fake_device_facts,
                            .devices = fake_devices};
    fake_fill_slots(ops);
}

void fake_device_add(const char *name) {
    tg_backend_test_add(name, fill);
}

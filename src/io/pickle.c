/* A reader of pickles that runs no code.
 *
 * A pickle is a program for a stack machine: opcodes push numbers and texts, gather the values
 * above a mark into tuples, lists and dicts, remember values by number, and call named functions.
 * This machine knows the opcodes that torch.save writes for tensors in dicts and lists (protocols 2
 * to 5). It calls nothing: it knows the names in the table below and builds the results of their
 * calls itself. Any other name or opcode is an error.
 *
 * Every opcode makes at most a few values and cells, so memory is bounded by the pickle's length.
 * Values refer to each other by number and may form cycles: walks over them must be bounded. */
#include "io/formats.h"

#include <string.h>

#include "base/memory.h"

enum { MAX_STACK = 1 << 20 }; /* values and marks */

typedef enum known_name {
    REBUILD_TENSOR,
    REBUILD_PARAMETER,
    ORDERED_DICT,
    STORAGE, /* from here on */
} known_name;

static const struct {
    const char *module, *name;
    known_name id;
    tg_dtype dtype; /* for storages */
} known[] = {
    {"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR, TG_F32},
    {"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER, TG_F32},
    {"collections", "OrderedDict", ORDERED_DICT, TG_F32},
    {"torch", "FloatStorage", STORAGE, TG_F32},
    {"torch", "DoubleStorage", STORAGE, TG_F64},
    {"torch", "HalfStorage", STORAGE, TG_F16},
    {"torch", "BFloat16Storage", STORAGE, TG_BF16},
    {"torch", "ComplexFloatStorage", STORAGE, TG_C64},
    {"torch", "ComplexDoubleStorage", STORAGE, TG_C128},
    {"torch", "BoolStorage", STORAGE, TG_BOOL},
    {"torch", "CharStorage", STORAGE, TG_I8},
    {"torch", "ByteStorage", STORAGE, TG_U8},
    {"torch", "ShortStorage", STORAGE, TG_I16},
    {"torch", "IntStorage", STORAGE, TG_I32},
    {"torch", "LongStorage", STORAGE, TG_I64},
};

enum { KNOWN = sizeof known / sizeof known[0] };

typedef struct machine {
    tg_pickle *p;
    const tg_source *source;
    const unsigned char *at, *end;
    int64_t *stack;
    int64_t depth, stack_capacity;
    int64_t *memo; /* value by number, -1: none */
    int64_t memo_count, memo_capacity;
} machine;

/* ---- values ---- */

static tg_status refuse(const machine *m, const char *reason) {
    return tg_fail_file(m->source, TG_E_FORMAT, "damaged pickle: %s", reason);
}

static tg_status push_number(machine *m, int64_t value) {
    TG_CALL(m->depth < MAX_STACK ? tg_mem_grow(m->p->ctx, &m->stack, sizeof *m->stack, m->depth, 1,
                                               &m->stack_capacity)
                                 : refuse(m, "it stacks more than a million values"));
    m->stack[m->depth++] = value;
    return TG_OK;
}

/* Pushes a new value. */
static tg_status push(machine *m, const tg_pickle_value *value) {
    tg_pickle *p = m->p;
    TG_CALL(
        tg_mem_grow(p->ctx, &p->values, sizeof *p->values, p->value_count, 1, &p->value_capacity));
    p->values[p->value_count] = *value;
    p->values[p->value_count].first = p->values[p->value_count].last = -1;
    return push_number(m, p->value_count++);
}

static tg_status push_kind(machine *m, tg_pickle_kind kind, int64_t integer) {
    return push(m, &(tg_pickle_value){.kind = kind, .integer = integer});
}

static tg_pickle_value *top(const machine *m, int64_t below) {
    return &m->p->values[m->stack[m->depth - 1 - below]];
}

/* Value number `index` of a tuple. */
static const tg_pickle_value *item(const tg_pickle *p, const tg_pickle_value *tuple,
                                   int64_t index) {
    int64_t cell = tuple->first;
    for (int64_t i = 0; i < index; i++) {
        cell = p->cells[cell].next;
    }
    return &p->values[p->cells[cell].value];
}

static tg_status append(machine *m, int64_t container, int64_t value) {
    tg_pickle *p = m->p;
    TG_CALL(tg_mem_grow(p->ctx, &p->cells, sizeof *p->cells, p->cell_count, 1, &p->cell_capacity));
    tg_pickle_value *c = &p->values[container];
    p->cells[p->cell_count] = (tg_pickle_cell){.value = value, .next = -1};
    if (c->last >= 0) {
        p->cells[c->last].next = p->cell_count;
    } else {
        c->first = p->cell_count;
    }
    c->last = p->cell_count++;
    c->count++;
    return TG_OK;
}

/* Moves the topmost `count` values into `container`. */
static tg_status gather(machine *m, int64_t container, int64_t count) {
    const int64_t base = m->depth - count;
    for (int64_t i = 0; i < count; i++) {
        TG_CALL(append(m, container, m->stack[base + i]));
    }
    m->depth = base;
    return TG_OK;
}

/* Whether the topmost `count` entries are values, not marks. */
static bool has(const machine *m, int64_t count) {
    bool all = m->depth >= count;
    for (int64_t i = 0; i < count && all; i++) {
        all = top(m, i)->kind != TG_PICKLE_MARK;
    }
    return all;
}

/* Number of values above the last mark; -1 without one. */
static int64_t above_mark(const machine *m) {
    int64_t count = 0;
    while (count < m->depth && top(m, count)->kind != TG_PICKLE_MARK) {
        count++;
    }
    return count < m->depth ? count : -1;
}

/* ---- bytes ---- */

static tg_status take(machine *m, size_t count, const unsigned char **out) {
    if ((size_t)(m->end - m->at) < count) {
        return refuse(m, "it ends early");
    }
    *out = m->at;
    m->at += count;
    return TG_OK;
}

static tg_status take_number(machine *m, int bytes, uint64_t *out) {
    const unsigned char *at = NULL;
    TG_CALL(take(m, (size_t)bytes, &at));
    *out = tg_get_number(at, bytes);
    return TG_OK;
}

/* Stores a text; returns its offset in `texts`. */
static tg_status keep_text(machine *m, const void *bytes, size_t length, int64_t *out) {
    tg_pickle *p = m->p;
    if (memchr(bytes, '\0', length)) {
        return refuse(m, "a text with a zero byte");
    }
    TG_CALL(
        tg_mem_grow(p->ctx, &p->texts, 1, p->text_bytes, (int64_t)length + 1, &p->text_capacity));
    *out = p->text_bytes;
    memcpy(p->texts + p->text_bytes, bytes, length);
    p->texts[p->text_bytes + (int64_t)length] = '\0';
    p->text_bytes += (int64_t)length + 1;
    return TG_OK;
}

static tg_status push_text(machine *m, int length_bytes) {
    const unsigned char *text = NULL;
    tg_pickle_value value = {.kind = TG_PICKLE_TEXT};
    uint64_t length;
    TG_CALL(take_number(m, length_bytes, &length));
    TG_CALL(length <= (uint64_t)(m->end - m->at) ? take(m, (size_t)length, &text)
                                                 : refuse(m, "it ends early"));
    TG_CALL(keep_text(m, text, (size_t)length, &value.text));
    return push(m, &value);
}

static tg_status push_integer(machine *m, int bytes, bool is_signed) {
    uint64_t bits;
    TG_CALL(take_number(m, bytes, &bits));
    const int unused = 64 - 8 * bytes;
    const int64_t value = is_signed && bytes > 0 && bytes < 8
                              ? (int64_t)(bits << unused) / ((int64_t)1 << unused)
                              : (int64_t)bits;
    return push_kind(m, TG_PICKLE_INT, value);
}

/* An integer preceded by its byte count. */
static tg_status push_long(machine *m) {
    uint64_t bytes;
    const tg_status status = take_number(m, 1, &bytes);
    if (status != TG_OK || bytes > 8) {
        return status != TG_OK ? status : refuse(m, "an integer of more than 64 bits");
    }
    return push_integer(m, (int)bytes, true);
}

static tg_status push_real(machine *m) {
    const unsigned char *at = NULL;
    tg_pickle_value value = {.kind = TG_PICKLE_REAL};
    TG_CALL(take(m, 8, &at));
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) { /* big-endian */
        bits = bits << 8 | at[i];
    }
    memcpy(&value.real, &bits, sizeof bits);
    return push(m, &value);
}

/* ---- remembered values ---- */

static tg_status remember(machine *m, uint64_t index) {
    tg_status status = TG_OK;
    if (!has(m, 1) || index > (uint64_t)m->memo_count) {
        return refuse(m, "a memo number out of order");
    }
    status = tg_mem_grow(m->p->ctx, &m->memo, sizeof *m->memo, m->memo_count, 1, &m->memo_capacity);
    if (status == TG_OK) {
        m->memo[index] = m->stack[m->depth - 1];
        m->memo_count += (int64_t)index == m->memo_count;
    }
    return status;
}

static tg_status recall(machine *m, int bytes) {
    uint64_t index;
    TG_CALL(take_number(m, bytes, &index));
    return index < (uint64_t)m->memo_count ? push_number(m, m->memo[index])
                                           : refuse(m, "a value that was never remembered");
}

/* ---- names and the results of their calls ---- */

static tg_status push_global(machine *m, const char *module, const char *name) {
    for (int i = 0; i < KNOWN; i++) {
        if (strcmp(known[i].module, module) == 0 && strcmp(known[i].name, name) == 0) {
            return push_kind(m, TG_PICKLE_GLOBAL, i);
        }
    }
    return tg_fail_file(m->source, TG_E_UNSUPPORTED,
                        "it refers to %s.%s; only tensors, numbers, texts, lists and dicts are "
                        "read, and no code is run (save plain tensors, or use safetensors)",
                        TG_QUOTED(module), TG_QUOTED(name));
}

/* A line of the pickle, as text. */
static tg_status take_line(machine *m, char line[TG_QUOTE]) {
    const unsigned char *end = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (!end || end - m->at >= TG_QUOTE) {
        return refuse(m, "a name without an end");
    }
    const size_t length = (size_t)(end - m->at);
    memcpy(line, m->at, length);
    line[length] = '\0';
    m->at = end + 1;
    return TG_OK;
}

static tg_status name_by_lines(machine *m) {
    char module[TG_QUOTE], name[TG_QUOTE];
    TG_CALL(take_line(m, module));
    TG_CALL(take_line(m, name));
    return push_global(m, module, name);
}

static tg_status name_by_stack(machine *m) {
    if (!has(m, 2) || top(m, 0)->kind != TG_PICKLE_TEXT || top(m, 1)->kind != TG_PICKLE_TEXT) {
        return refuse(m, "a name that is not text");
    }
    const char *module = m->p->texts + top(m, 1)->text, *name = m->p->texts + top(m, 0)->text;
    m->depth -= 2;
    return push_global(m, module, name);
}

static bool is_kind(const tg_pickle *p, const tg_pickle_value *tuple, int64_t index,
                    tg_pickle_kind kind) {
    return item(p, tuple, index)->kind == kind;
}

/* ("storage", its type, the name of its member, the device, elements) */
static tg_status load_storage(machine *m) {
    const tg_pickle *p = m->p;
    if (!has(m, 1) || top(m, 0)->kind != TG_PICKLE_TUPLE || top(m, 0)->count != 5) {
        return refuse(m, "an external reference that is not a storage");
    }
    const tg_pickle_value *id = top(m, 0), *type = item(p, id, 1);
    if (type->kind != TG_PICKLE_GLOBAL || known[type->integer].id != STORAGE ||
        !is_kind(p, id, 2, TG_PICKLE_TEXT) || !is_kind(p, id, 4, TG_PICKLE_INT) ||
        item(p, id, 4)->integer < 0) {
        return refuse(m, "a storage without type, name or size");
    }
    const tg_pickle_value storage = {.kind = TG_PICKLE_STORAGE,
                                     .dtype = known[type->integer].dtype,
                                     .text = item(p, id, 2)->text,
                                     .integer = item(p, id, 4)->integer};
    m->depth--;
    return push(m, &storage);
}

/* A tuple of sizes or strides. */
static bool read_sizes(const tg_pickle *p, const tg_pickle_value *tuple,
                       int64_t sizes[TG_MAX_NDIM]) {
    bool is_sound = tuple->kind == TG_PICKLE_TUPLE && tuple->count <= TG_MAX_NDIM;
    for (int64_t i = 0; is_sound && i < tuple->count; i++) {
        is_sound = is_kind(p, tuple, i, TG_PICKLE_INT) && item(p, tuple, i)->integer >= 0;
        sizes[i] = item(p, tuple, i)->integer;
    }
    return is_sound;
}

/* Whether every element of the tensor is in its storage, and no stride of 0 repeats elements, so
 * that a tensor is never larger than its storage. */
static bool fits_storage(const tg_pickle_value *tensor, int64_t elements) {
    const int64_t numel = tg_shape_numel(&tensor->shape);
    int64_t last = tensor->offset;
    if (numel == 0) {
        return true;
    }
    bool fits = numel > 0 && numel <= elements;
    for (int d = 0; d < tensor->shape.ndim && fits; d++) {
        int64_t way;
        fits = !__builtin_mul_overflow(tensor->shape.dim[d] - 1, tensor->stride[d], &way) &&
               !__builtin_add_overflow(last, way, &last);
    }
    return fits && last < elements;
}

static bool is_expanded(const tg_pickle_value *tensor) {
    bool repeats = false;
    for (int d = 0; d < tensor->shape.ndim; d++) {
        repeats = repeats || (tensor->stride[d] == 0 && tensor->shape.dim[d] > 1);
    }
    return repeats;
}

/* The last argument of a view that must be transformed on reading: {"conj": True} or
 * {"neg": True}. */
static bool is_lazy_view(const tg_pickle *p, const tg_pickle_value *args) {
    const tg_pickle_value *flags = args->count > 6 ? item(p, args, 6) : NULL;
    return flags && flags->kind == TG_PICKLE_DICT && flags->count > 0;
}

static tg_status refuse_view(const machine *m, const char *kind, const char *instead) {
    return tg_fail_file(m->source, TG_E_FORMAT,
                        "a tensor is %s, which is not stored as it reads: save its %s", kind,
                        instead);
}

/* _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks, flags) */
static tg_status build_tensor(machine *m, int64_t arguments) {
    const tg_pickle *p = m->p;
    const tg_pickle_value *args = &p->values[arguments];
    tg_pickle_value tensor = {.kind = TG_PICKLE_TENSOR};
    if (args->count < 4 || !is_kind(p, args, 0, TG_PICKLE_STORAGE) ||
        !is_kind(p, args, 1, TG_PICKLE_INT)) {
        return refuse(m, "a tensor without storage");
    }
    tensor.storage = p->cells[args->first].value;
    tensor.dtype = p->values[tensor.storage].dtype;
    tensor.offset = item(p, args, 1)->integer;
    tensor.shape.ndim = (int)item(p, args, 2)->count;
    if (!read_sizes(p, item(p, args, 2), tensor.shape.dim) ||
        !read_sizes(p, item(p, args, 3), tensor.stride) ||
        item(p, args, 3)->count != tensor.shape.ndim || tensor.offset < 0) {
        return refuse(m, "a tensor without sizes or strides");
    }
    if (is_lazy_view(p, args)) {
        return refuse_view(m, "a conjugate or negative view", "resolve_conj() or resolve_neg()");
    }
    if (!fits_storage(&tensor, p->values[tensor.storage].integer)) {
        return is_expanded(&tensor) ? refuse_view(m, "expanded", "contiguous()")
                                    : refuse(m, "a tensor whose shape does not fit in its storage");
    }
    return push(m, &tensor);
}

static tg_status call(machine *m) {
    if (!has(m, 2) || top(m, 0)->kind != TG_PICKLE_TUPLE || top(m, 1)->kind != TG_PICKLE_GLOBAL) {
        return refuse(m, "a call of nothing");
    }
    const int64_t arguments = m->stack[m->depth - 1];
    const tg_pickle_value *args = &m->p->values[arguments];
    const known_name id = known[top(m, 1)->integer].id;
    m->depth -= 2;
    switch (id) {
    case REBUILD_TENSOR:
        return build_tensor(m, arguments);
    case REBUILD_PARAMETER: /* (tensor, requires_grad, hooks) */
        return args->count > 0 && is_kind(m->p, args, 0, TG_PICKLE_TENSOR)
                   ? push_number(m, m->p->cells[args->first].value)
                   : refuse(m, "a parameter without tensor");
    case ORDERED_DICT:
        return args->count == 0 ? push_kind(m, TG_PICKLE_DICT, 0)
                                : refuse(m, "an OrderedDict with arguments");
    default:
        return refuse(m, "a call of a type");
    }
}

/* ---- the opcodes ---- */

static tg_status gather_tuple(machine *m, int64_t count) {
    if (count < 0 || !has(m, count)) {
        return refuse(m, "a tuple without items");
    }
    const int64_t base = m->depth - count;
    TG_CALL(push_kind(m, TG_PICKLE_TUPLE, 0));
    const int64_t tuple = m->stack[--m->depth];
    TG_CALL(gather(m, tuple, count));
    m->depth = base;
    return push_number(m, tuple);
}

/* Makes a tuple of the values above the mark. */
static tg_status gather_marked(machine *m) {
    const int64_t count = above_mark(m);
    tg_status status = gather_tuple(m, count);
    if (status == TG_OK) { /* the mark is below it */
        m->stack[m->depth - 2] = m->stack[m->depth - 1];
        m->depth--;
    }
    return status;
}

/* Moves the topmost `count` values, and the mark if there is one, into the list or dict below. */
static tg_status fill(machine *m, tg_pickle_kind kind, int64_t count, bool has_mark) {
    const int64_t below = count + (has_mark ? 1 : 0);
    const bool is_dict = kind == TG_PICKLE_DICT;
    if (count < 0 || m->depth <= below || top(m, below)->kind != kind || !has(m, count) ||
        (is_dict && count % 2 != 0)) {
        return refuse(m, is_dict ? "items without a dict" : "items without a list");
    }
    const int64_t container = m->stack[m->depth - 1 - below];
    const tg_status status = gather(m, container, count);
    m->depth -= has_mark ? 1 : 0;
    return status;
}

static tg_status skip(machine *m, size_t count) {
    const unsigned char *at;
    return take(m, count, &at);
}

static tg_status remember_numbered(machine *m, int bytes) {
    uint64_t index;
    TG_CALL(take_number(m, bytes, &index));
    return remember(m, index);
}

/* The attributes of an OrderedDict (`_metadata` of a state_dict) are ignored. */
static tg_status drop_attributes(machine *m) {
    if (!has(m, 2) || top(m, 1)->kind != TG_PICKLE_DICT) {
        return refuse(m, "attributes of something that has none");
    }
    m->depth--;
    return TG_OK;
}

static tg_status step(machine *m, unsigned char opcode) {
    switch (opcode) {
    case 0x80: /* PROTO */
        return skip(m, 1);
    case 0x95: /* FRAME */
        return skip(m, 8);
    case '(':
        return push_number(m, 0);
    case 'N':
        return push_kind(m, TG_PICKLE_NONE, 0);
    case 0x88:
    case 0x89:
        return push_kind(m, TG_PICKLE_BOOL, opcode == 0x88);
    case 'J':
        return push_integer(m, 4, true);
    case 'K':
        return push_integer(m, 1, false);
    case 'M':
        return push_integer(m, 2, false);
    case 0x8a: /* LONG1 */
        return push_long(m);
    case 'G':
        return push_real(m);
    case 0x8c:
        return push_text(m, 1);
    case 'X':
        return push_text(m, 4);
    case 0x8d:
        return push_text(m, 8);
    case '}':
        return push_kind(m, TG_PICKLE_DICT, 0);
    case ']':
        return push_kind(m, TG_PICKLE_LIST, 0);
    case ')':
        return push_kind(m, TG_PICKLE_TUPLE, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return gather_tuple(m, opcode - 0x84);
    case 't':
        return gather_marked(m);
    case 's':
        return fill(m, TG_PICKLE_DICT, 2, false);
    case 'u':
        return fill(m, TG_PICKLE_DICT, above_mark(m), true);
    case 'a':
        return fill(m, TG_PICKLE_LIST, 1, false);
    case 'e':
        return fill(m, TG_PICKLE_LIST, above_mark(m), true);
    case 'q':
        return remember_numbered(m, 1);
    case 'r':
        return remember_numbered(m, 4);
    case 0x94: /* MEMOIZE */
        return remember(m, (uint64_t)m->memo_count);
    case 'h':
        return recall(m, 1);
    case 'j':
        return recall(m, 4);
    case 'c':
        return name_by_lines(m);
    case 0x93:
        return name_by_stack(m);
    case 'Q':
        return load_storage(m);
    case 'R':
        return call(m);
    case 'b':
        return drop_attributes(m);
    default:
        return tg_fail_file(m->source, TG_E_UNSUPPORTED,
                            "opcode 0x%02x of its pickle builds something other than tensors, "
                            "numbers, texts, lists and dicts",
                            opcode);
    }
}

tg_status tg_pickle_parse(const tg_source *source, const void *bytes, size_t size, tg_pickle *out) {
    tg_context *ctx = source->ctx;
    tg_status status = TG_OK;
    *out = (tg_pickle){.ctx = ctx, .root = -1};
    const unsigned char *start = bytes;
    machine m = {.p = out, .source = source, .at = start, .end = start + size};
    TG_TRY(push_kind(&m, TG_PICKLE_MARK, 0)); /* value 0 represents all marks */
    m.depth = 0;
    while (out->root < 0) {
        const unsigned char *opcode = NULL;
        TG_TRY(take(&m, 1, &opcode));
        if (*opcode != '.') {
            TG_TRY(step(&m, *opcode));
        } else if (has(&m, 1) && m.depth == 1) {
            out->root = m.stack[0];
        } else {
            TG_TRY(refuse(&m, "it does not end with exactly one value"));
        }
    }
fail:
    TG_FREE(ctx, m.stack);
    TG_FREE(ctx, m.memo);
    return status;
}

void tg_pickle_free(tg_pickle *pickle) {
    if (pickle->ctx) {
        TG_FREE(pickle->ctx, pickle->values);
        TG_FREE(pickle->ctx, pickle->cells);
        TG_FREE(pickle->ctx, pickle->texts);
    }
}

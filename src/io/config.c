/* Settings from YAML, by libfyaml: one walk over the tree of a document turns every value into a
 * setting under its dotted key.
 *
 * People exchange configuration files, so they are untrusted input too. Aliases and merge keys are
 * followed in place and never copied into the tree; a budget of visited values and a depth limit
 * bound the walk whatever the aliases do. */
#include <libfyaml.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "io/formats.h"
#include "io/settings.h"

enum {
    MAX_FILE = 1 << 20, /* bytes */
    MAX_DEPTH = 32,     /* nested lists and maps, aliases followed */
    MAX_VALUES = 100000 /* visited, aliases followed */
};

typedef struct reader {
    tg_context *ctx;
    const char *label;
    struct fy_document *document;
    tg_settings *settings;
    int64_t visited;
    char key[TG_SETTINGS_KEY]; /* of the value being visited */
    char *value;               /* (TG_SETTINGS_VALUE) text of a list */
} reader;

/* ---- source places ---- */

/* 1-based line of a value; of a map or list, that of its first scalar; 0 if it has none. */
static int line_of(struct fy_node *node) {
    for (int depth = 0; node && depth < MAX_DEPTH; depth++) {
        void *at = NULL;
        struct fy_node_pair *pair = NULL;
        struct fy_token *token = NULL;
        switch (fy_node_get_type(node)) {
        case FYNT_SCALAR:
            token = fy_node_get_scalar_token(node);
            return token && fy_token_start_mark(token) ? fy_token_start_mark(token)->line + 1 : 0;
        case FYNT_MAPPING:
            pair = fy_node_mapping_iterate(node, &at);
            node = pair ? fy_node_pair_key(pair) : NULL;
            break;
        default:
            node = fy_node_sequence_iterate(node, &at);
        }
    }
    return 0;
}

/* Fails with "file:line: sentence" at the line of `near` or of `key`. */
static tg_status bad_yaml(const reader *r, struct fy_node *near, const char *sentence) {
    const int line = line_of(near);
    if (line > 0 && r->key[0]) {
        return tg_fail(r->ctx, TG_E_CONFIG, "%s:%d: %s: %s", r->label, line, TG_QUOTED(r->key),
                       sentence);
    }
    if (line > 0 || !r->key[0]) {
        return tg_fail(r->ctx, TG_E_CONFIG, "%s:%d: %s", r->label, line > 0 ? line : 1, sentence);
    }
    return tg_fail(r->ctx, TG_E_CONFIG, "%s: %s: %s", r->label, TG_QUOTED(r->key), sentence);
}

/* ---- values ---- */

/* The target of an alias, or NULL. (fy_node_resolve_alias takes names for paths, and prints.) */
static struct fy_node *resolve(const reader *r, struct fy_node *alias) {
    size_t length = 0;
    const char *name = fy_node_get_scalar(alias, &length);
    struct fy_anchor *anchor = name ? fy_document_lookup_anchor(r->document, name, length) : NULL;
    return anchor ? fy_anchor_node(anchor) : NULL;
}

/* Follows an alias and counts the visit; *node is then a map, a list or a scalar. */
static tg_status visit(reader *r, struct fy_node **node, int depth) {
    struct fy_node *near = *node;
    for (int i = 0; *node && fy_node_is_alias(*node); i++) {
        *node = i < MAX_DEPTH ? resolve(r, *node) : NULL;
        if (!*node) {
            return bad_yaml(r, near, "this alias names no anchor");
        }
    }
    if (depth > MAX_DEPTH) {
        return bad_yaml(r, near, "lists and maps are nested too deep (or an alias holds itself)");
    }
    if (++r->visited > MAX_VALUES) {
        return bad_yaml(r, near, "more than 100000 values, counting what aliases repeat");
    }
    size_t length = 0;
    const char *tag = *node ? fy_node_get_tag(*node, &length) : NULL;
    static const char standard[] = "tag:yaml.org,2002:";
    if (tag && (length < sizeof standard - 1 || memcmp(tag, standard, sizeof standard - 1) != 0)) {
        return bad_yaml(r, near, "tags of other programs are not supported");
    }
    return TG_OK;
}

/* Null in any spelling without quotes. */
static bool is_null(struct fy_node *node) {
    size_t length = 0;
    const char *text = node ? fy_node_get_scalar(node, &length) : NULL;
    if (node && fy_node_get_style(node) != FYNS_PLAIN) {
        return false;
    }
    return !text || length == 0 || (length == 1 && text[0] == '~') ||
           (length == 4 && strncasecmp(text, "null", 4) == 0);
}

/* The text of a scalar, not terminated. */
static const char *scalar_text(struct fy_node *node, size_t *length) {
    *length = 4;
    const char *text = is_null(node) ? "null" : fy_node_get_scalar(node, length);
    if (!text) {
        *length = 0;
    }
    return text ? text : "";
}

/* Appends "[a, b, [c]]". */
static tg_status add_list(reader *r, tg_text *out, struct fy_node *list, int depth) {
    void *at = NULL;
    struct fy_node *item = NULL;
    tg_text_add(out, "[", 1);
    for (bool first = true; (item = fy_node_sequence_iterate(list, &at)); first = false) {
        tg_text_add(out, ", ", first ? 0 : 2);
        TG_CALL(visit(r, &item, depth));
        if (fy_node_is_mapping(item)) {
            return bad_yaml(r, item, "a list may hold values and lists, not maps");
        }
        if (fy_node_is_sequence(item)) {
            TG_CALL(add_list(r, out, item, depth + 1));
        } else {
            size_t length = 0;
            const char *text = scalar_text(item, &length);
            if (memchr(text, '\0', length)) {
                return bad_yaml(r, item, "a value may not hold the character 0");
            }
            tg_text_add_word(out, text, length);
        }
    }
    tg_text_add(out, "]", 1);
    return TG_OK;
}

/* Sets r->key, which must be new. `near` is the key's node. */
static tg_status set(reader *r, struct fy_node *near, const char *value) {
    tg_status status = TG_OK;
    char *origin = NULL, sentence[256];
    const int64_t found = tg_settings_find(r->settings, r->key);
    if (found >= 0) {
        snprintf(sentence, sizeof sentence, "set twice, first in %.200s",
                 tg_settings_origin(r->settings, found));
        return bad_yaml(r, near, sentence);
    }
    origin = tg_mem_printf(r->ctx, "%s:%d", r->label, line_of(near));
    TG_TRY(origin ? TG_OK : TG_E_MEMORY);
    TG_TRY(tg_settings_set(r->settings, r->key, value, origin));
fail:
    TG_FREE(r->ctx, origin);
    return status;
}

static tg_status walk_map(reader *r, struct fy_node *map, int depth);

static tg_status walk_value(reader *r, struct fy_node *key, struct fy_node *value, int depth) {
    TG_CALL(visit(r, &value, depth));
    const bool is_map = value && fy_node_is_mapping(value);
    if (is_map && fy_node_mapping_item_count(value) > 0) {
        return walk_map(r, value, depth);
    }
    value = is_map ? NULL : value; /* {} counts as no value */
    tg_text text = {.bytes = r->value, .capacity = TG_SETTINGS_VALUE};
    if (value && fy_node_is_sequence(value)) {
        TG_CALL(add_list(r, &text, value, depth + 1));
    } else {
        size_t length = 0;
        const char *scalar = scalar_text(value, &length);
        tg_text_add(&text, scalar, length);
        if (memchr(scalar, '\0', length)) {
            return bad_yaml(r, key, "a value may not hold the character 0");
        }
    }
    if (text.length >= text.capacity) {
        return bad_yaml(r, key, "a value of 64 KiB or more");
    }
    return set(r, key, r->value);
}

/* ---- maps ---- */

/* Copies the key of a pair into `name`. */
static tg_status key_name(reader *r, struct fy_node *key, char name[TG_SETTINGS_KEY]) {
    size_t length = 0;
    struct fy_node *node = key;
    TG_CALL(visit(r, &node, 0));
    if (node && !fy_node_is_scalar(node)) {
        return bad_yaml(r, key, "a key must be a word, not a list or a map");
    }
    const char *text = scalar_text(node, &length);
    if (length == 0 || length >= TG_SETTINGS_KEY || memchr(text, '\0', length)) {
        return bad_yaml(r, key, "a key is a word of 1 to 255 bytes");
    }
    memcpy(name, text, length);
    name[length] = '\0';
    return TG_OK;
}

static bool is_merge(struct fy_node *key) {
    size_t length = 0;
    const char *text =
        key && fy_node_get_style(key) == FYNS_PLAIN ? fy_node_get_scalar(key, &length) : NULL;
    return text && length == 2 && memcmp(text, "<<", 2) == 0;
}

static tg_status walk_pairs(reader *r, struct fy_node *map, tg_names *taken, bool merging,
                            int depth);

/* "<<": a map or a list of maps, for keys that the merging map lacks. */
static tg_status merge(reader *r, struct fy_node *value, tg_names *taken, int depth) {
    void *at = NULL;
    TG_CALL(visit(r, &value, depth));
    if (value && fy_node_is_mapping(value)) {
        return walk_pairs(r, value, taken, true, depth + 1);
    }
    if (!value || !fy_node_is_sequence(value)) {
        return bad_yaml(r, value, "<< expects a map or a list of maps");
    }
    for (struct fy_node *item = NULL; (item = fy_node_sequence_iterate(value, &at));) {
        TG_CALL(visit(r, &item, depth));
        if (!item || !fy_node_is_mapping(item)) {
            return bad_yaml(r, item, "<< expects a map or a list of maps");
        }
        TG_CALL(walk_pairs(r, item, taken, true, depth + 1));
    }
    return TG_OK;
}

/* One pair: appends its key to r->key after a dot, then visits its value. */
static tg_status walk_pair(reader *r, struct fy_node_pair *pair, const char *name, int depth) {
    struct fy_node *key = fy_node_pair_key(pair);
    const size_t before = strlen(r->key);
    const int length =
        snprintf(r->key + before, sizeof r->key - before, "%s%s", before ? "." : "", name);
    tg_status status = TG_OK;
    if (before + (size_t)length >= sizeof r->key) {
        status = bad_yaml(r, key, "the key is longer than 255 bytes");
    } else {
        status = walk_value(r, key, fy_node_pair_value(pair), depth + 1);
    }
    r->key[before] = '\0';
    return status;
}

/* All pairs in order, "<<" replaced by the pairs it merges. `taken` holds the keys of this level: a
 * map enters its own keys first, so that they win over merged ones; merging skips taken keys. */
static tg_status walk_pairs(reader *r, struct fy_node *map, tg_names *taken, bool merging,
                            int depth) {
    tg_status status = TG_OK;
    char name[TG_SETTINGS_KEY];
    bool *own = NULL; /* per pair: to be visited */
    const int count = fy_node_mapping_item_count(map);
    void *at = NULL;
    TG_TRY(TG_NEW(r->ctx, TG_MEM_OTHER, own, count > 0 ? count : 1));
    for (int i = 0; i < count; i++) {
        struct fy_node *key = fy_node_pair_key(fy_node_mapping_iterate(map, &at));
        TG_TRY(key_name(r, key, name));
        const bool is_taken = tg_names_find(taken, name) >= 0;
        own[i] = is_merge(key) || !is_taken;
        if (!own[i] && !merging) {
            char sentence[TG_QUOTE + 64];
            snprintf(sentence, sizeof sentence, "the key '%s' appears twice in this map",
                     TG_QUOTED(name));
            status = bad_yaml(r, key, sentence);
            goto fail;
        }
        TG_TRY(is_merge(key) || is_taken ? TG_OK : tg_names_add(taken, "setting", name, NULL));
    }
    at = NULL;
    for (int i = 0; i < count; i++) {
        struct fy_node_pair *pair = fy_node_mapping_iterate(map, &at);
        struct fy_node *key = fy_node_pair_key(pair);
        TG_TRY(key_name(r, key, name));
        if (is_merge(key)) {
            TG_TRY(merge(r, fy_node_pair_value(pair), taken, depth));
        } else if (own[i]) {
            TG_TRY(walk_pair(r, pair, name, depth));
        }
    }
fail:
    TG_FREE(r->ctx, own);
    return status;
}

static tg_status walk_map(reader *r, struct fy_node *map, int depth) {
    tg_names taken = {.ctx = r->ctx};
    tg_status status = walk_pairs(r, map, &taken, false, depth);
    tg_names_clear(&taken);
    return status;
}

/* A redefined anchor means different things above and below; libfyaml knows only one. */
static tg_status check_anchors(const reader *r) {
    tg_status status = TG_OK;
    tg_names anchors = {.ctx = r->ctx};
    void *at = NULL;
    for (struct fy_anchor *anchor = NULL;
         (anchor = fy_document_anchor_iterate(r->document, &at));) {
        char name[TG_SETTINGS_KEY];
        size_t length = 0;
        const char *text = fy_anchor_get_text(anchor, &length);
        if (!text || length == 0 || length >= sizeof name) {
            status = bad_yaml(r, fy_anchor_node(anchor), "an anchor has 1 to 255 bytes");
            goto fail;
        }
        memcpy(name, text, length);
        name[length] = '\0';
        if (tg_names_find(&anchors, name) >= 0) {
            status = bad_yaml(r, fy_anchor_node(anchor), "an anchor of this name is defined above");
            goto fail;
        }
        TG_TRY(tg_names_add(&anchors, "anchor", name, NULL));
    }
fail:
    tg_names_clear(&anchors);
    return status;
}

/* ---- documents ---- */

static tg_status walk_document(reader *r) {
    struct fy_node *root = fy_document_root(r->document);
    tg_status status = check_anchors(r);
    if (status == TG_OK) {
        status = visit(r, &root, 0);
    }
    if (status != TG_OK || !root) {
        return status;
    }
    if (fy_node_is_mapping(root)) {
        return walk_map(r, root, 0);
    }
    return fy_node_is_scalar(root) && is_null(root)
               ? TG_OK
               : bad_yaml(r, root, "expected a map of settings, 'key: value' on each line");
}

/* Fails with libfyaml's error. */
static tg_status syntax_error(const reader *r, struct fy_diag *diag) {
    void *at = NULL;
    struct fy_diag_error *error = fy_diag_errors_iterate(diag, &at);
    if (!error || !error->msg) {
        return tg_fail(r->ctx, TG_E_CONFIG, "%s: this is not valid YAML", r->label);
    }
    return tg_fail(r->ctx, TG_E_CONFIG, "%s:%d: not valid YAML: %s (column %d)", r->label,
                   error->line > 0 ? error->line : 1, TG_QUOTED(error->msg), error->column);
}

static tg_status read_documents(reader *r, struct fy_parser *parser, struct fy_diag *diag) {
    r->document = fy_parse_load_document(parser);
    if (!r->document) { /* an empty file, or an error */
        return fy_parser_get_stream_error(parser) ? syntax_error(r, diag) : TG_OK;
    }
    tg_status status = walk_document(r);
    fy_parse_document_destroy(parser, r->document);
    if (status != TG_OK) {
        return status;
    }
    r->document = fy_parse_load_document(parser);
    if (r->document) {
        fy_parse_document_destroy(parser, r->document);
        return tg_fail(r->ctx, TG_E_CONFIG, "%s: expected one document, found more after '---'",
                       r->label);
    }
    return fy_parser_get_stream_error(parser) ? syntax_error(r, diag) : TG_OK;
}

/* Keeps libfyaml from printing. */
static void drop_message(struct fy_diag *diag, void *user, const char *text, size_t length) {
    (void)diag;
    (void)user;
    (void)text;
    (void)length;
}

static tg_status parse(reader *r, const char *bytes, size_t size) {
    struct fy_diag_cfg diag_config;
    fy_diag_cfg_default(&diag_config);
    diag_config.fp = NULL;
    diag_config.output_fn = drop_message;
    struct fy_diag *diag = fy_diag_create(&diag_config);
    /* Duplicate keys are detected here, with both places. */
    const struct fy_parse_cfg config = {
        .flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_JSON_NONE | FYPCF_ALLOW_DUPLICATE_KEYS,
        .diag = diag,
    };
    if (diag) {
        fy_diag_set_collect_errors(diag, true);
    }
    struct fy_parser *parser = diag ? fy_parser_create(&config) : NULL;
    tg_status status = TG_OK;
    if (!parser || fy_parser_set_string(parser, bytes, size) != 0) {
        status = tg_fail(r->ctx, TG_E_MEMORY, "%s: out of memory for the YAML parser", r->label);
    } else {
        status = read_documents(r, parser, diag);
    }
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    return status;
}

/* Keys of the form "? key" crash libfyaml 0.7 (? -:<tab>-), and no settings need them. */
static tg_status refuse_long_keys(const reader *r, const char *bytes) {
    int line = 1;
    char before = '\n'; /* the last character that is not a blank */
    for (const char *at = bytes; *at; at++) {
        if (*at == '?' && strchr("\n-[{,:?", before) && strchr(" \t\r\n", at[1])) {
            return tg_fail(r->ctx, TG_E_CONFIG,
                           "%s:%d: a key must be a word, without '?' before it", r->label, line);
        }
        line += *at == '\n';
        before = *at == ' ' || *at == '\t' || *at == '\r' ? before : *at;
    }
    return TG_OK;
}

/* YAML text is UTF-8 without NUL characters. `bytes` is zero-terminated. */
static tg_status check_text(const reader *r, const char *bytes, size_t size) {
    if (size > MAX_FILE) {
        return tg_fail(r->ctx, TG_E_CONFIG, "%s: has %zu bytes, at most %d are accepted", r->label,
                       size, MAX_FILE);
    }
    if (memchr(bytes, '\0', size) || !tg_utf8_is_valid(bytes)) {
        const char *found = tg_content_name(bytes, size);
        const bool is_known = found && strcmp(found, "a text file") != 0;
        return tg_fail(r->ctx, TG_E_CONFIG, "%s: not a text file in UTF-8%s%s", r->label,
                       is_known ? "; it is " : "", is_known ? found : "");
    }
    return refuse_long_keys(r, bytes);
}

static tg_status parse_text(tg_context *ctx, const char *label, const char *bytes, size_t size,
                            tg_settings **out) {
    tg_status status = TG_OK;
    reader r = {.ctx = ctx, .label = label};
    TG_TRY(check_text(&r, bytes, size));
    TG_TRY(tg_settings_create(ctx, &r.settings));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, r.value, TG_SETTINGS_VALUE));
    TG_TRY(size > 0 ? parse(&r, bytes, size) : TG_OK);
    *out = r.settings;
    r.settings = NULL;
fail:
    TG_FREE(ctx, r.value);
    tg_settings_destroy(&r.settings);
    return status;
}

const char *tg_yaml_version(void) {
    return fy_library_version();
}

tg_status tg_settings_parse_yaml(tg_context *ctx, const char *label, const void *bytes, size_t size,
                                 tg_settings **out) {
    *out = NULL;
    char *copy = NULL; /* zero-terminated */
    if (size > MAX_FILE) {
        size = MAX_FILE + 1; /* rejected below, so not copied whole */
    }
    TG_CALL(TG_ALLOC(ctx, TG_MEM_OTHER, copy, size + 1));
    if (size > 0) {
        memcpy(copy, bytes, size);
    }
    copy[size] = '\0';
    tg_status status = parse_text(ctx, label ? label : "memory", copy, size, out);
    TG_FREE(ctx, copy);
    return status;
}

/* The error for a file that is no text, or too large: it may be one of data. */
static tg_status explain_no_text(tg_context *ctx, const char *path, tg_status status) {
    char sentence[512];
    tg_file_format format;
    snprintf(sentence, sizeof sentence, "%s", tg_context_error(ctx));
    if (tg_file_detect(ctx, path, &format) != TG_OK) {
        return tg_fail(ctx, status, "%s", sentence);
    }
    return tg_fail(ctx, TG_E_CONFIG,
                   "%s: expected settings (YAML), found arrays (%s); tgrad init writes settings "
                   "that train on a file",
                   path, tg_file_format_name(format));
}

tg_status tg_settings_read_yaml(tg_context *ctx, const char *path, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    void *bytes = NULL;
    size_t size = 0;
    tg_status status = tg_file_read(ctx, path, MAX_FILE, &bytes, &size);
    const bool is_text = status == TG_OK ? !memchr(bytes, '\0', size) : status != TG_E_FORMAT;
    if (status == TG_OK) {
        status = parse_text(ctx, path, bytes, size, out);
    }
    TG_FREE(ctx, bytes);
    return is_text ? status : explain_no_text(ctx, path, status);
}

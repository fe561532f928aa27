/* Status codes: every fallible call returns one; 0 is success.
 *
 * The sentence that explains a failure (which key, file, expected and found value) is kept in the
 * context, see tg_context_error().
 *
 * NULL is never dereferenced. Where a comment gives it no meaning, a call that returns a status
 * gives TG_E_ARGUMENT and names the argument, and sets an `out` for an object to NULL; others
 * return 0, false, NULL or "", and do nothing. Destroy and close accept NULL, and so do calls that
 * need their context for the sentence alone (settings, descriptions, views). Calls in a wrong
 * order, such as backward before forward, are TG_E_ARGUMENT too.
 *
 * A getter of an object is tg_<object>_<field>, or tg_<object>_get_<field> if a struct has that
 * name.
 *
 * Structs that are handed to a call as settings (tg_context_config, tg_fno_config, ..) begin with
 * their `size`, so that the library can grow without breaking programs. Start from the struct's
 * _default() or, where there is none, from {.size = sizeof(the struct)}; wrappers in other
 * languages call its _init() with the size they know. Fields are only ever added at the end: one
 * that the caller's headers did not have yet gets its default. A size of 0, one that ends before a
 * field that has no default, and one larger than the library's struct (a program compiled with
 * newer headers) are TG_E_ARGUMENT. Structs that are parts of others (tg_branch_config,
 * tg_loss_term), that come in arrays (tg_optim_param) or are results do not change within a version
 * of the library's interface. */
#ifndef TGRAD_STATUS_H
#define TGRAD_STATUS_H

/* Around the declarations of every header. */
#ifdef __cplusplus
#define TG_C_BEGIN extern "C" {
#define TG_C_END   }
#else
#define TG_C_BEGIN
#define TG_C_END
#endif

#if defined(__GNUC__)
#define TG_API               __attribute__((visibility("default")))
#define TG_NODISCARD         __attribute__((warn_unused_result))
#define TG_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TG_API
#define TG_NODISCARD
#define TG_PRINTF(fmt, args)
#endif

TG_C_BEGIN

typedef enum tg_status {
    TG_OK = 0,
    TG_E_ARGUMENT,    /* a call's argument is wrong (NULL, negative, out of range) */
    TG_E_SHAPE,       /* shapes do not fit each other, or overflow */
    TG_E_DTYPE,       /* this dtype is not accepted here */
    TG_E_MEMORY,      /* no memory left on host or device */
    TG_E_IO,          /* the system refused to open, read, write or rename a file */
    TG_E_FORMAT,      /* a file's content violates its format */
    TG_E_CONFIG,      /* a setting is unknown or impossible */
    TG_E_NUMERIC,     /* NaN or Inf where finite numbers are needed, or no convergence */
    TG_E_UNSUPPORTED, /* valid, but this build or backend cannot do it */
    TG_E_BACKEND,     /* a device or a library underneath failed */
    TG_STATUS_COUNT
} tg_status;

/* A short fixed name such as "out of memory"; "unknown status" for anything else. */
TG_API const char *tg_status_name(tg_status status);

/* For "did you mean ..?": number of insertions, deletions, replacements and swaps of neighbours
 * that turn `a` into `b`, in any case; INT_MAX for NULL and words of more than 63 bytes. */
TG_API int tg_edit_distance(const char *a, const char *b);

TG_C_END
#endif

/* Guard and types of HDF5. */
#include "io/hdf5_types.h"

#include <pthread.h>
#include <stdio.h>

#include "io/formats.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void tg_h5_enter(tg_h5_guard *guard) {
    pthread_mutex_lock(&mutex);
    *guard = (tg_h5_guard){0};
    H5Eget_auto2(H5E_DEFAULT, &guard->print, &guard->print_data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLget_loading_state(&guard->plugins);
    H5PLset_loading_state(0);
}

void tg_h5_leave(tg_h5_guard *guard) {
    H5PLset_loading_state(guard->plugins);
    H5Eclear2(H5E_DEFAULT);
    H5Eset_auto2(H5E_DEFAULT, guard->print, guard->print_data);
    pthread_mutex_unlock(&mutex);
}

/* The first error of the walk is the innermost; a positive value ends the walk. */
static herr_t keep_first(unsigned n, const H5E_error2_t *error, void *text) {
    (void)n;
    snprintf(text, TG_H5_REASON, "%s", error->desc ? error->desc : "unknown reason");
    return 1;
}

const char *tg_h5_reason(char text[TG_H5_REASON]) {
    snprintf(text, TG_H5_REASON, "unknown reason");
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, text);
    return text;
}

/* HDF5 does not check that the bits of a number are inside it, and reads out of bounds. */
static bool bits_fit(hid_t type) {
    const size_t bits = 8 * H5Tget_size(type);
    const size_t precision = H5Tget_precision(type);
    const int offset = H5Tget_offset(type);
    return precision > 0 && precision <= bits && offset >= 0 && (size_t)offset <= bits - precision;
}

static bool integer_dtype(hid_t type, tg_dtype *out) {
    static const tg_dtype table[2][4] = {{TG_U8, TG_U16, TG_U32, TG_U64},
                                         {TG_I8, TG_I16, TG_I32, TG_I64}};
    const size_t size = H5Tget_size(type);
    const int row = H5Tget_sign(type) == H5T_SGN_2;
    for (int column = 0; column < 4; column++) {
        if (size > 0 && size <= (size_t)1 << column) {
            *out = table[row][column];
            return bits_fit(type);
        }
    }
    return false;
}

static bool float_dtype(hid_t type, tg_dtype *out) {
    const size_t size = H5Tget_size(type), bits = 8 * size;
    size_t sign = 0, exponent_at = 0, exponent = 0, mantissa_at = 0, mantissa = 0;
    if (!bits_fit(type) ||
        H5Tget_fields(type, &sign, &exponent_at, &exponent, &mantissa_at, &mantissa) < 0 ||
        sign >= bits || exponent > bits || exponent_at > bits - exponent || mantissa > bits ||
        mantissa_at > bits - mantissa) {
        return false;
    }
    if (size == 2 && exponent == 5 && mantissa == 10) {
        *out = TG_F16;
    } else if (size == 2 && exponent == 8 && mantissa == 7) {
        *out = TG_BF16;
    } else {
        *out = size <= 4 ? TG_F32 : TG_F64;
    }
    return true;
}

/* h5py's bool is an enum of one byte: FALSE 0, TRUE 1. Any other enum reads as its integer. */
static bool enum_dtype(hid_t type, tg_dtype *out) {
    unsigned char no = 2, yes = 2;
    if (H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
        H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 &&
        no == 0 && yes == 1) {
        *out = TG_BOOL;
        return true;
    }
    hid_t base = H5Tget_super(type);
    const bool found = base >= 0 && integer_dtype(base, out);
    H5Tclose(base);
    return found;
}

/* Names of the parts of a complex number: h5py's, which we write, and MATLAB's. */
static const char *const part_names[][2] = {{"r", "i"}, {"real", "imag"}};

/* The names in a compound; NULL if it is not a complex number. */
static const char *const *names_of(hid_t type) {
    for (size_t k = 0; k < sizeof part_names / sizeof part_names[0]; k++) {
        if (H5Tget_nmembers(type) == 2 && H5Tget_member_index(type, part_names[k][0]) >= 0 &&
            H5Tget_member_index(type, part_names[k][1]) >= 0) {
            return part_names[k];
        }
    }
    return NULL;
}

static bool complex_dtype(hid_t type, tg_dtype *out) {
    const char *const *names = names_of(type);
    tg_dtype parts[2] = {TG_F32, TG_F32};
    if (!names) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        const int member = H5Tget_member_index(type, names[i]);
        hid_t part = member >= 0 ? H5Tget_member_type(type, (unsigned)member) : H5I_INVALID_HID;
        const bool found = part >= 0 && H5Tget_class(part) == H5T_FLOAT;
        const bool known =
            found && float_dtype(part, &parts[i]) &&
            H5Tget_member_offset(type, (unsigned)member) + H5Tget_size(part) <= H5Tget_size(type);
        H5Tclose(part);
        if (!known) {
            return false;
        }
    }
    const bool first_is_larger = tg_dtype_size(parts[0]) >= tg_dtype_size(parts[1]);
    *out = tg_dtype_complex(first_is_larger ? parts[0] : parts[1]);
    return true;
}

bool tg_h5_dtype_of(hid_t type, tg_dtype *out) {
    switch (H5Tget_class(type)) {
    case H5T_INTEGER:
        return integer_dtype(type, out);
    case H5T_FLOAT:
        return float_dtype(type, out);
    case H5T_ENUM:
        return enum_dtype(type, out);
    case H5T_COMPOUND:
        return complex_dtype(type, out);
    default:
        return false;
    }
}

/* A float of two bytes with `mantissa` bits. */
static hid_t half_type(size_t mantissa) {
    const size_t exponent = 15 - mantissa;
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa) < 0 || H5Tset_size(type, 2) < 0 ||
        H5Tset_ebias(type, ((size_t)1 << (exponent - 1)) - 1) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

static hid_t bool_type(void) {
    const signed char no = 0, yes = 1;
    hid_t type = H5Tenum_create(H5T_NATIVE_INT8);
    if (H5Tenum_insert(type, "FALSE", &no) < 0 || H5Tenum_insert(type, "TRUE", &yes) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

static hid_t complex_type(tg_dtype dtype, const char *const names[2]) {
    const size_t size = tg_dtype_size(tg_dtype_real(dtype));
    hid_t part = tg_h5_type_of(tg_dtype_real(dtype));
    hid_t type = H5Tcreate(H5T_COMPOUND, 2 * size);
    if (H5Tinsert(type, names[0], 0, part) < 0 || H5Tinsert(type, names[1], size, part) < 0) {
        H5Tclose(type);
        type = H5I_INVALID_HID;
    }
    H5Tclose(part);
    return type;
}

hid_t tg_h5_type_of(tg_dtype dtype) {
    const hid_t standard[TG_DTYPES] = {
        [TG_F32] = H5T_IEEE_F32LE, [TG_F64] = H5T_IEEE_F64LE, [TG_U8] = H5T_STD_U8LE,
        [TG_I8] = H5T_STD_I8LE,    [TG_U16] = H5T_STD_U16LE,  [TG_I16] = H5T_STD_I16LE,
        [TG_U32] = H5T_STD_U32LE,  [TG_I32] = H5T_STD_I32LE,  [TG_U64] = H5T_STD_U64LE,
        [TG_I64] = H5T_STD_I64LE};
    switch (dtype) {
    case TG_F16:
        return half_type(10);
    case TG_BF16:
        return half_type(7);
    case TG_BOOL:
        return bool_type();
    default:
        return tg_dtype_is_complex(dtype) ? complex_type(dtype, part_names[0])
                                          : H5Tcopy(standard[dtype]);
    }
}

const char *tg_h5_version(char *text, size_t capacity) {
    unsigned major = 0, minor = 0, release = 0;
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    H5get_libversion(&major, &minor, &release);
    tg_h5_leave(&guard);
    snprintf(text, capacity, "%u.%u.%u", major, minor, release);
    return text;
}

hid_t tg_h5_type_to_read(tg_dtype dtype, hid_t stored) {
    const char *const *names = H5Tget_class(stored) == H5T_COMPOUND ? names_of(stored) : NULL;
    return tg_dtype_is_complex(dtype) && names ? complex_type(dtype, names) : tg_h5_type_of(dtype);
}

/* How this library was built. */
#include "tgrad/tgrad.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

tg_build_info tg_build(void) {
    return (tg_build_info){.version = TG_VERSION,
                           .compiler = COMPILER,
                           .build_type = TG_BUILD_TYPE,
                           .features = TG_FEATURES};
}

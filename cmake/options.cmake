# Compile flags of all our code: C17, warnings are errors, hidden symbols, no contraction to fused
# multiply-add except where a kernel asks for it (the same bits from gcc and clang).
add_library(tg_options INTERFACE)
target_compile_features(tg_options INTERFACE c_std_17)
set(tg_c_flags -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wcast-qual -Wvla -Wformat=2 -Wundef
    -fvisibility=hidden -ffp-contract=off -fno-math-errno)
foreach(flag ${tg_c_flags})
    target_compile_options(tg_options INTERFACE $<$<COMPILE_LANGUAGE:C>:${flag}>)
endforeach()
# gcc only: clang also warns where a double is set to NAN or INFINITY, which are floats.
target_compile_options(tg_options INTERFACE $<$<COMPILE_LANG_AND_ID:C,GNU>:-Wdouble-promotion>)
target_compile_definitions(tg_options INTERFACE _POSIX_C_SOURCE=200809L)
set(CMAKE_C_EXTENSIONS OFF)

set(TG_AVX2_FLAGS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(TG_AVX2_FLAGS -mavx2 -mfma -mf16c)
endif()

if(TG_SANITIZE)
    target_compile_options(tg_options INTERFACE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(tg_options INTERFACE -fsanitize=address,undefined)
endif()

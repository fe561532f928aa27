# Compile flags of all our code: C17, warnings are errors, hidden symbols, no contraction to fused
# multiply-add except where a kernel asks for it (the same bits from gcc and clang). Symbols of a target
# with the property TG_SHOWS_ALL are not hidden.
add_library(tg_options INTERFACE)
target_compile_features(tg_options INTERFACE c_std_17)
set(tg_c_flags -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wcast-qual -Wvla -Wformat=2 -Wundef
    -fvisibility=$<IF:$<BOOL:$<TARGET_PROPERTY:TG_SHOWS_ALL>>,default,hidden>
    -ffp-contract=off -fno-math-errno)
foreach(flag ${tg_c_flags})
    target_compile_options(tg_options INTERFACE $<$<COMPILE_LANGUAGE:C>:${flag}>)
endforeach()
# gcc only: clang also warns where a double is set to NAN or INFINITY, which are floats.
target_compile_options(tg_options INTERFACE $<$<COMPILE_LANG_AND_ID:C,GNU>:-Wdouble-promotion>)
# clang only: it also warns where a loop marked simd cannot become vectors, as with sanitizers.
target_compile_options(tg_options INTERFACE $<$<COMPILE_LANG_AND_ID:C,Clang>:-Wno-pass-failed>)
target_compile_definitions(tg_options INTERFACE _POSIX_C_SOURCE=200809L)
set(CMAKE_C_EXTENSIONS OFF)

set(TG_AVX2_FLAGS "")
set(TG_AVX512_FLAGS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(TG_AVX2_FLAGS -mavx2 -mfma -mf16c -fno-trapping-math) # loops with conditions become vectors
    set(TG_AVX512_FLAGS -mavx512f -mavx512vl ${TG_AVX2_FLAGS})
    if(TG_SANITIZE) # GCC's checked stack frames are not aligned for 64-byte vectors
        list(APPEND TG_AVX512_FLAGS -fno-sanitize=address)
    endif()
endif()

# Hardening, as far as the compiler knows it: canaries, checked string functions (they need an optimizer),
# read-only relocations that are bound at the start, indirect jumps to marked places only.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(tg_hardening "")
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
    string(MAKE_C_IDENTIFIER "TG_HAS${flag}" known)
    check_c_compiler_flag(${flag} ${known})
    if(${known})
        list(APPEND tg_hardening ${flag})
    endif()
endforeach()
if(NOT TG_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
    list(APPEND tg_hardening -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
# The same bytes from every folder: paths in messages and debug information start at the source tree.
list(APPEND tg_hardening -ffile-prefix-map=${PROJECT_BINARY_DIR}=build
     -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
target_compile_options(tg_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:${tg_hardening}>")
target_link_options(tg_options INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)

if(TG_SANITIZE)
    target_compile_options(tg_options INTERFACE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(tg_options INTERFACE -fsanitize=address,undefined)
endif()

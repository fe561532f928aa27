/* cmocka, and the headers that it needs before it. */
#ifndef TEST_SUPPORT_CMOCKA_H
#define TEST_SUPPORT_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif

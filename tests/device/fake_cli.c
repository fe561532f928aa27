/* Linked into the command line, this gives it a backend "cuda" without a GPU. FAKE_DEVICE_LEFT is
 * how many bytes it says are left. */
#include <stdlib.h>

#include "support/fake_device.h"

__attribute__((constructor)) static void add(void) {
    const char *left = getenv("FAKE_DEVICE_LEFT");
    fake_device_add("cuda");
    if (left) {
        fake_device_tell_left(strtoull(left, NULL, 10));
    }
}

/* Linked into the command line, this gives it a backend "cuda" without a GPU. */
#include "support/fake_device.h"

__attribute__((constructor)) static void add(void) {
    fake_device_add("cuda");
}

/* A library that a program loads while it runs; see loader.c. */
#include "dimmer.h"

int plugin_work(int number);

static int begun;

__attribute__((constructor)) static void begin(void) {
    DIMMER_REGION("begin");
    begun = 1;
}

int plugin_work(int number) {
    DIMMER_REGION("plugin");
    return number + begun;
}

/* Threads ask for clocks, whether or not there is a way to ask here. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "dimmer.h"

static void *ask(void *available) {
    *(bool *)available = dimmer_pace_request(DIMMER_PACE_SLOW);
    printf("another thread asks for %u\n", dimmer_pace_in_force());
    return NULL;
}

int main(void) {
    printf("at first %u\n", dimmer_pace_in_force());
    errno = 77;
    bool available = dimmer_pace_request(DIMMER_PACE_TURBO);
    printf("errno is %d\n", errno);
    bool same = dimmer_pace_request(50) == available;
    printf("now %u\n", dimmer_pace_in_force());

    unsigned wrong[] = {104, 256, 0xffffffff};
    for (int i = 0; i < 3; i++) {
        same &= !dimmer_pace_request(wrong[i]);
    }
    printf("still %u\n", dimmer_pace_in_force());

    pthread_t thread;
    bool there;
    pthread_create(&thread, NULL, ask, &there);
    pthread_join(thread, NULL);
    same &= there == available;

    same &= dimmer_pace_request(DIMMER_PACE_NONE);
    printf("at last %u, %s\n", dimmer_pace_in_force(), same ? "each time alike" : "not alike");
    return 0;
}

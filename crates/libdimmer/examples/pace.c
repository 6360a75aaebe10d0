/* Threads ask for clocks, whether or not there is a way to ask here. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
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

    /* This thread has registered by its first request. No thread of the kernel has the other
       numbers, and no CPU. */
    unsigned own = dimmer_pace_register_thread();
    errno = 77;
    printf("moved %d, ", dimmer_pace_move_thread(own, (unsigned)sched_getcpu()));
    printf("not registered %d %d, ", dimmer_pace_move_thread(0, 0) == ESRCH,
           dimmer_pace_move_thread(0xffffffff, 0) == ESRCH);
    printf("no such CPU %d, errno is %d\n", dimmer_pace_move_thread(own, 100000) == EPERM, errno);

    same &= dimmer_pace_request(DIMMER_PACE_NONE);
    printf("at last %u, %s\n", dimmer_pace_in_force(), same ? "each time alike" : "not alike");
    return 0;
}

/* A thread goes to a dedicated CPU and comes home with the affinity that it had. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>

#include "dimmer.h"

static bool is_on(uint32_t cpu) {
    cpu_set_t now;
    return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == 1 && CPU_ISSET(cpu, &now);
}

int main(void) {
    cpu_set_t home, now;
    sched_getaffinity(0, sizeof home, &home);
    uint32_t last = 0, none = 1 << 20;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        last = CPU_ISSET(cpu, &home) ? cpu : last;
    }
    printf("none is dedicated: %d\n", dimmer_pace_go_to_fast_core() == ENODEV);
    printf("no CPU: %d\n", dimmer_pace_dedicate_fast(NULL, 0) == EINVAL);
    printf("no such CPU: %d\n", dimmer_pace_dedicate_fast(&none, 1) == EPERM);
    errno = 77;
    printf("dedicated: %d\n", dimmer_pace_dedicate_fast(&last, 1) == 0);
    printf("twice: %d\n", dimmer_pace_dedicate_fast(&last, 1) == EBUSY);

    dimmer_mutex mutex;
    dimmer_mutex_init(&mutex, "mgrt");
    dimmer_mutex_lock(&mutex);
    printf("the owner is there: %d\n", is_on(last));
    bool there = dimmer_pace_go_to_fast_core() == 0;
    dimmer_mutex_unlock(&mutex);
    printf("still: %d\n", there && is_on(last));
    dimmer_pace_go_home();
    dimmer_mutex_destroy(&mutex);
    sched_getaffinity(0, sizeof now, &now);
    printf("home: %d\n", CPU_EQUAL(&now, &home) != 0);
    dimmer_pace_release_fast();

    dimmer_pace_request_by_neighbour(DIMMER_PACE_SLOW);
    printf("asks for %u\n", dimmer_pace_in_force());
    printf("wrong: %d\n", dimmer_pace_request_by_neighbour(104));
    dimmer_pace_request_by_neighbour(DIMMER_PACE_NONE);
    printf("asks for %u\n", dimmer_pace_in_force());
    dimmer_pace_sleep_again(dimmer_pace_stay_awake());
    printf("errno is %d\n", errno);
    return 0;
}

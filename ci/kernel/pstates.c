// Asks the module dimmer_pstate for P-states, for its tests.
//
// usage: pstates info               the slowest, the base and the fastest P-state; clocks (kHz)
//        pstates requested CPU      the P-state that the CPU requests
//        pstates set CPU=P..        requests in one call; `taken`, or the error's name; undone then
//        pstates hold CPU=P..       the same, and then until a signal ends it
//        pstates follow CPU=P..     one call for each, in one file: a line for each; undone then
//        pstates measure CPU P      cycles of the write, and until the P-state is reached
// `before` as a P-state takes a request back.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dimmer_pstate.h"

static void says(int result) { puts(result ? strerrorname_np(errno) : "taken"); }

static struct dimmer_pstate_request request_of(const char *text) {
    struct dimmer_pstate_request request = {.cpu = strtoul(text, 0, 0)};
    const char *state = strchr(text, '=');
    request.state =
        state && strcmp(state, "=before") ? strtoul(state + 1, 0, 0) : DIMMER_PSTATE_BEFORE;
    return request;
}

static int requests(int file, int count, char **texts) {
    struct dimmer_pstate_request all[64];
    for (int i = 0; i < count && i < 64; i++)
        all[i] = request_of(texts[i]);
    struct dimmer_pstate_batch batch = {.requests = (uintptr_t)all, .count = count};
    return ioctl(file, DIMMER_PSTATE_REQUEST, &batch);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    int file = open("/dev/dimmer_pstate", O_RDWR);
    if (file < 0) {
        perror("/dev/dimmer_pstate");
        return 2;
    }
    count -= 2;
    arguments += 2;
    if (!strcmp(what, "info")) {
        struct dimmer_pstate_info info;
        if (ioctl(file, DIMMER_PSTATE_INFO, &info))
            return 3;
        printf("%u %u %u\n", info.slowest, info.base, info.fastest);
        for (int state = 0; state < 256; state++)
            if (info.khz[state])
                printf("P%d %u\n", state, info.khz[state]);
    } else if (!strcmp(what, "requested") && count == 1) {
        struct dimmer_pstate_request request = request_of(arguments[0]);
        if (ioctl(file, DIMMER_PSTATE_REQUESTED, &request))
            puts(strerrorname_np(errno));
        else
            printf("%u\n", request.state);
    } else if (!strcmp(what, "set")) {
        says(requests(file, count, arguments));
    } else if (!strcmp(what, "hold")) {
        says(requests(file, count, arguments));
        fflush(stdout);
        pause();
    } else if (!strcmp(what, "follow")) {
        for (int i = 0; i < count; i++)
            says(requests(file, 1, arguments + i));
    } else if (!strcmp(what, "measure") && count == 2) {
        struct dimmer_pstate_latency latency = {.cpu = strtoul(arguments[0], 0, 0),
                                                .state = strtoul(arguments[1], 0, 0)};
        if (ioctl(file, DIMMER_PSTATE_MEASURE, &latency))
            puts(strerrorname_np(errno));
        else
            printf("%llu %llu\n", (unsigned long long)latency.request_cycles,
                   (unsigned long long)latency.reached_cycles);
    } else {
        return 2;
    }
    return 0;
}

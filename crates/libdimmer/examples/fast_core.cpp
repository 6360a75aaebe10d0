/* A scope on a dedicated CPU ends with its block, however it is left. */
#include <sched.h>

#include <cstdio>
#include <stdexcept>

#include "dimmer.hpp"

static bool is_at_home(const cpu_set_t &home) {
    cpu_set_t now;
    return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &home);
}

int main() {
    cpu_set_t home;
    sched_getaffinity(0, sizeof home, &home);
    {
        dimmer::fast_core nowhere;
        std::printf("there: %d, home: %d\n", bool(nowhere), is_at_home(home));
    }
    std::uint32_t last = 0;
    for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        last = CPU_ISSET(cpu, &home) ? cpu : last;
    }
    dimmer_pace_dedicate_fast(&last, 1);
    try {
        dimmer::fast_core there;
        dimmer::fast_core again;
        std::printf("there: %d\n", bool(there) && bool(again) && sched_getcpu() == int(last));
        throw std::runtime_error("out of the block");
    } catch (const std::runtime_error &) {
        std::printf("home: %d\n", is_at_home(home));
    }
    dimmer_pace_release_fast();
}

// Calls a function that is over sooner on one CPU, given by its number, than elsewhere. The program
// itself keeps off that CPU. Ends after some seconds, given as the second argument.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

static unsigned fast;

// The CPU's number is where the kernel has it for user mode, so nothing asks the kernel.
__attribute__((noinline, noclone, noipa)) int kept(void) {
    unsigned cpu;
    unsigned long long begun = __rdtscp(&cpu);
    unsigned long long ticks = (cpu & 0xfff) == fast ? 200000 : 1000000;
    while (__rdtscp(&cpu) - begun < ticks)
        ;
    return 1;
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    fast = atoi(arguments[1]);
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    CPU_CLR(fast, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        return 3;
    for (time_t end = time(NULL) + atoi(arguments[2]); time(NULL) < end;)
        kept();
    return 0;
}

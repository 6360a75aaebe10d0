// Calls a function, and prints how many CPUs the program and its child may run on: at the start,
// once these are fewer, and once they are as many as at the start again. With an argument: at the
// start, and after that many seconds.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_S = 60 };

// Takes longer than any move there and back.
__attribute__((noinline, noclone, noipa)) long kept(void) {
    volatile long sum = 0;
    for (long i = 0; i < 400000; i++)
        sum += i;
    return sum;
}

static int cpus(pid_t process) {
    cpu_set_t set;
    return sched_getaffinity(process, sizeof set, &set) ? -1 : CPU_COUNT(&set);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static pid_t child;

static void tell(void) {
    printf("%d %d\n", cpus(0), cpus(child));
    fflush(stdout);
}

// Waits until both may run on `all` CPUs, or on at least one fewer.
static void wait_for(int all, int is_fewer) {
    for (double end = now() + PATIENCE_S; now() < end;) {
        kept();
        if (is_fewer ? cpus(0) < all && cpus(child) < all : cpus(0) == all && cpus(child) == all)
            break;
    }
    tell();
}

int main(int count, char **arguments) {
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    int all = cpus(0);
    tell();
    if (count > 1) {
        for (double end = now() + atof(arguments[1]); now() < end;)
            kept();
        tell();
    } else {
        wait_for(all, 1);
        wait_for(all, 0);
    }
    kill(child, SIGKILL);
    return 0;
}

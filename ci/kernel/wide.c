// What the tests of core specialisation run in their guest. Prints what it finds, as `name value`
// where a number is compared; ends with 0 if all is as it must be.
//
// usage: wide xcr0 CPU                what XCR0 holds there in user mode
//        wide illegal CPU             whether an unknown instruction still ends a program
//        wide runs CPU                wide code of a thread that may run there alone: where it ran
//        wide rounds N WIDE call|time wide code, N times, then a call or nothing: where it was
//        wide affinity CPUS           whether the affinity is CPUS (a mask) again after phases
//        wide share MS CPU            how much of its time a thread without wide code is on CPU
//        wide spin MS CPU             the same with wide code again and again
//        wide call MS CPU             the same with calls of the function `named` in its place
//        wide trips FROM TO N         registers kept across moves by affinity: how many are wrong
//        wide mark N FILE             how long a store to a mapped file and its clearing take (ns)
//        wide realtime ARGUMENTS      the same as without, by a thread of real time
//        wide stress THREADS SECONDS  registers compared while threads fault, move and fork
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "registers.h"

static const long nothing[4] = {SYS_getppid};

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static double ticks_per_us;

static void calibrate(void) {
    unsigned processor;
    uint64_t began = stamp(&processor), began_ns = now_ns();
    usleep(50000);
    ticks_per_us = (stamp(&processor) - began) * 1e3 / (double)(now_ns() - began_ns);
}

// A mask with one bit for each processor.
static void may_run_on(unsigned long mask) {
    if (syscall(SYS_sched_setaffinity, 0, sizeof mask, &mask) < 0) {
        perror("affinity");
        exit(3);
    }
}

static unsigned long may_run(void) {
    unsigned long mask = 0;
    syscall(SYS_sched_getaffinity, 0, sizeof mask, &mask);
    return mask;
}

static int illegal(int processor) {
    may_run_on(1ul << processor);
    pid_t child = fork();
    if (!child) {
        asm volatile("ud2");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return !(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
}

static int runs(int processor) {
    unsigned where;
    struct registers in, halfway, out;
    may_run_on(1ul << processor);
    fill(&in, 7);
    hold(&in, &halfway, &out, nothing, nothing, 1000);
    stamp(&where);
    printf("ran_on %u\nwrong %u\n", where, wrong(&in, &out, 0, 32) + wrong(&in, &halfway, 0, 16));
    return 0;
}

// Where the thread was before wide code, right after it, and whether it came back.
static int rounds(int number, unsigned wide, int by_call) {
    int were_wide = 0, moved = 0, returned = 0;
    double moving = 0, returning = 0;
    unsigned long mask = may_run();
    calibrate();
    for (int i = 0; i < number; i++) {
        unsigned before, after, later;
        uint64_t start = stamp(&before);
        if (before == wide) {
            // A scheduler may have put it there, as it does with threads that are not wide. It
            // begins elsewhere.
            may_run_on(1ul << (63 - __builtin_clzl(mask)));
            may_run_on(mask);
            start = stamp(&before);
        }
        wide_instruction();
        uint64_t moved_at = stamp(&after), end = moved_at + (uint64_t)(200000 * ticks_per_us), at;
        if (before == wide) {
            were_wide++;
        } else if (after == wide) {
            moved++;
            moving += (moved_at - start) / ticks_per_us;
        }
        if (by_call)
            getppid();
        do
            at = stamp(&later);
        while (later == wide && at < end);
        if (after == wide && later != wide) {
            returned++;
            returning += (at - moved_at) / ticks_per_us;
        }
        // So long that the next round does not belong to this one.
        for (end = at + (uint64_t)(1000 * ticks_per_us); at < end;)
            at = stamp(&later);
    }
    printf("rounds %d\nbegan_on_wide %d\nmoved %d\nreturned %d\nmove_us %.0f\nreturn_us %.0f\n", number, were_wide, moved,
           returned, moved ? moving / moved : 0, returned ? returning / returned : 0);
    return 0;
}

// Waits until the affinity is this one again. It comes back at a call or after the module's
// timeout, late on a busy machine: only an affinity that is lost takes the whole minute.
static int comes_back(unsigned long mask) {
    for (uint64_t end = now_ns() + 60000000000ull; may_run() != mask && now_ns() < end;)
        usleep(20000);
    return may_run() == mask;
}

static int affinity(unsigned long mask) {
    int status = 0;
    may_run_on(mask);
    for (int i = 0; i < 20; i++) {
        wide_instruction();
        pid_t child = fork();
        if (!child) {
            _exit(!comes_back(mask));
        }
        int ended;
        waitpid(child, &ended, 0);
        status |= ended != 0;
        status |= !comes_back(mask) << 1;
    }
    return status;
}

static int share(int ms, unsigned processor, void (*act)(void)) {
    long there = 0, all = 0;
    unsigned where;
    uint64_t end = now_ns() + ms * 1000000ull;
    calibrate();
    while (now_ns() < end) {
        uint64_t at = stamp(&where), until = at + (uint64_t)(50 * ticks_per_us);
        while (at < until)
            at = stamp(&where);
        if (act)
            act();
        all++;
        there += where == processor;
    }
    printf("share %ld\n", all ? 100 * there / all : 0);
    return 0;
}

void named(void);
__attribute__((noinline)) void named(void) { asm volatile("" ::: "memory"); }

static int trips(int from, int to, int number) {
    struct registers in, halfway, out;
    unsigned bad = 0;
    unsigned long there = 1ul << to, back = 1ul << from;
    const long goes[4] = {SYS_sched_setaffinity, 0, sizeof there, (long)&there};
    const long returns[4] = {SYS_sched_setaffinity, 0, sizeof back, (long)&back};
    may_run_on(back);
    for (int i = 0; i < number; i++) {
        fill(&in, i + getpid());
        memset(&halfway, 0, sizeof halfway);
        memset(&out, 0, sizeof out);
        hold(&in, &halfway, &out, goes, returns, 1000);
        bad += wrong(&in, &halfway, 0, 16) + wrong(&in, &out, 16, 32);
    }
    printf("wrong %u\nof %d\n", bad, number * 32);
    return 0;
}

static int mark(int number, const char *path) {
    int file = open(path, O_RDWR);
    volatile unsigned char *hints = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (hints == MAP_FAILED)
        return 3;
    hints[1] = 0;
    uint64_t began = now_ns();
    for (int i = 0; i < number; i++) {
        hints[1] = 1;
        asm volatile("" ::: "memory");
        hints[1] = 2;
    }
    printf("mark_and_clear_ns %.2f\n", (double)(now_ns() - began) / number);
    return 0;
}

static volatile int is_ended;
static volatile unsigned long total_wrong, total_rounds;
static unsigned long everywhere;

static void on_signal(int number) {
    (void)number;
    // A handler has registers of its own.
    asm volatile("pxor %%xmm5, %%xmm5\n\tpcmpeqd %%xmm6, %%xmm6" ::: "xmm5", "xmm6");
    static __thread unsigned times;
    if (++times % 8 == 0)
        asm volatile("vpcmpeqd %%ymm7, %%ymm7, %%ymm7\n\tvzeroupper" ::: "xmm7");
}

static void *work(void *argument) {
    long id = (long)argument, number = 0;
    unsigned long bad = 0;
    struct registers in, halfway, out;
    unsigned long one;
    const long goes[4] = {SYS_sched_setaffinity, 0, sizeof one, (long)&one};
    const long returns[4] = {SYS_sched_setaffinity, 0, sizeof everywhere, (long)&everywhere};
    for (; !is_ended; number++) {
        fill(&in, number * 7 + id * 31);
        memset(&halfway, 0, sizeof halfway);
        memset(&out, 0, sizeof out);
        // Every fourth thread also goes to one processor after another, wide or not.
        one = 1ul << (number + id) % __builtin_popcountl(everywhere);
        int wanders = id % 4 == 3 && number % 4 == 0;
        hold(&in, &halfway, &out, wanders ? goes : nothing, wanders ? returns : nothing, number % 5 * 20000);
        bad += wrong(&in, &halfway, 0, 16) + wrong(&in, &out, 0, 16) + wrong(&in, &out, 16, 32);
        if (id % 4 == 2 && number % 64 == 0) {
            // A child has its parent's registers until it has its own.
            pid_t child = fork();
            if (!child) {
                fill(&in, id);
                hold(&in, &halfway, &out, nothing, nothing, 100);
                _exit(wrong(&in, &out, 0, 32) != 0);
            }
            int status;
            while (waitpid(child, &status, 0) < 0)
                ;
            bad += status != 0;
        }
    }
    __sync_fetch_and_add(&total_wrong, bad);
    __sync_fetch_and_add(&total_rounds, number);
    return 0;
}

static int stress(int threads, int seconds) {
    pthread_t ids[64];
    uint64_t end = now_ns() + seconds * 1000000000ull;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    everywhere = may_run();
    for (long i = 0; i < threads; i++)
        pthread_create(&ids[i], 0, work, (void *)i);
    while (now_ns() < end) {
        usleep(20000);
        for (int i = 0; i < threads; i++)
            pthread_kill(ids[i], SIGUSR1);
    }
    is_ended = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], 0);
    printf("rounds %lu\nwrong %lu\n", total_rounds, total_wrong);
    return total_wrong != 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    if (argc > 3 && !strcmp(argv[1], "realtime")) {
        struct sched_param parameter = {.sched_priority = 10};
        // It begins on the last processor.
        unsigned long mask = may_run();
        may_run_on(1ul << (63 - __builtin_clzl(mask)));
        may_run_on(mask);
        if (sched_setscheduler(0, SCHED_FIFO, &parameter)) {
            perror("realtime");
            return 3;
        }
        argv++, argc--;
    }
    const char *what = argc > 2 ? argv[1] : "";
    int first = argc > 2 ? (int)strtol(argv[2], 0, 0) : 0, second = argc > 3 ? atoi(argv[3]) : 0;
    if (!strcmp(what, "xcr0")) {
        may_run_on(1ul << first);
        printf("%lx\n", (unsigned long)xcr0());
        return 0;
    }
    if (!strcmp(what, "illegal"))
        return illegal(first);
    if (!strcmp(what, "runs"))
        return runs(first);
    if (!strcmp(what, "rounds") && argc == 5)
        return rounds(first, second, !strcmp(argv[4], "call"));
    if (!strcmp(what, "affinity"))
        return affinity(first);
    if (!strcmp(what, "share") && argc == 4)
        return share(first, second, 0);
    if (!strcmp(what, "spin") && argc == 4)
        return share(first, second, wide_instruction);
    if (!strcmp(what, "call") && argc == 4)
        return share(first, second, named);
    if (!strcmp(what, "trips") && argc == 5)
        return trips(first, second, atoi(argv[4]));
    if (!strcmp(what, "mark") && argc == 4)
        return mark(first, argv[3]);
    if (!strcmp(what, "stress") && argc == 4)
        return stress(first, second);
    fprintf(stderr, "wide: see the first lines of wide.c\n");
    return 2;
}

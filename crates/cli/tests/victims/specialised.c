/* Threads with wide phases, beside one without. What it prints is the same whether they are
 * specialised or not; with SEEN set, it writes what differs to that file: where a thread was. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static unsigned numbers[64];

/* Sums up eight numbers at a time. */
__attribute__((target("avx2"))) NOINLINE unsigned with_avx2(const unsigned *from, unsigned count) {
    typedef unsigned eight __attribute__((vector_size(32), aligned(4)));
    eight sums = {0};
    for (unsigned turn = 0; turn < count; turn++)
        sums = sums * 31 + *(const eight *)(from + turn % 8 * 8) + turn;
    unsigned sum = 0;
    for (int place = 0; place < 8; place++)
        sum = sum * 31 + sums[place];
    return sum;
}

/* Does the same one by one. */
NOINLINE unsigned without_avx2(const unsigned *from, unsigned count) {
    unsigned sum = 0;
    for (int place = 0; place < 8; place++) {
        unsigned own = 0;
        for (unsigned turn = 0; turn < count; turn++)
            own = own * 31 + from[turn % 8 * 8 + place] + turn;
        sum = sum * 31 + own;
    }
    return sum;
}

static int has_avx2;

/* The function with wide code, and one that calls something in the middle of it. */
NOINLINE unsigned wide(const unsigned *from, unsigned count) {
    unsigned sum = has_avx2 ? with_avx2(from, count) : without_avx2(from, count);
    /* The compiler keeps the loop, though the program may not use the sum. */
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

NOINLINE unsigned wide_around(unsigned (*inner)(void)) {
    unsigned sum = numbers[5] ^ numbers[6] * 7;
    __asm__ volatile("" : "+r"(sum));
    return sum - sum + inner();
}

static FILE *seen;
static int wide_cpu;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The thread's affinity by the kernel alone, which shows what the thread itself is not to see. */
static int is_confined(void) {
    char line[256], list[128] = "";
    FILE *status = fopen("/proc/thread-self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "Cpus_allowed_list: %127s", list);
    if (status)
        fclose(status);
    char only[16];
    snprintf(only, sizeof only, "%d", wide_cpu);
    return !strcmp(list, only);
}

/* Calls the wide function until the thread is on the wide CPU, or for as long as that may take. */
static int goes(void) {
    for (double end = now() + 5; now() < end;) {
        for (int turn = 0; turn < 100; turn++)
            wide(numbers, 100);
        if (is_confined() && sched_getcpu() == wide_cpu)
            return 1;
    }
    return 0;
}

/* Waits without wide code until the thread may run elsewhere again. */
static int comes_back(void) {
    for (double end = now() + 5; now() < end; usleep(1000))
        if (!is_confined())
            return 1;
    return 0;
}

static void note(const char *what, int is_so) {
    if (seen) {
        fprintf(seen, "%s %d\n", what, is_so);
        fflush(seen);
    }
}

static cpu_set_t whole, given;

/* Whether the thread sees the affinity that it was started with, as far as that is not used for
 * wide code. */
static int is_plain(void) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    if (CPU_EQUAL(&mine, &whole))
        return 1;
    CPU_SET(wide_cpu, &mine);
    return CPU_EQUAL(&mine, &whole) && CPU_COUNT(&mine) > 1;
}

static void *look(void *answer) {
    *(int *)answer = !is_confined() && is_plain();
    return NULL;
}

static unsigned starts(void) {
    int is_so = 0;
    pthread_t other;
    pthread_create(&other, NULL, look, &is_so);
    pthread_join(other, NULL);
    return is_so;
}

static pid_t scalar_thread;

/* Calls the wide function until the scalar thread is kept off the wide CPU. */
static int keeps_off(void) {
    for (double end = now() + 5; now() < end;) {
        cpu_set_t its;
        for (int turn = 0; turn < 1000; turn++)
            wide(numbers, 100);
        pid_t thread = __atomic_load_n(&scalar_thread, __ATOMIC_ACQUIRE);
        if (thread && !sched_getaffinity(thread, sizeof its, &its) && !CPU_ISSET(wide_cpu, &its))
            return 1;
    }
    return 0;
}

static jmp_buf before;

static unsigned jumps(void) { longjmp(before, 1); }

static unsigned ends(void) { pthread_exit(NULL); }

static void *exits(void *unused) {
    if (seen)
        goes();
    wide_around(ends);
    return unused;
}

static void *scalar(void *stop) {
    __atomic_store_n(&scalar_thread, gettid(), __ATOMIC_RELEASE);
    unsigned long turns = 0;
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
        turns++;
    return NULL;
}

static void *pinned(void *unused) {
    cpu_set_t narrow = whole, mine;
    CPU_CLR(wide_cpu, &narrow);
    printf("pins itself: %d\n", sched_setaffinity(0, sizeof narrow, &narrow));
    int was_there = 0;
    for (double end = now() + 0.3; now() < end;) {
        wide(numbers, 100);
        was_there |= sched_getcpu() == wide_cpu || is_confined();
    }
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    printf("pinned: there %d, kept %d\n", was_there, CPU_EQUAL(&mine, &narrow));
    int refused = sched_setaffinity(0, sizeof mine, (cpu_set_t *)8);
    printf("a mask at no address: %d, %s\n", refused, strerror(errno));
    return unused;
}

int main(int count, char **arguments) {
    wide_cpu = count > 1 ? atoi(arguments[1]) : -1;
    if (count > 2 && strcmp(arguments[2], "-"))
        seen = fopen(arguments[2], "w");
    int rounds = count > 3 ? atoi(arguments[3]) : 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    has_avx2 = __builtin_cpu_supports("avx2");
    for (unsigned turn = 0; turn < 64; turn++)
        numbers[turn] = turn * 2654435761u;
    sched_getaffinity(0, sizeof whole, &whole);
    given = whole;

    int stop = 0;
    pthread_t other;
    pthread_create(&other, NULL, scalar, &stop);

    /* Without Dimmer no thread moves, and waiting for that would take long. */
    for (int round = 0; seen && round < rounds; round++) {
        note("goes", goes());
        note("comes back", comes_back());
    }
    if (seen)
        note("keeps off another thread", keeps_off());
    printf("sum %u\n", wide(numbers, 1000));
    printf("sees its own affinity: %d\n", is_plain());

    if (seen)
        goes();
    printf("a thread from a wide phase is plain: %u\n", starts());
    if (seen)
        goes();
    printf("one from within a wide function, too: %u\n", wide_around(starts));

    if (seen)
        goes();
    fflush(stdout);
    if (!fork()) {
        int is_so = !is_confined() && is_plain();
        if (seen)
            note("a child goes", goes());
        _exit(is_so && wide(numbers, 1000) ? 3 : 4);
    }
    int status = 0;
    wait(&status);
    printf("a child is plain: %d\n", WEXITSTATUS(status));

    if (seen)
        goes();
    printf("an executed program is plain: %d\n",
           system("grep -q \"$(grep Cpus_allowed_list /proc/$PPID/status)\" /proc/self/status"));

    if (!setjmp(before))
        wide_around(jumps);
    if (seen)
        note("goes after a jump", goes());
    if (seen)
        note("comes back after a jump", comes_back());

    pthread_t last;
    pthread_create(&last, NULL, exits, NULL);
    pthread_join(last, NULL);
    puts("a thread ended in a wide function");

    pthread_create(&last, NULL, pinned, NULL);
    pthread_join(last, NULL);

    if (seen) {
        goes();
        note("comes back at last", comes_back());
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(other, NULL);
    printf("sum %u\n", wide(numbers, 5000));
    return 7;
}

/* Threads with wide phases, beside one without. What it prints is the same whether they are
 * specialised or not; with SEEN set, it writes what differs to that file: where a thread was. */
#define _GNU_SOURCE
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

/* The function with wide code, and one that calls something in the middle of it. */
NOINLINE unsigned wide(const unsigned *from, unsigned count) {
    unsigned sum = 0;
    for (unsigned turn = 0; turn < count; turn++)
        sum = sum * 31 + from[turn % 64] + turn;
    /* Not to be left out where nobody uses the sum. */
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

/* Calls the wide function until the thread is on the wide CPU, or for as long as that may take. */
static int goes(void) {
    for (double end = now() + 5; now() < end;) {
        for (int turn = 0; turn < 100; turn++)
            wide(numbers, 100);
        if (sched_getcpu() == wide_cpu)
            return 1;
    }
    return 0;
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
    return unused;
}

int main(int count, char **arguments) {
    wide_cpu = count > 1 ? atoi(arguments[1]) : -1;
    if (count > 2 && strcmp(arguments[2], "-"))
        seen = fopen(arguments[2], "w");
    int rounds = count > 3 ? atoi(arguments[3]) : 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned turn = 0; turn < 64; turn++)
        numbers[turn] = turn * 2654435761u;
    sched_getaffinity(0, sizeof whole, &whole);
    given = whole;

    int stop = 0;
    pthread_t other;
    pthread_create(&other, NULL, scalar, &stop);

    /* Under nothing, nobody goes anywhere, and waiting for it would take long. */
    for (int round = 0; seen && round < rounds; round++) {
        note("goes", goes());
        note("comes back", comes_back());
    }
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

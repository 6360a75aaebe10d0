// Threads with a fast and a slow phase in turn, and what must not change in either: errno, the
// signal mask, a thread's own number, a handler's runs. One thread ends in its slow phase, one
// leaves by pthread_exit there, one is cancelled there, and a child is forked there. Prints what it
// computes; with a file as argument, writes there on which CPUs slow phases ran.

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include "early.h"

#define MARK __attribute__((noinline, noclone, used))

enum { TURNS = 400, THREADS = 2 };

static volatile sig_atomic_t handled;
static unsigned long ran_on[64];
static volatile int is_there;

// Without a function of the C library, which would bring the thread home.
static unsigned cpu(void) {
    unsigned number;
    __rdtscp(&number);
    return number & 63;
}

static void handle(int signal) {
    (void)signal;
    handled++;
}

// Long enough that a migration pays.
static void spin_us(unsigned us) {
    unsigned long long start = __rdtsc();
    while (__rdtsc() - start < us * 2000ULL) {
    }
}

MARK double fast(double value) {
    spin_us(50);
    return value * 1.5;
}

MARK double slow(double value) {
    __sync_fetch_and_add(&ran_on[cpu()], 1);
    spin_us(50);
    return value / 1.25;
}

static double work(int number) {
    double value = number + 1;
    for (int i = 0; i < TURNS; i++) {
        errno = 2000 + i;
        value = slow(fast(value)) * 0.9;
        if (errno != 2000 + i) {
            printf("errno has changed\n");
        }
    }
    return value;
}

static void *ends_away(void *number) {
    static double results[THREADS];
    int at = (int)(long)number;
    results[at] = work(at);
    slow(1);
    return &results[at];
}

static void *exits_away(void *result) {
    fast(1);
    slow(1);
    pthread_exit(result);
}

static void *waits_away(void *unused) {
    fast(1);
    slow(1);
    is_there = 1;
    for (;;) {
        pause();
    }
    return unused;
}

int main(int count, char **words) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    fast(1);
    early();
    printf("first %.9f\n", work(0));
    sigset_t before, after;
    slow(1);
    raise(SIGUSR1);
    sigprocmask(SIG_SETMASK, NULL, &before);
    fast(1);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++) {
        if (sigismember(&before, i) || sigismember(&after, i)) {
            printf("signal %d is blocked\n", i);
        }
    }
    slow(1);
    printf("handled %d, %s\n", (int)handled, syscall(SYS_gettid) == getpid() ? "same" : "other");
    pthread_t threads[THREADS], other;
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, ends_away, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        printf("thread %d %.9f\n", i, *(double *)result);
    }
    void *result;
    pthread_create(&other, NULL, exits_away, (void *)&handled);
    pthread_join(other, &result);
    printf("exit %d\n", result == &handled);
    pthread_create(&other, NULL, waits_away, NULL);
    while (!is_there) {
        sched_yield();
    }
    pthread_cancel(other);
    pthread_join(other, &result);
    printf("cancel %d\n", result == PTHREAD_CANCELED);
    fast(1);
    slow(1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child %.9f\n", work(5));
        fflush(stdout);
        _exit(4);
    }
    int status;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", WEXITSTATUS(status));
    if (count > 1) {
        FILE *seen = fopen(words[1], "w");
        for (int i = 0; i < 64; i++) {
            if (ran_on[i] > 0) {
                fprintf(seen, "%d %lu\n", i, ran_on[i]);
            }
        }
        fclose(seen);
    }
    fast(1);
    slow(1);
    return 9;
}

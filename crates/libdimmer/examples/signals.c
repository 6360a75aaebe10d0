/*
 * Regions everywhere: in a handler whose signal comes every 50 us and may interrupt any code, in
 * threads that enter their first regions meanwhile, in deep recursion, in constructors, at the
 * program's end, and in children of fork(2).
 *
 *     signals [ROUNDS]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dimmer.h"

enum { THREADS = 16, DEPTH = 500, CHILDREN = 4 };

static int rounds = 50;
static unsigned long before_main;
static volatile sig_atomic_t handled;

/* Takes some time. */
static unsigned long work(unsigned long turns) {
    volatile unsigned long sum = 0;
    for (unsigned long turn = 0; turn < turns; turn++) {
        sum = sum + turn;
    }
    return sum;
}

__attribute__((constructor)) static void begin(void) {
    DIMMER_REGION("begin");
    before_main = work(100);
}

static void finish(void) {
    DIMMER_REGION("end");
    work(100);
    puts("ended");
}

static void handle(int number) {
    (void)number;
    DIMMER_REGION("handler");
    handled = 1;
    work(50);
}

static unsigned long recurse(int depth) {
    DIMMER_REGION("recursion");
    return depth == 0 ? work(10) : recurse(depth - 1) + 1;
}

/* Many sites, so that first entries happen all the time. */
#define PIECE(number)                                                                               \
    static unsigned long piece_##number(unsigned long turns) {                                      \
        DIMMER_REGION("piece " #number);                                                            \
        return work(turns) + number;                                                                \
    }
#define TEN(tens)                                                                                   \
    PIECE(tens##0) PIECE(tens##1) PIECE(tens##2) PIECE(tens##3) PIECE(tens##4)                      \
    PIECE(tens##5) PIECE(tens##6) PIECE(tens##7) PIECE(tens##8) PIECE(tens##9)
#define NAMES(tens)                                                                                 \
    piece_##tens##0, piece_##tens##1, piece_##tens##2, piece_##tens##3, piece_##tens##4,            \
        piece_##tens##5, piece_##tens##6, piece_##tens##7, piece_##tens##8, piece_##tens##9
TEN(1)
TEN(2)
TEN(3)
TEN(4)
static unsigned long (*const pieces[])(unsigned long) = {NAMES(1), NAMES(2), NAMES(3), NAMES(4)};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

static void *run(void *place) {
    const uintptr_t first = (uintptr_t)place;
    uintptr_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        for (uintptr_t piece = 0; piece < PIECES; piece++) {
            sum += pieces[(first + piece) % PIECES](100);
        }
    }
    return (void *)sum;
}

/* Checks that a child's regions work. */
static int fork_one(void) {
    const pid_t child = fork();
    if (child == 0) {
        _exit(piece_10(100) == work(100) + 10 ? 7 : 8);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

int main(int count, char **arguments) {
    if (count > 1) {
        rounds = atoi(arguments[1]);
    }
    if (atexit(finish) != 0) {
        return 1;
    }
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t threads[THREADS];
    for (uintptr_t place = 0; place < THREADS; place++) {
        if (pthread_create(&threads[place], NULL, run, (void *)place) != 0) {
            return 1;
        }
    }
    unsigned long deep = 0;
    for (int round = 0; round < rounds; round++) {
        deep += recurse(DEPTH);
    }
    int right = 0;
    for (int place = 0; place < THREADS; place++) {
        void *sum;
        pthread_join(threads[place], &sum);
        uintptr_t expected = 0;
        for (unsigned piece = 0; piece < PIECES; piece++) {
            expected += work(100) + 10 + piece;
        }
        right += (uintptr_t)sum == expected * (uintptr_t)rounds;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    int children = 0;
    for (int child = 0; child < CHILDREN; child++) {
        children += fork_one();
    }
    {
        DIMMER_REGION("around a fork");
        children += fork_one();
    }
    printf("begin %d, threads %d, deep %d, handled %d, children %d\n", before_main == work(100),
           right, deep == (unsigned long)rounds * (work(10) + DEPTH), (int)handled, children);
    return 0;
}

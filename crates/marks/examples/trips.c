/*
 * Measures a round trip of ult_migrate() beside that of a cache line between the same two CPUs, in
 * turns (paper 004, section 5.3.3): medians, and the median of the turns' ratios.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ultmigration.h"

enum { ROUNDS = 51, TRIPS = 1000, WARM = 100 };

/* What two threads share; a line of its own. */
static struct {
    _Alignas(128) unsigned number;
    unsigned is_over;
} line;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), compare);
    return values[count / 2];
}

static void pin(const char *name) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)atoi(getenv(name)), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *answer(void *unused) {
    pin("SLOW_CPU");
    while (!__atomic_load_n(&line.is_over, __ATOMIC_ACQUIRE)) {
        unsigned number = __atomic_load_n(&line.number, __ATOMIC_ACQUIRE);
        if (number % 2 == 1) {
            __atomic_store_n(&line.number, number + 1, __ATOMIC_RELEASE);
        }
    }
    return unused;
}

static void bounce(void) {
    unsigned number = line.number + 1;
    __atomic_store_n(&line.number, number, __ATOMIC_RELEASE);
    while (__atomic_load_n(&line.number, __ATOMIC_ACQUIRE) == number) {
    }
}

static void migrate(void) {
    ult_migrate(ULT_SLOW);
    ult_migrate(ULT_FAST);
}

/* The median of some trips (ns). */
static double measure(void (*trip)(void)) {
    static double took[TRIPS];
    for (int i = 0; i < WARM; i++) {
        trip();
    }
    for (int i = 0; i < TRIPS; i++) {
        double begin = now_ns();
        trip();
        took[i] = now_ns() - begin;
    }
    return median(took, TRIPS);
}

static double measure_line(void) {
    pthread_t other;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    line.is_over = 0;
    pthread_create(&other, NULL, answer, NULL);
    pin("FAST_CPU");
    double took = measure(bounce);
    __atomic_store_n(&line.is_over, 1, __ATOMIC_RELEASE);
    pthread_join(other, NULL);
    sched_setaffinity(0, sizeof before, &before);
    return took;
}

int main(void) {
    static double lines[ROUNDS], trips[ROUNDS], ratios[ROUNDS];
    struct timespec rest = {0, 3000000};
    if (getenv("FAST_CPU") == NULL || getenv("SLOW_CPU") == NULL) {
        fprintf(stderr, "FAST_CPU and SLOW_CPU are not set: expected the number of a CPU each\n");
        return 2;
    }
    for (int round = 0; round < ROUNDS; round++) {
        lines[round] = measure_line();
        ult_register_klt();
        trips[round] = measure(migrate);
        ult_unregister_klt();
        ratios[round] = trips[round] / lines[round];
        /* The worker sleeps, so that it does not disturb the next turn. */
        nanosleep(&rest, NULL);
    }
    printf("line %.0f ns, migration %.0f ns, ratio %.2f\n", median(lines, ROUNDS),
           median(trips, ROUNDS), median(ratios, ROUNDS));
    return 0;
}
